// Pipeline schedules as pure functions: per stage a list of actions that one runtime executes.
// GPipe (Huang et al. 2019) and 1F1B with the latency gap rule (methods: w_s = 1 + d(s) g, where
// d(s) is the longest path from stage s to the loss stage; g = 1 is textbook 1F1B).
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "job/spec.h"
#include "opdag/cut.h"

namespace weft::job {

enum class ActionKind : uint8_t {
  kRecvActivation,  // takes one message of edge
  kForward,
  kSendActivation,
  kRecvGradient,
  kBackward,
  kSendGradient,
  kStep,            // tied gradients, clipping, optimizer, tied weights
};

struct Action {
  ActionKind kind = ActionKind::kStep;
  int32_t micro_batch = 0;
  int32_t edge = -1;  // of sends and receives
  bool operator==(const Action&) const = default;
};

using StageActions = std::vector<Action>;

struct ScheduleOptions {
  PipelineSchedule kind = PipelineSchedule::k1F1B;
  int32_t micro_batches = 1;
  int32_t gap = 1;
};

// One training step. Backward always visits micro-batches in ascending order, so that gradient
// sums do not depend on the schedule. Result[s]: actions of stage s.
std::vector<StageActions> make_schedule(const opdag::StageGraph& graph, const ScheduleOptions& options);

// One evaluation pass over `micro_batches`: receives, forwards and sends only.
std::vector<StageActions> make_eval_schedule(const opdag::StageGraph& graph, int32_t micro_batches);

// Longest path, in edges, from each stage to the loss stage (0 for the loss stage itself and for
// stages that do not lead to it).
std::vector<int32_t> depth_to_loss(const opdag::StageGraph& graph);

// The gap rule: g = ceil(1 + 2 (L + c) / T); L one-way latency, c transfer time of one message,
// T = compute time of one micro-batch on the slowest stage, all in seconds.
int32_t gap_for(double latency_s, double transfer_s, double compute_s);

// Messages each edge may have in flight, per direction: enough that no stage ever waits for a
// credit it would not also wait for with unlimited ones. credits[e] = {activation, gradient}.
struct EdgeCredits { int32_t activation = 1; int32_t gradient = 1; };
std::vector<EdgeCredits> credits_for(const opdag::StageGraph& graph, const std::vector<StageActions>& schedule);

// Plays the schedule as a token game where a send blocks without a credit; kInvalid names the
// first stage and action that can never run.
Status check_deadlock_free(const opdag::StageGraph& graph, const std::vector<StageActions>& schedule,
                           const std::vector<EdgeCredits>& credits);

}  // namespace weft::job
