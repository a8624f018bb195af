// The token game that proves a schedule free of deadlock.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "job/schedule.h"
#include "job/schedule_walk.h"

namespace weft::job {
namespace {

using opdag::Edge;
using opdag::StageGraph;

constexpr int32_t kMaxMicroBatch = 1 << 22;

// Messages of one edge in one direction.
struct Channel {
  std::vector<bool> sent, taken;  // by micro-batch
  int32_t in_flight = 0;
};

class TokenGame {
 public:
  TokenGame(const StageGraph& graph, const std::vector<StageActions>& schedule,
            const std::vector<EdgeCredits>& credits)
      : graph_(graph), schedule_(schedule), credits_(credits) {}

  Status play() {
    WEFT_TRY_STATUS(check_form());
    const std::vector<size_t> done = walk(schedule_, [this](size_t stage, const Action& action) {
      if (!blocker(stage, action).empty()) return false;
      perform(stage, action);
      return true;
    });
    WEFT_TRY_STATUS(check_finished(done));
    return check_taken();
  }

 private:
  Status check_form() {
    const size_t stages = static_cast<size_t>(std::max(graph_.stages, 0));
    if (schedule_.size() != stages || credits_.size() != graph_.edges.size()) {
      return make_error(
          Code::kInvalid,
          fmt::format("the schedule has {} stages and {} edge credits; the graph has "
                      "{} stages and {} edges",
                      schedule_.size(), credits_.size(), stages, graph_.edges.size()));
    }
    for (size_t stage = 0; stage < stages; ++stage) {
      for (const Action& action : schedule_[stage]) {
        WEFT_TRY_STATUS(check_action(stage, action));
      }
    }
    const std::vector<bool> none(micro_batches_of(schedule_), false);
    forwarded_.assign(stages, none);
    owed_.assign(stages, none);
    backwarded_.assign(stages, none);
    channels_.assign(2 * graph_.edges.size(), Channel{none, none, 0});
    return {};
  }

  Status check_action(size_t stage, const Action& action) const {
    bool valid = action.micro_batch >= 0 && action.micro_batch < kMaxMicroBatch;
    if (valid && (is_send(action.kind) || is_receive(action.kind))) {
      valid = action.edge >= 0 && static_cast<size_t>(action.edge) < graph_.edges.size();
      if (valid) {
        const Edge& edge = graph_.edges[static_cast<size_t>(action.edge)];
        const bool at_producer =
            action.kind == ActionKind::kSendActivation || action.kind == ActionKind::kRecvGradient;
        valid = (at_producer ? edge.from : edge.to) == static_cast<int32_t>(stage);
      }
    }
    if (valid) return {};
    return make_error(Code::kInvalid, fmt::format("stage {} cannot do the {}: no such edge or "
                                                  "micro-batch at this stage",
                                                  stage, describe(action)));
  }

  Channel& channel(const Action& action) { return channels_[channel_of(action)]; }

  // Why the action cannot run now; empty: it can.
  std::string blocker(size_t stage, const Action& action) {
    const size_t micro_batch = static_cast<size_t>(action.micro_batch);
    switch (action.kind) {
      case ActionKind::kRecvActivation:
      case ActionKind::kRecvGradient:
        return receive_blocker(channel(action), micro_batch);
      case ActionKind::kForward:
        return forward_blocker(stage, micro_batch);
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        return backward_blocker(stage, micro_batch);
      case ActionKind::kBackwardWeight:
        return owed_[stage][micro_batch] ? "" : "the backward of its inputs has not run, or it has";
      case ActionKind::kSendActivation:
        if (!forwarded_[stage][micro_batch]) return "its forward has not run";
        return send_blocker(channel(action), micro_batch,
                            credits_[static_cast<size_t>(action.edge)].activation);
      case ActionKind::kSendGradient:
        if (!backwarded_[stage][micro_batch]) return "its backward has not run";
        return send_blocker(channel(action), micro_batch,
                            credits_[static_cast<size_t>(action.edge)].gradient);
      case ActionKind::kStep:
        return step_blocker(stage);
    }
    return {};
  }

  std::string step_blocker(size_t stage) const {
    const auto owed = std::ranges::find(owed_[stage], true);
    if (owed == owed_[stage].end()) return {};
    return fmt::format("the backward of the weights of micro-batch {} has not run",
                       owed - owed_[stage].begin());
  }

  static std::string receive_blocker(const Channel& channel, size_t micro_batch) {
    if (!channel.sent[micro_batch]) return "the message is never sent";
    return channel.taken[micro_batch] ? "the message was taken before" : "";
  }

