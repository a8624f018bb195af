// StageRuntime: one stage of a job as a step machine. It holds the stage's weights and its program,
// and executes schedules (job/schedule.h) action by action against an Endpoint and a Feed:
// remote automatic differentiation, gradient accumulation, tied groups, clipping, the optimizer.
//
// advance() runs the next action or says what it waits for; the caller decides how to wait (block
// on a socket in weft-worker, move virtual time in a simulation). Not thread-safe: one thread, the
// compute thread, makes every call; the autograd engine runs inline on it.
//
// Messages (layout of tensors: executor/message_tensor.h): activations and gradients by edge of the
// plan's stage graph; kTiedGradient and kTiedWeight with edge = index in graph.leaves of the
// weight's first leaf, micro-batch 0; kNorms and kClip (step_report.h) with edge 0, micro-batch 0.
// A stage exchanges tied messages with the stages of opdag::tied_uses, norms and clip with the loss
// stage.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "executor/aten.h"
#include "executor/feed.h"
#include "executor/program.h"
#include "executor/step_timer.h"
#include "executor/transfer.h"
#include "job/plan.h"
#include "job/schedule.h"
#include "job/spec.h"
#include "net/endpoint.h"
#include "opdag/cut.h"
#include "opdag/graph.h"

namespace weft::executor {

// Reads the bytes of a weight (WeightRef::path): an archive entry or a fetched blob.
using WeightSource = std::function<Result<Buffer>(const opdag::WeightRef&)>;

// kWaited: compute is measured once and then replaced by waiting (waiting_program.h).
enum class Compute : uint8_t { kReal, kWaited };

struct RuntimeOptions {
  job::TrainSpec train;
  std::vector<job::ParamGroup> groups;
  job::Plan plan;
  int32_t stage = 0;
  int32_t micro_batches = 1;
  std::string device = "cpu";
  Differentiation differentiation = Differentiation::kTape;
  Compute compute = Compute::kReal;
  bool capture = true;          // passes as device graphs, where the device and the stage allow
  bool keep_gradients = false;  // model check: gradients stay readable, no optimizer step
  bool keep_outputs = false;    // model check: graph outputs of evaluations stay readable
  // Copies between device and host; tests put others in its place.
  std::function<std::unique_ptr<Transfer>(at::Device)> transfer = Transfer::make;
  std::function<Moment::Make(at::Device)> moments = Moment::of;  // the device's time, as well
};

// kWaiting: for a message. kCopying: for copies between device and host that this stage began, and
// perhaps a message; nobody wakes a thread for them: ask again soon.
enum class Progress { kRan, kWaiting, kCopying, kDone };

// What one training step or evaluation told; NaN or negative where this stage does not know.
struct StepResult {
  double loss = 0;            // mean over micro-batches, loss stage only
  double grad_norm = -1;      // global, where clipping is on and the step was not skipped
  double loss_scale = -1;     // of this step, fp16
  bool skipped = false;       // no stage stepped: a gradient had inf or NaN, fp16
  int64_t skipped_steps = 0;  // of the job so far, fp16
  double accuracy = -1;       // evaluation with integer targets, loss stage only
  double busy_s = 0;          // time the compute thread spent in actions
  // Time the device spent in the actions of a training step: of this one, or of the last before it
  // that a card is done with. 0: no other than was told before, or passes were captured in it.
  double compute_s = 0;
};

class StageRuntime {
 public:
  // graph: training graph (or f64-promoted). eval_graph: same ids, train flags off; or a separately
  // exported model with the same parameter names; without nodes: no evaluation. A graph without a
  // loss output can only be evaluated.
  // A separately exported model shares parameters and buffers by name; its other leaves are read
  // through `weights` by their own paths.
  static Result<std::unique_ptr<StageRuntime>> make(opdag::Graph graph, opdag::Graph eval_graph,
                                                    const RuntimeOptions& options,
                                                    const WeightSource& weights,
                                                    net::Endpoint& endpoint, Feed& feed);
  virtual ~StageRuntime() = default;

  virtual Status begin_step(int64_t step) = 0;
  // An evaluation pass `ordinal` (unique per job) over micro_batches of the eval split.
  virtual Status begin_eval(int64_t ordinal, int32_t micro_batches) = 0;
  // Progress of the pass begun last. Errors end the stage.
  virtual Result<Progress> advance() = 0;
  virtual StepResult result() const = 0;

  // Parameters by original name (all aliases), buffers, and optimizer state of what this stage
  // owns: the content of its checkpoint shard.
  virtual std::map<std::string, at::Tensor> state() const = 0;
  // Loads any of those by name; names of other stages are ignored.
  virtual Status load_state(const std::map<std::string, at::Tensor>& state) = 0;

  // With keep_gradients: gradient of each owned parameter by original name after a step; tied
  // groups are summed at the owner.
  virtual std::map<std::string, at::Tensor> gradients() const = 0;

  // With keep_outputs: graph outputs this stage computed in the last micro-batch evaluated.
  virtual std::map<std::string, at::Tensor> outputs() const = 0;
};

}  // namespace weft::executor
