// Pipeline schedules as pure functions: per stage a list of actions that one runtime executes.
// GPipe (Huang et al. 2019), 1F1B with the latency gap rule (methods: w_s = 1 + d(s) g, where
// d(s) is the longest path from stage s to the loss stage; g = 1 is textbook 1F1B), and ZB-H1 (Qi
// et al. 2023, "Zero Bubble Pipeline Parallelism") with the same rule: the backward in two parts,
// where the gradients of the weights wait for time that would otherwise be idle.
#pragma once

#include <cstdint>
#include <string>
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
  kBackward,        // gradients of inputs and weights
  kBackwardInput,   // of what goes back to earlier stages only
  kBackwardWeight,  // the rest of it
  kSendGradient,
  kStep,  // tied gradients, clipping, optimizer, tied weights
};

struct Action {
  ActionKind kind = ActionKind::kStep;
  int32_t micro_batch = 0;
  int32_t edge = -1;  // of sends and receives
  bool operator==(const Action&) const = default;
};

// "forward of micro-batch 3", "receive of the gradient of micro-batch 3 on edge 1".
std::string describe(const Action& action);

using StageActions = std::vector<Action>;

struct ScheduleOptions {
  PipelineSchedule kind = PipelineSchedule::k1F1B;
  int32_t micro_batches = 1;
  int32_t gap = 1;
};

// Forwards of a stage before its first backward. depth: as depth_to_loss says; kAuto counts as
// 1F1B.
int32_t warm_up_of(const ScheduleOptions& options, int32_t depth);

// The most micro-batches of which a stage keeps activations at once. deepest: the largest depth of
// any stage. ZB-H1 lets every stage keep as many as 1F1B the first: what a stage nearer the loss
// does not need for its warm-up, it may owe in gradients of weights.
int32_t in_flight_of(const ScheduleOptions& options, int32_t depth, int32_t deepest);

// Of those, the most that a stage which runs forwards again has recorded at once: the one whose
// backward runs, and those it owes gradients of weights.
int32_t recorded_of(const ScheduleOptions& options, int32_t depth, int32_t deepest);

// One training step. Backward always visits micro-batches in ascending order, and so do its parts:
// gradient sums do not depend on the schedule. Result[s]: actions of stage s.
std::vector<StageActions> make_schedule(const opdag::StageGraph& graph,
                                        const ScheduleOptions& options);

// One evaluation pass over `micro_batches`: receives, forwards and sends only.
std::vector<StageActions> make_eval_schedule(const opdag::StageGraph& graph, int32_t micro_batches);

// Longest path, in edges, from each stage to the loss stage (0 for the loss stage itself and for
// stages that do not lead to it).
std::vector<int32_t> depth_to_loss(const opdag::StageGraph& graph);

// The gap rule: g = ceil(1 + 2 (L + c) / T); L one-way latency, c transfer time of one message,
// T = compute time of one micro-batch on the slowest stage, all in seconds.
int32_t gap_for(double latency_s, double transfer_s, double compute_s);

// Messages each edge may have in flight, per direction: enough that no stage ever waits for a
// credit it would not also wait for with unlimited ones, where ways take the same time and
// kUsefulCredits are enough. credits[e] = {activation, gradient}.
//
// Derivation. A credit is out from the send until the news of the receipt is back, one latency
// after the receive action. How many are out at once depends on how long ways and computations
// take; but a sender that was told of the receipt, by whatever chain of messages, was told no
// sooner than the credit came back, if ways take the same time. So a schedule can use no more
// credits than the sends by which a stage is ahead of receipts it was told of: counted over the
// order of its actions, this holds for all times at once. Of that kUsefulCredits are given, or, if
// more are out in it, what one play with unlimited credits has out, every forward and backward
// taking one unit and messages (g - 1), the latency for which the gap rule chooses g, since T = 2
// and g = 1 + 2 L / T. One more covers the message being written while the credit before it
// travels. At least 2, never more than the edge has messages. Over a skip from stage 0 to stage 7
// of 8, messages wait while the chain catches up, which takes 8 where there is no latency at all.
// The play itself is a legal order of the token game below with these credits, and since the game
// is confluent (an action that can run stays able to run until it does), no timing of machines and
// links can deadlock it.
//
// gap: the plan's, whatever the schedule: GPipe has none of its own, and where a step has fewer
// micro-batches than the gap the schedule shows none.
inline constexpr int32_t kUsefulCredits = 64;
struct EdgeCredits {
  int32_t activation = 1;
  int32_t gradient = 1;
};
std::vector<EdgeCredits> credits_for(const opdag::StageGraph& graph,
                                     const std::vector<StageActions>& schedule, int32_t gap);

// Plays the schedule as a token game where a send blocks without a credit; kInvalid names the
// first stage and action that can never run, and why: no credit, a message never sent, a forward
// without its inputs, a backward without its forward, a message nobody takes.
Status check_deadlock_free(const opdag::StageGraph& graph,
                           const std::vector<StageActions>& schedule,
                           const std::vector<EdgeCredits>& credits);

// The same with the credits the workers will have (credits_for), which must not be asked for of a
// schedule that stands still even without any limit: such a one is refused first.
Status check_runnable(const opdag::StageGraph& graph, const std::vector<StageActions>& schedule,
                      int32_t gap);

}  // namespace weft::job