  static std::string send_blocker(const Channel& channel, size_t micro_batch, int32_t credit) {
    if (channel.sent[micro_batch]) return "it was sent before";
    if (channel.in_flight < credit) return {};
    return fmt::format("no credit: {} of {} messages in flight", channel.in_flight, credit);
  }

  std::string forward_blocker(size_t stage, size_t micro_batch) const {
    if (forwarded_[stage][micro_batch]) return "it has run before";
    for (size_t i = 0; i < graph_.edges.size(); ++i) {
      if (graph_.edges[i].to == static_cast<int32_t>(stage) &&
          !channels_[2 * i].taken[micro_batch]) {
        return fmt::format("its input on edge {} was not received", i);
      }
    }
    return {};
  }

  std::string backward_blocker(size_t stage, size_t micro_batch) const {
    if (backwarded_[stage][micro_batch]) return "it has run before";
    if (!forwarded_[stage][micro_batch]) return "its forward has not run";
    for (size_t i = 0; i < graph_.edges.size(); ++i) {
      const Edge& edge = graph_.edges[i];
      if (edge.from == static_cast<int32_t>(stage) && edge.needs_grad &&
          !channels_[2 * i + 1].taken[micro_batch]) {
        return fmt::format("its gradient on edge {} was not received", i);
      }
    }
    return {};
  }

  void perform(size_t stage, const Action& action) {
    const size_t micro_batch = static_cast<size_t>(action.micro_batch);
    switch (action.kind) {
      case ActionKind::kForward:
        forwarded_[stage][micro_batch] = true;
        break;
      case ActionKind::kBackwardInput:
        owed_[stage][micro_batch] = true;
        [[fallthrough]];
      case ActionKind::kBackward:
        backwarded_[stage][micro_batch] = true;
        break;
      case ActionKind::kBackwardWeight:
        owed_[stage][micro_batch] = false;
        break;
      case ActionKind::kStep:
        break;
      case ActionKind::kSendActivation:
      case ActionKind::kSendGradient:
        put(channel(action), micro_batch);
        break;
      case ActionKind::kRecvActivation:
      case ActionKind::kRecvGradient:
        take(channel(action), micro_batch);
        break;
    }
  }

  static void put(Channel& channel, size_t micro_batch) {
    channel.sent[micro_batch] = true;
    ++channel.in_flight;
  }
  static void take(Channel& channel, size_t micro_batch) {
    channel.taken[micro_batch] = true;
    --channel.in_flight;
  }

  Status check_finished(const std::vector<size_t>& done) {
    for (size_t stage = 0; stage < schedule_.size(); ++stage) {
      if (done[stage] == schedule_[stage].size()) continue;
      const Action& action = schedule_[stage][done[stage]];
      return make_error(Code::kInvalid,
                        fmt::format("deadlock: stage {} can never do the {} (action {}): {}", stage,
                                    describe(action), done[stage], blocker(stage, action)));
    }
    return {};
  }

  Status check_taken() const {
    for (size_t i = 0; i < channels_.size(); ++i) {
      if (channels_[i].in_flight == 0) continue;
      return make_error(Code::kInvalid, fmt::format("{} {} messages of edge {} are never received",
                                                    channels_[i].in_flight,
                                                    i % 2 == 0 ? "activation" : "gradient", i / 2));
    }
    return {};
  }

  const StageGraph& graph_;
  const std::vector<StageActions>& schedule_;
  const std::vector<EdgeCredits>& credits_;
  std::vector<std::vector<bool>> forwarded_, backwarded_;  // [stage][micro-batch]
  std::vector<std::vector<bool>> owed_;                    // gradients of weights, likewise
  std::vector<Channel> channels_;                          // by channel_of
};

}  // namespace

Status check_deadlock_free(const StageGraph& graph, const std::vector<StageActions>& schedule,
                           const std::vector<EdgeCredits>& credits) {
  return TokenGame(graph, schedule, credits).play();
}

Status check_runnable(const StageGraph& graph, const std::vector<StageActions>& schedule,
                      int32_t gap) {
  constexpr int32_t kUnlimited = std::numeric_limits<int32_t>::max();
  const std::vector<EdgeCredits> unlimited(graph.edges.size(), {kUnlimited, kUnlimited});
  WEFT_TRY_STATUS(check_deadlock_free(graph, schedule, unlimited));
  return check_deadlock_free(graph, schedule, credits_for(graph, schedule, gap));
}

}  // namespace weft::job
