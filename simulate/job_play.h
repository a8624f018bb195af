// JobPlay: the stages of one deployed job computing its steps in virtual time, as the planner plays
// them (broker/planner/schedule_play.h), over the lines of a world that other jobs use, too. Single
// thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "broker/planner/schedule_play.h"
#include "simulate/virtual_queue.h"
#include "simulate/world.h"

namespace weft::simulate {

// What a stage did, for traces and the books.
struct PlaySpan {
  int32_t stage = 0, other = -1;  // other: receiver of a message; a message without: its codec
  job::ActionKind kind = job::ActionKind::kForward;
  int64_t step = 0;
  int32_t micro_batch = 0;
  double begin_s = 0, end_s = 0;
};

struct PlayPlan {
  broker::Pipeline pipeline;
  job::ScheduleOptions schedule;
  std::vector<int32_t> peers;  // of the world, by stage
  int64_t first_step = 0;      // done before
  int64_t steps = 0;           // to be done in all
  double jitter = 0;           // Scenario::compute_jitter
  uint64_t seed = 0;
};

class JobPlay final : private broker::SchedulePlay::Host {
 public:
  // slot: what the queue calls this run.
  JobPlay(PlayPlan plan, int32_t slot, World& world, VirtualQueue& queue);

  // A stage has finished a step (1-based, as workers count); it goes on by itself.
  std::function<void(int32_t stage, int64_t step)> on_step;
  std::function<void(const PlaySpan&)> on_span;  // empty: nobody looks

  void start(int32_t stage) { start(stage, plan_.first_step); }
  // Steps after that one; of a stage that was stopped behind it, too.
  void start(int32_t stage, int64_t done);
  void stop(int32_t stage) { play_.stop(stage); }
  // Goes on until it computes or waits; called by the queue.
  void advance(int32_t stage) { play_.advance(stage, queue_.now()); }

  const PlayPlan& plan() const { return plan_; }
  bool alive(int32_t stage) const { return play_.alive(stage); }
  // It has computed until now; what is under way counts as far as it is.
  double busy_s(int32_t stage) const {
    const auto at = static_cast<size_t>(stage);
    return busy_s_[at] - std::max(0.0, busy_until_s_[at] - queue_.now());
  }
  // Since it computed last; 0 while it does.
  double idle_s(int32_t stage) const {
    return std::max(0.0, queue_.now() - busy_until_s_[static_cast<size_t>(stage)]);
  }
  // Stages that exchange messages with one.
  const std::vector<int32_t>& neighbours(int32_t stage) const {
    return neighbours_[static_cast<size_t>(stage)];
  }

 private:
  using Op = broker::SchedulePlay::Op;
  void wake(int32_t stage, double time_s) override { queue_.at(time_s, {slot_, stage}); }
  double send(int32_t stage, const Op& op, int64_t step, double now) override;
  double compute(int32_t stage, const Op& op, int64_t step, double now) override;
  void stepped(int32_t stage, int64_t step, double now) override;
  void draw(int32_t stage, int64_t step);

  PlayPlan plan_;
  int32_t slot_;
  World& world_;
  VirtualQueue& queue_;
  broker::SchedulePlay play_;
  std::vector<SimRoute> routes_;  // by way
  std::vector<std::vector<int32_t>> neighbours_;
  std::vector<double> factor_, busy_s_, busy_until_s_;  // by stage
};

}  // namespace weft::simulate
