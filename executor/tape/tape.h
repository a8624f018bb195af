// The tape: a Recording of explicit backward operators. It runs every operator that carries a
// gradient, below autograd by its rule (rule.h), or through autograd alone where there is none, and
// plays the calls back in reverse. The engine, its graph of nodes and the dispatch through autograd
// kernels are what it saves: about half of the host time of a step.
//
// Values are slots of the Program's frame; each is written once. In-place operators are not for the
// tape: what a rule saved would change under it.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "executor/tape/autograd_recording.h"
#include "executor/tape/recording.h"
#include "executor/tape/rule.h"

namespace weft::executor::tape {

constexpr int32_t kNoSlot = -1;

// How an operator's call meets the tape; made once, when the Program is compiled.
struct Plan {
  struct Argument {
    size_t position = 0;   // in the schema
    int32_t element = -1;  // of a list
    int32_t slot = kNoSlot;
  };
  std::vector<Argument> arguments;  // the tensors of the call, flat
  const Rule* rule = nullptr;
  bool autocast = false;  // autocast knows the operator on this device
};

// slot_of(position, element) says which slot an argument of the call comes from.
Plan make_plan(const c10::OperatorHandle& op, std::string_view name, at::DeviceType device,
               std::vector<Plan::Argument> arguments);

// Where the results of a call go: the slot of element `element` of result `position`.
using ResultSlots = std::vector<std::vector<int32_t>>;  // by position, then element (one: a tensor)

class Tape final : public Recording {
 public:
  // keeps: false for a run that has no backward, by the same kernels.
  explicit Tape(size_t slots, bool keeps = true);

  // While it lives, this thread runs below autograd.
  class Below;

  void want(int32_t slot) { carries_[static_cast<size_t>(slot)] = true; }
  bool carries(int32_t slot) const {
    return slot != kNoSlot && carries_[static_cast<size_t>(slot)] != 0;
  }
  bool carries_any(const Plan& plan) const;

  // `to` is the value of `from` under a name of its own: its gradient joins that of `from` here.
  void alias(int32_t from, int32_t to);

  // Runs the operator with the arguments on the stack, leaves its results there.
  void call(const c10::OperatorHandle& op, const Plan& plan, const ResultSlots& results,
            torch::jit::Stack& stack);

  // inputs: undefined gradients are returned for those that were not wanted.
  void finish(std::vector<int32_t> inputs, std::vector<int32_t> outputs, std::vector<int32_t> taps);

  std::vector<at::Tensor> backward(std::vector<Seed> seeds) override;
  std::vector<at::Tensor> backward_first(std::vector<Seed> seeds,
                                         const std::vector<bool>& first) override;
  std::vector<at::Tensor> backward_rest() override;

 private:
  struct Argument {
    int32_t slot = kNoSlot;
    c10::DimVector sizes;
    at::ScalarType type = at::kFloat;
  };
  struct Record {
    Backward backward;                        // none: an alias, or
    std::unique_ptr<AutogradRecording> call;  // through autograd
    Mask wanted;
    bool splits = false;              // as its rule says
    std::vector<Argument> arguments;  // flat
    std::vector<int32_t> results;     // flat; kNoSlot: nobody reads it
    // Between the parts of a backward: gradients of the results that the rest begins from, or those
    // of the arguments that the first part made and the rest hands on.
    Tensors pending, made;

    bool is_alias() const { return !backward && !call && made.empty(); }
  };

  Record begin(const Plan& plan, const torch::jit::Stack& stack) const;
  void through_autograd(const c10::OperatorHandle& op, const Plan& plan, torch::jit::Stack& stack,
                        Record& record) const;
  bool name_results(const ResultSlots& results, const torch::jit::Stack& stack, Record& record);
  void seed(std::vector<Seed> seeds);
  Tensors take_results(const Record& record);
  void differentiate(Record& record, Tensors& results, const Mask& wanted, Tensors& arguments);
  void play(Record& record);
  void play_first(Record& record);
  void play_rest(Record& record);
  void mark_early(const std::vector<bool>& first);
  void add_all(const Record& record, Tensors& arguments, const Mask& which);
  void add(int32_t slot, at::Tensor gradient);
  std::vector<at::Tensor> take_inputs(bool early);

  c10::impl::LocalDispatchKeySet above_;  // the thread's dispatch state outside of Below
  bool keeps_;
  std::vector<char> carries_;
  std::vector<Record> records_;
  std::vector<int32_t> inputs_, outputs_, taps_;
  std::vector<at::Tensor> gradients_;  // by slot, during backward
  std::vector<char> early_;            // by slot: an input of the first part flows into it
};

class Tape::Below {
 private:
  at::NoGradGuard no_gradients_;
  at::AutoDispatchBelowAutograd below_;
};

}  // namespace weft::executor::tape
