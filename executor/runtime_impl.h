// Private to executor/: the state of a StageRuntime, and its parts by file:
//   stage_runtime.cpp   make, begin, advance
//   runtime_build.cpp   weights, programs, what crosses the border
//   runtime_pass.cpp    receive, forward, backward
//   runtime_recompute.cpp  forwards that keep their inputs only, and their second runs
//   runtime_send.cpp    messages, held until the device's memory is copied
//   runtime_report.cpp  norms and overflow of all stages, and what comes of them
//   runtime_step.cpp    tied gradients, clipping, optimizer, tied weights
//   runtime_state.cpp   checkpoint content, gradients
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "executor/capture/captured_program.h"
#include "executor/loss_scaler.h"
#include "executor/message_tensor.h"
#include "executor/optimizer.h"
#include "executor/parameters.h"
#include "executor/program.h"
#include "executor/stage_runtime.h"
#include "executor/step_report.h"
#include "executor/step_timer.h"
#include "executor/waiting_program.h"
#include "opdag/cut_eval.h"

namespace weft::executor {

// A buffer or constant of this stage. Leaves with the same bytes share one.
struct HeldTensor {
  opdag::LeafKind kind = opdag::LeafKind::kBuffer;
  std::vector<std::string> names;  // original names, all aliases
  bool persistent = false;
  at::Tensor value;
};

// Where one program input comes from.
struct InputBinding {
  enum class Kind : uint8_t { kFeed, kHeld, kParameter, kUse, kEdge };
  Kind kind = Kind::kFeed;
  size_t index = 0;  // leaf, held tensor, parameter, or incoming edge
  size_t part = 0;   // use of the parameter, or gradient group of the edge
};

struct IncomingEdge {
  opdag::Edge edge;
  uint32_t wire = 0;  // edge number in messages
  int32_t from = 0;   // stage in messages
  ExpectedTensor expected;
  size_t groups = 1;  // separate gradient sums (fan_out.h)
};

struct OutgoingEdge {
  opdag::Edge edge;
  uint32_t wire = 0;
  int32_t to = 0;
  ExpectedTensor expected;   // of its gradients
  size_t output = SIZE_MAX;  // program output, where no gradient comes back
  std::vector<size_t> taps;  // program taps, one a gradient group
};

// One compiled graph of this stage, training or evaluation.
struct StageProgram {
  bool train = true;
  bool present = false;
  opdag::StageGraph stages;
  int32_t stage = 0;  // in `stages`
  Program program;
  std::unique_ptr<CapturedProgram> captured;  // runs `program`, where it can
  // Where the plan says so: forwards keep their inputs only, and run again before their backwards.
  bool recompute = false;
  std::vector<bool> copied;  // inputs that the first run may write: the second reads a copy
  std::unique_ptr<WaitingProgram> waiting;  // runs in its place, where asked for
  std::vector<InputBinding> bindings;
  std::map<int32_t, IncomingEdge> incoming;  // by edge id
  std::map<int32_t, OutgoingEdge> outgoing;
  std::vector<opdag::ValueId> outputs;
  size_t loss = SIZE_MAX, logits = SIZE_MAX, targets = SIZE_MAX;  // program outputs
  std::vector<std::pair<size_t, size_t>> buffer_updates;          // held tensor, program output
  std::vector<std::pair<std::string, size_t>> graph_outputs;

  // By program input: its gradient goes back to another stage.
  std::vector<bool> from_edges() const {
    std::vector<bool> result;
    for (const InputBinding& binding : bindings) {
      result.push_back(binding.kind == InputBinding::Kind::kEdge);
    }
    return result;
  }
};

// A micro-batch between its first receive and the last send of its gradients.
struct InFlight {
  std::map<int32_t, at::Tensor> received;  // by edge id
  std::map<int32_t, at::Tensor> to_send;
  std::map<int32_t, OptionalTensors> gradients_received;  // by outgoing edge, per tap
  std::map<int32_t, OptionalTensors> gradients_to_send;   // by incoming edge, per group
  std::unique_ptr<Recording> recording;
  std::vector<at::IValue> inputs;  // of a forward that is to run again
  bool owes_weights = false;       // the first part of a split backward has run
  at::Tensor loss;
};

// A message whose bytes the device is still copying to the host.
struct PendingSend {
  int32_t to = 0;
  net::Message message;
  std::unique_ptr<Transfer::Mark> copied;
};

// Numbers on their way from the device.
struct PendingNumbers {
  at::Tensor host;  // of doubles
  std::unique_ptr<Transfer::Mark> copied;
};

enum class StepPhase : uint8_t {
  kSendTied,
  kCollectTied,
  kMeasure,
  kReport,
  kCollectReports,
  kAwaitVerdict,
  kUpdate,
  kReadLoss
};

class RuntimeImpl final : public StageRuntime {
 public:
  RuntimeImpl(opdag::Graph graph, opdag::Graph eval_graph, const RuntimeOptions& options,
              at::Device device, net::Endpoint& endpoint, Feed& feed);

  Status build(const WeightSource& weights);

  Status begin_step(int64_t step) override;
  Status begin_eval(int64_t ordinal, int32_t micro_batches) override;
  Result<Progress> advance() override;
  StepResult result() const override { return result_; }
  std::map<std::string, at::Tensor> state() const override;
  Status load_state(const std::map<std::string, at::Tensor>& state) override;
  std::map<std::string, at::Tensor> gradients() const override;
  std::map<std::string, at::Tensor> outputs() const override { return outputs_; }

