#include "job/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace weft::job {
namespace {

using opdag::Edge;
using opdag::StageGraph;

// The actions of one stage around each compute action: receives right before, sends right after.
class StageWriter {
 public:
  StageWriter(const StageGraph& graph, int32_t stage) {
    for (const Edge& edge : graph.edges) {
      if (edge.to == stage) inputs_.push_back(&edge);
      if (edge.from == stage) outputs_.push_back(&edge);
    }
  }

  void forward(int32_t micro_batch) {
    for (const Edge* edge : inputs_) add(ActionKind::kRecvActivation, micro_batch, edge->id);
    add(ActionKind::kForward, micro_batch);
    for (const Edge* edge : outputs_) add(ActionKind::kSendActivation, micro_batch, edge->id);
  }

  void backward(int32_t micro_batch, ActionKind part = ActionKind::kBackward) {
    for (const Edge* edge : outputs_) {
      if (edge->needs_grad) add(ActionKind::kRecvGradient, micro_batch, edge->id);
    }
    add(part, micro_batch);
    for (const Edge* edge : inputs_) {
      if (edge->needs_grad) add(ActionKind::kSendGradient, micro_batch, edge->id);
    }
  }

  void backward_weight(int32_t micro_batch) { add(ActionKind::kBackwardWeight, micro_batch); }
  void step() { add(ActionKind::kStep, 0); }
  StageActions take() { return std::move(actions_); }

 private:
  void add(ActionKind kind, int32_t micro_batch, int32_t edge = -1) {
    actions_.push_back({kind, micro_batch, edge});
  }

  std::vector<const Edge*> inputs_, outputs_;
  StageActions actions_;
};

// Micro-batches whose gradients of weights a stage may owe, ZB-H1.
int32_t owed_of(const ScheduleOptions& options, int32_t depth, int32_t deepest) {
  if (options.kind != PipelineSchedule::kZbH1) return 0;
  return in_flight_of(options, depth, deepest) - warm_up_of(options, depth);
}

}  // namespace

std::string describe(const Action& action) {
  const auto message = [&](const char* verb, const char* what) {
    return fmt::format("{} of the {} of micro-batch {} on edge {}", verb, what, action.micro_batch,
                       action.edge);
  };
  switch (action.kind) {
    case ActionKind::kRecvActivation:
      return message("receive", "activation");
    case ActionKind::kForward:
      return fmt::format("forward of micro-batch {}", action.micro_batch);
    case ActionKind::kSendActivation:
      return message("send", "activation");
    case ActionKind::kRecvGradient:
      return message("receive", "gradient");
    case ActionKind::kBackward:
      return fmt::format("backward of micro-batch {}", action.micro_batch);
    case ActionKind::kBackwardInput:
      return fmt::format("backward of the inputs of micro-batch {}", action.micro_batch);
    case ActionKind::kBackwardWeight:
      return fmt::format("backward of the weights of micro-batch {}", action.micro_batch);
    case ActionKind::kSendGradient:
      return message("send", "gradient");
    case ActionKind::kStep:
      break;
  }
  return "optimizer step";
}

std::vector<int32_t> depth_to_loss(const StageGraph& graph) {
  constexpr int32_t kUnreached = -1;
  std::vector<int32_t> depth(static_cast<size_t>(graph.stages), kUnreached);
  depth.at(static_cast<size_t>(graph.loss_stage)) = 0;
  // Stages are numbered topologically, so a stage's consumers are final when it is visited.
  for (int32_t stage = graph.loss_stage - 1; stage >= 0; --stage) {
    int32_t& mine = depth[static_cast<size_t>(stage)];
    for (const Edge& edge : graph.edges) {
      if (edge.from != stage) continue;
      const int32_t next = depth.at(static_cast<size_t>(edge.to));
      if (next != kUnreached) mine = std::max(mine, next + 1);
    }
  }
  for (int32_t& d : depth) d = std::max(d, 0);
  return depth;
}

int32_t warm_up_of(const ScheduleOptions& options, int32_t depth) {
  const int64_t m = options.micro_batches;
  switch (options.kind) {
    case PipelineSchedule::kGPipe:
      return options.micro_batches;
    case PipelineSchedule::kAuto:
    case PipelineSchedule::k1F1B:
    case PipelineSchedule::kZbH1:
      return static_cast<int32_t>(std::min(m, 1 + int64_t{depth} * std::max(options.gap, 1)));
  }
  return options.micro_batches;  // no enumerator: as safe as it is slow
}

int32_t in_flight_of(const ScheduleOptions& options, int32_t depth, int32_t deepest) {
  return warm_up_of(options, options.kind == PipelineSchedule::kZbH1 ? deepest : depth);
}

int32_t recorded_of(const ScheduleOptions& options, int32_t depth, int32_t deepest) {
  return owed_of(options, depth, deepest) + 1;
}

// Warm-up forwards, then backward and forward in turn, then the backwards that are left. GPipe is
// the case where all forwards are warm-up. Warm-ups never grow along an edge (d falls by at least
// one, or the consumer does not lead to the loss and has the least there is), which is why no
// stage waits for a forward that its consumer's backward is needed for. Parts of a backward that
// only make gradients of weights are nobody else's business.
std::vector<StageActions> make_schedule(const StageGraph& graph, const ScheduleOptions& options) {
  const int32_t m = options.micro_batches;
  const bool split = options.kind == PipelineSchedule::kZbH1;
  const std::vector<int32_t> depth = depth_to_loss(graph);
  const int32_t deepest = *std::max_element(depth.begin(), depth.end());
  std::vector<StageActions> schedule;
  for (int32_t stage = 0; stage < graph.stages; ++stage) {
    const int32_t warm_up = warm_up_of(options, depth[static_cast<size_t>(stage)]);
    const int32_t owed = owed_of(options, depth[static_cast<size_t>(stage)], deepest);
    StageWriter writer(graph, stage);
    int32_t forwards = 0, weights = 0;
    while (forwards < warm_up) writer.forward(forwards++);
    for (int32_t backward = 0; backward < m; ++backward) {
      writer.backward(backward, split ? ActionKind::kBackwardInput : ActionKind::kBackward);
      if (split && backward >= owed) writer.backward_weight(weights++);
      if (forwards < m) writer.forward(forwards++);
    }
    while (split && weights < m) writer.backward_weight(weights++);
    writer.step();
    schedule.push_back(writer.take());
  }
  return schedule;
}

std::vector<StageActions> make_eval_schedule(const StageGraph& graph, int32_t micro_batches) {
  std::vector<StageActions> schedule;
  for (int32_t stage = 0; stage < graph.stages; ++stage) {
    StageWriter writer(graph, stage);
    for (int32_t i = 0; i < micro_batches; ++i) writer.forward(i);
    schedule.push_back(writer.take());
  }
  return schedule;
}

int32_t gap_for(double latency_s, double transfer_s, double compute_s) {
  constexpr double kMaxGap = 4096;
  const double gap = std::ceil(1 + 2 * (latency_s + transfer_s) / compute_s);
  if (std::isnan(gap) || compute_s <= 0 || gap < 1) return 1;  // nothing measured yet
  return static_cast<int32_t>(std::min(gap, kMaxGap));
}

}  // namespace weft::job
