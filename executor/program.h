// Program: a set of graph nodes compiled once into calls of the dispatcher, then run once per
// micro-batch: push the arguments boxed, call, store the results, drop each value at its last use.
//
// How gradients keep their bits under any cut: where a value that needs a gradient has several
// consumer nodes, every one of them reads an alias of its own, made just before it runs. The
// autograd engine visits functions in descending order of their making, so the gradient of the
// value is the fold, in descending node order, of one sum per consumer node. A consumer in another
// stage is stood for by a tap: an alias made at the consumer's place in node order, whose gradient
// arrives from that stage. The fold is then the same however the graph is cut.
//
// The tape (tape/tape.h) keeps the same order: it plays its calls back in reverse.
//
// A compiled Program is immutable; frames hold the values of one run. Compute thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/result.h"
#include "executor/aten.h"
#include "executor/convert.h"
#include "executor/tape/tape.h"
#include "opdag/graph.h"

namespace weft::executor {

// A value the caller puts into the frame: for all nodes (consumer kNone), or for one consumer node
// alone (position in graph.nodes), which then reads this instead of the common value.
struct ProgramInput {
  opdag::ValueId value = opdag::kNone;
  int32_t consumer = opdag::kNone;
  auto operator<=>(const ProgramInput&) const = default;
};

// An alias of a value made before the first node at or after `position`.
struct Tap {
  opdag::ValueId value = opdag::kNone;
  int32_t position = 0;
};

enum class Differentiation : uint8_t {
  kTape,      // explicit backward operators; autograd where the nodes write in place
  kAutograd,  // PyTorch's engine: the oracle of the tape
};

struct ProgramSpec {
  std::vector<int32_t> nodes;  // positions in graph.nodes, ascending
  std::vector<ProgramInput> inputs;
  std::vector<bool> gradients;  // which inputs want one; empty: none, and no backward
  Differentiation differentiation = Differentiation::kTape;
  std::vector<opdag::ValueId> outputs;  // kept for the caller
  std::vector<Tap> taps;                // kept for the caller
  std::set<opdag::ValueId> fan_out;     // values whose consumers read aliases of their own
  std::set<int32_t> causal;             // attention run with is_causal in place of its mask
  at::Device device = at::kCPU;
};

struct RunContext {
  uint64_t seed = 0;  // of the job
  int64_t step = 0;
  int32_t micro_batch = 0;
  bool write_buffers = true;  // false: operators that update buffers get copies of them
  // false: the run leaves no recording, by the same kernels as with one. The tape keeps nothing on
  // the way; what autograd runs is freed at the end.
  bool record = true;
  // Runs the call of an operator that draws random numbers, in the order of Program::draws. None:
  // the device's default generator is seeded for each.
  std::function<void(const std::function<void()>& call)> draw = nullptr;
};

// Two operators run as their writer meant them where the export froze a fact of its own machine:
// `view` of memory that another device's kernels lay out differently is `reshape`, and the number
// of `masked_fill` is kept within the range of the element type that autocast chose (an export has
// float32's lowest number where the module asks for the lowest of its own type).
class Program {
 public:
  static Result<Program> compile(const opdag::Graph& graph, const ProgramSpec& spec);

  // inputs: in the order of spec.inputs. Random operators draw from (seed, step, micro-batch, node
  // id). On success the outputs and taps are in the same order as in the spec.
  struct Values {
    std::vector<at::IValue> outputs;
    std::vector<at::Tensor> taps;
    std::unique_ptr<Recording> recording;  // where spec and run ask for one
  };
  Result<Values> run(std::vector<at::IValue> inputs, const RunContext& context) const;

  // The nodes that draw random numbers, as they run, and what the draws of one are seeded with.
  const std::vector<opdag::NodeId>& draws() const { return draws_; }
  static uint64_t seed_of(opdag::NodeId node, const RunContext& context);

  Differentiation differentiation() const { return differentiation_; }

 private:
  struct Step {
    std::optional<c10::OperatorHandle> handle;  // none: alias of slot `from`
    std::vector<ArgTemplate> arguments;
    std::vector<std::pair<int32_t, int32_t>> results;             // output position, slot
    std::vector<std::vector<std::pair<int32_t, int32_t>>> parts;  // of result i: element, slot
    std::vector<int32_t> buffer_arguments;  // positions it writes though the schema does not say
    std::vector<int32_t> drops;             // slots whose last use this is
    int32_t from = opdag::kNone;
    bool random = false;
    bool writes = false;         // it may write what it is given
    bool keep_in_range = false;  // the number of a masked_fill
    opdag::NodeId node = opdag::kNone;
    std::string op;
    tape::Plan plan;
    tape::ResultSlots result_slots;
  };
  class Compiler;

  void run_step(const Step& step, std::vector<at::IValue>& frame, tape::Tape* tape,
                const RunContext& context) const;
  void call(const Step& step, torch::jit::Stack& stack, tape::Tape* tape) const;
  Values collect(const std::vector<at::IValue>& frame) const;
  static Values detached(Values values);

  std::vector<Step> steps_;
  std::vector<opdag::NodeId> draws_;
  std::vector<bool> gradients_;
  Differentiation differentiation_ = Differentiation::kTape;
  size_t slots_ = 0;
  std::vector<int32_t> input_slots_, output_slots_, tap_slots_;
  at::Device device_ = at::kCPU;
};

}  // namespace weft::executor