 private:
  // runtime_build.cpp
  Status load_parameters(const WeightSource& weights);
  Status build_program(const opdag::Graph& graph, const opdag::Partition& partition,
                       StageProgram& target, const WeightSource& weights);
  Status bind_leaves(const opdag::Graph& graph, const opdag::Stage& stage, StageProgram& target,
                     ProgramSpec& spec, const WeightSource& weights);
  void bind_incoming(const opdag::Graph& graph, const opdag::Partition& partition,
                     const opdag::Stage& stage, StageProgram& target, ProgramSpec& spec);
  void bind_outgoing(const opdag::Graph& graph, const opdag::Partition& partition,
                     const opdag::Stage& stage, StageProgram& target, ProgramSpec& spec);
  void bind_outputs(const opdag::Graph& graph, const opdag::Stage& stage, StageProgram& target);
  size_t keep_output(StageProgram& target, opdag::ValueId value);
  void capture_program(const opdag::Graph& graph, const opdag::Stage& stage, StageProgram& target);
  const Parameter* find_parameter(const std::string& target) const;
  Result<size_t> hold(const opdag::Graph& graph, const opdag::Leaf& leaf,
                      const WeightSource& weights);
  Status make_optimizer();

  // runtime_pass.cpp
  Result<Progress> run_action(const job::Action& action);
  void end_timing();
  Result<Progress> receive_activation(const job::Action& action);
  Result<Progress> receive_gradient(const job::Action& action);
  Result<Progress> forward(int32_t micro_batch);
  Result<std::vector<at::IValue>> gather_inputs(int32_t micro_batch, InFlight& flight);
  void after_forward(int32_t micro_batch, InFlight& flight, Program::Values& values);
  void measure_eval(const Program::Values& values);
  Status backward(int32_t micro_batch);
  Status backward_input(int32_t micro_batch);
  Status backward_weight(int32_t micro_batch);
  void expect_gradients_to_send(InFlight& flight) const;
  void end_backward(int32_t micro_batch);
  at::Tensor loss_seed(const at::Tensor& loss) const;
  std::vector<Seed> seeds(InFlight& flight) const;
  void take_gradients(InFlight& flight, std::vector<at::Tensor> found);
  void add_loss(int32_t micro_batch, const at::Tensor& loss);

  // runtime_recompute.cpp
  void plan_recompute(const opdag::Graph& graph, const opdag::Stage& stage, const ProgramSpec& spec,
                      StageProgram& target) const;
  std::vector<at::IValue> kept_for_second_run(const std::vector<at::IValue>& inputs) const;
  Status forward_again(int32_t micro_batch, InFlight& flight);
  RunContext run_context(int32_t micro_batch) const;

  // runtime_send.cpp
  Status send_activation(const job::Action& action);
  Status send_gradient(const job::Action& action);
  // Takes a message just encoded; hands it to the endpoint when its bytes are there.
  void post(int32_t to_stage, net::Message message);
  Status send_copied();
  PendingNumbers fetch_numbers(const at::Tensor& doubles);
  net::MessageKey key(net::MessageKind kind, int32_t micro_batch, uint32_t edge,
                      int32_t from) const;

  // runtime_step.cpp
  Result<Progress> step();
  Status send_tied_gradients();
  Result<bool> collect_tied_gradients();
  Status update();
  Status publish_weights();
  Result<bool> collect_weights();  // false: some have not arrived
  bool clips() const { return options_.train.clip_norm > 0; }
  bool reports() const { return clips() || scaler_; }
  bool owns(const Parameter& parameter) const;
  ExpectedTensor expected_parameter(const Parameter& parameter) const;
  void read_loss();

  // runtime_report.cpp
  void measure_gradients();
  StageReport own_report() const;
  Status send_report();
  Result<bool> collect_reports();  // false: some have not arrived
  Result<bool> await_verdict();

  static Result<Program::Values> run_program(const StageProgram& program,
                                             std::vector<at::IValue> inputs,
                                             const RunContext& context);
  const StageProgram& active() const { return evaluating_ ? eval_ : train_; }
  size_t preparations() const { return train_.captured ? train_.captured->preparations() : 0; }

  opdag::Graph graph_, eval_graph_;
  RuntimeOptions options_;
  at::Device device_;
  net::Endpoint& endpoint_;
  Feed& feed_;
  std::unique_ptr<Transfer> transfer_;
  StepTimer timer_;
  size_t prepared_ = 0;             // passes of the captured program, before the step
  std::deque<PendingSend> outbox_;  // in the order of the copies

  std::vector<Parameter> parameters_;
  std::vector<HeldTensor> held_;
  StageProgram train_, eval_;
  std::unique_ptr<StageOptimizer> optimizer_;
  std::optional<LossScaler> scaler_;  // fp16

  // The pass under way.
  bool evaluating_ = false;
  int64_t step_ = 0;
  job::StageActions actions_;
  size_t next_action_ = 0;
  int32_t micro_batches_ = 1;
  std::map<int32_t, InFlight> flights_;
  double loss_sum_ = 0;    // of an evaluation
  at::Tensor loss_total_;  // of a training step, on the device
  PendingNumbers loss_read_;
  int64_t correct_ = 0, counted_ = 0;
  StepResult result_;
  std::map<std::string, at::Tensor> outputs_;

  // The step action.
  StepPhase phase_ = StepPhase::kSendTied;
  std::map<std::pair<int32_t, int32_t>, OptionalTensors> tied_received_;  // (weight, stage)
  std::map<int32_t, StageReport> reports_;                                // by stage
  PendingNumbers measured_;                                               // of own_report
  StepVerdict verdict_;
  std::map<int32_t, int64_t> awaited_weights_;  // weight -> step that publishes it
};

}  // namespace weft::executor
