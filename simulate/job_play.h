// JobPlay: the stages of one deployed job computing its steps in virtual time. Each plays the
// actions of the job's schedule in order, as a worker does; messages take the lines of the world,
// which other jobs use, too. A stage goes on to its next step without waiting for others. Single
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "broker/planner/pipeline.h"
#include "simulate/virtual_queue.h"
#include "simulate/world.h"

namespace weft::simulate {

// What a stage did, for traces and the books.
struct PlaySpan {
  int32_t stage = 0, other = -1;  // other: receiver of a message
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

class JobPlay {
 public:
  // slot: what the queue calls this run.
  JobPlay(PlayPlan plan, int32_t slot, World& world, VirtualQueue& queue);

  // A stage has finished a step (1-based, as workers count); it goes on by itself.
  std::function<void(int32_t stage, int64_t step)> on_step;
  std::function<void(const PlaySpan&)> on_span;  // empty: nobody looks

  void start(int32_t stage);
  void stop(int32_t stage) { stages_[static_cast<size_t>(stage)].alive = false; }
  // Goes on until it computes or waits; called by the queue.
  void advance(int32_t stage);

  const PlayPlan& plan() const { return plan_; }
  bool alive(int32_t stage) const { return stages_[static_cast<size_t>(stage)].alive; }
  double busy_s(int32_t stage) const { return stages_[static_cast<size_t>(stage)].busy_s; }
  // Stages that exchange messages with one.
  const std::vector<int32_t>& neighbours(int32_t stage) const {
    return neighbours_[static_cast<size_t>(stage)];
  }

 private:
  enum class OpKind : uint8_t { kCompute, kSend, kReceive };
  struct Op {
    OpKind kind = OpKind::kCompute;
    job::ActionKind action = job::ActionKind::kForward;
    int32_t way = 0, micro_batch = 0;
    double seconds = 0;
  };
  struct MessageWay {
    int32_t from = 0, to = 0;
    double bytes = 0;
    SimRoute route;
    size_t slots = 0;  // first of its messages: two steps of micro-batches
  };
  struct StagePlay {
    std::vector<Op> ops;  // of a step
    size_t position = 0;
    int64_t step = 0;
    double factor = 1, busy_s = 0;
    bool alive = false;
    int64_t waits_for = -1, blocked_by = -1;  // slots
  };

  void add_way(int32_t from, int32_t to, double bytes);
  void add_ops();
  void add_tie_ops();
  void draw(int32_t stage);
  size_t slot_of(const Op& op, int64_t step) const;
  bool send(const Op& op, int32_t stage);
  bool receive(const Op& op, int32_t stage);

  PlayPlan plan_;
  int32_t slot_;
  World& world_;
  VirtualQueue& queue_;
  std::vector<StagePlay> stages_;
  std::vector<MessageWay> ways_;  // [2 edge + back], then [2 tie + back]
  size_t micro_batches_ = 1;
  std::vector<double> arrival_;  // by slot; negative: free
  std::vector<std::vector<int32_t>> neighbours_;
};

}  // namespace weft::simulate
