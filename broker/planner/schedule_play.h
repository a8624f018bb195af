// SchedulePlay: stages that play a schedule's actions in order, in somebody's virtual time: the
// planner's, which judges a step (pipeline.h), and the simulator's, where many jobs share a clock
// and lines (simulate/job_play.h). It knows what waits for what; its host knows time and the
// network. A stage goes on to its next step without waiting for others. Single thread.
#pragma once

#include <cstdint>
#include <vector>

#include "broker/planner/pipeline.h"
#include "job/schedule.h"

namespace weft::broker {

// All messages of one kind: of an edge forward or back, or of a shared weight.
struct PlayWay {
  int32_t from = 0, to = 0;  // stages
  double bytes = 0;          // on the wire
};

class SchedulePlay {
 public:
  struct Op {
    enum class Kind : uint8_t { kCompute, kSend, kReceive } kind = Kind::kCompute;
    // Of kCompute, a message's: encoding or decoding it.
    job::ActionKind action = job::ActionKind::kForward;
    int32_t way = 0, micro_batch = 0;
    double seconds = 0;  // of kCompute
  };

  class Host {
   public:
    virtual ~Host() = default;
    // Asks for advance(stage, time); each stage has at most one such request out.
    virtual void wake(int32_t stage, double time_s) = 0;
    // A message leaves now; when it arrives.
    virtual double send(int32_t stage, const Op& op, int64_t step, double now) = 0;
    // A stage computes from now on; how long that really takes.
    virtual double compute(int32_t stage, const Op& op, int64_t step, double now) = 0;
    // A stage has finished a step (1-based); it may stop itself here.
    virtual void stepped(int32_t stage, int64_t step, double now) = 0;
  };

  SchedulePlay(const Pipeline& pipeline, const job::ScheduleOptions& schedule, Host& host);

  // [2 edge + back], [.. 2 tie + back], [.. 2 stage + back] of what the loss stage is told
  const std::vector<PlayWay>& ways() const { return ways_; }

  // Steps first + 1 to last; the host is asked to wake it.
  void start(int32_t stage, int64_t first, int64_t last, double now);
  void stop(int32_t stage) { stages_[static_cast<size_t>(stage)].alive = false; }
  bool alive(int32_t stage) const { return stages_[static_cast<size_t>(stage)].alive; }
  // Goes on until it computes or waits.
  void advance(int32_t stage, double now);

 private:
  struct Stage {
    std::vector<Op> ops;  // of a step
    size_t position = 0;
    int64_t step = 0, last = 0;
    bool alive = false;
    int64_t waits_for = -1, blocked_by = -1;  // slots
  };
  void add_ops(const Pipeline& pipeline, const job::ScheduleOptions& schedule);
  void add_update_ops(const Pipeline& pipeline);
  size_t slot_of(const Op& op, int64_t step) const;
  bool send(int32_t stage, const Op& op, double now);
  bool receive(int32_t stage, const Op& op, double now);

  Host& host_;
  size_t micro_batches_ = 1;
  std::vector<PlayWay> ways_;
  std::vector<Stage> stages_;
  // When the message of a way, step (odd or even) and micro-batch arrives; negative: its place is
  // free.
  std::vector<double> arrival_;
};

}  // namespace weft::broker
