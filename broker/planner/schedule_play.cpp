#include "broker/planner/schedule_play.h"

#include <algorithm>

#include "job/schedule_walk.h"

namespace weft::broker {
namespace {

using job::ActionKind;

constexpr double kFree = -1;

double work_of(ActionKind kind, const PipelineStage& stage) {
  switch (kind) {
    case ActionKind::kForward:
      return stage.forward_s;
    case ActionKind::kBackward:
      return stage.again_s() + stage.backward_s;
    case ActionKind::kBackwardInput:
      return stage.again_s() + (1 - kWeightShare) * stage.backward_s;
    case ActionKind::kBackwardWeight:
      return kWeightShare * stage.backward_s;
    default:
      return 0;
  }
}

// How the message of an action is sent; nullptr: as it is.
const Coded* coded_of(const Pipeline& pipeline, const job::Action& action) {
  if (pipeline.codecs.empty()) return nullptr;
  const EdgeCodecs& codecs = pipeline.codecs[static_cast<size_t>(action.edge)];
  return job::is_gradient(action.kind) ? &codecs.backward : &codecs.forward;
}

}  // namespace

SchedulePlay::SchedulePlay(const Pipeline& pipeline, const job::ScheduleOptions& schedule,
                           Host& host)
    : host_(host),
      micro_batches_(static_cast<size_t>(std::max(schedule.micro_batches, 1))),
      stages_(pipeline.stages.size()) {
  for (size_t e = 0; e < pipeline.graph.edges.size(); ++e) {
    const opdag::Edge& edge = pipeline.graph.edges[e];
    double there = static_cast<double>(edge.bytes), back = there;
    if (!pipeline.codecs.empty()) {
      there = pipeline.codecs[e].forward.wire_bytes;
      back = pipeline.codecs[e].backward.wire_bytes;
    }
    ways_.push_back({edge.from, edge.to, there});
    ways_.push_back({edge.to, edge.from, back});
  }
  add_ops(pipeline, schedule);
  add_update_ops(pipeline);
  arrival_.assign(ways_.size() * 2 * micro_batches_, kFree);
}

void SchedulePlay::add_ops(const Pipeline& pipeline, const job::ScheduleOptions& schedule) {
  const auto actions = job::make_schedule(pipeline.graph, schedule);
  for (size_t s = 0; s < stages_.size(); ++s) {
    std::vector<Op>& ops = stages_[s].ops;
    ops.reserve(actions[s].size());
    const auto add_work = [&](const job::Action& action, double seconds) {
      if (seconds <= 0) return;
      ops.push_back({Op::Kind::kCompute, action.kind, 0, action.micro_batch, seconds});
    };
    for (const job::Action& action : actions[s]) {
      if (!job::is_send(action.kind) && !job::is_receive(action.kind)) {
        add_work(action, work_of(action.kind, pipeline.stages[s]));
        continue;
      }
      const int32_t way = static_cast<int32_t>(job::channel_of(action));
      const Coded* coded = coded_of(pipeline, action);
      if (coded != nullptr && job::is_send(action.kind)) add_work(action, coded->encode_s);
      ops.push_back({job::is_send(action.kind) ? Op::Kind::kSend : Op::Kind::kReceive, action.kind,
                     way, action.micro_batch, 0});
      if (coded != nullptr && job::is_receive(action.kind)) add_work(action, coded->decode_s);
    }
  }
}

// Gradients of shared weights to their owners, norms to the loss stage and its answers, weights
// back (executor/runtime_step.cpp).
void SchedulePlay::add_update_ops(const Pipeline& pipeline) {
  const auto pair = [&](int32_t from, int32_t to, double bytes) {
    ways_.push_back({from, to, bytes});
    ways_.push_back({to, from, bytes});
    return static_cast<int32_t>(ways_.size()) - 2;
  };
  std::vector<int32_t> ties, told;
  for (const PipelineTie& tie : pipeline.ties)
    ties.push_back(pair(tie.other, tie.owner, tie.bytes));
  const int32_t loss = pipeline.graph.loss_stage;
  for (int32_t stage = 0; pipeline.agrees && stage < pipeline.graph.stages; ++stage) {
    if (stage != loss) told.push_back(pair(stage, loss, 0));  // a few numbers
  }
  // All messages of one kind: those who send first, so that nobody waits for one who waits.
  const auto exchange = [&](const std::vector<int32_t>& pairs, int32_t back, ActionKind send,
                            ActionKind receive) {
    for (const bool sending : {true, false}) {
      for (const int32_t first : pairs) {
        const PlayWay& way = ways_[static_cast<size_t>(first + back)];
        stages_[static_cast<size_t>(sending ? way.from : way.to)].ops.push_back(
            {sending ? Op::Kind::kSend : Op::Kind::kReceive, sending ? send : receive, first + back,
             0, 0});
      }
    }
  };
  exchange(ties, 0, ActionKind::kSendGradient, ActionKind::kRecvGradient);
  exchange(told, 0, ActionKind::kSendGradient, ActionKind::kRecvGradient);
  exchange(told, 1, ActionKind::kSendActivation, ActionKind::kRecvActivation);
  exchange(ties, 1, ActionKind::kSendActivation, ActionKind::kRecvActivation);
}

void SchedulePlay::start(int32_t stage, int64_t first, int64_t last, double now) {
  Stage& play = stages_[static_cast<size_t>(stage)];
  play.alive = true;
  play.step = first;
  play.last = last;
  host_.wake(stage, now);
}

size_t SchedulePlay::slot_of(const Op& op, int64_t step) const {
  return (2 * static_cast<size_t>(op.way) + static_cast<size_t>(step & 1)) * micro_batches_ +
         static_cast<size_t>(op.micro_batch);
}

void SchedulePlay::advance(int32_t stage, double now) {
  Stage& play = stages_[static_cast<size_t>(stage)];
  while (play.alive && play.step < play.last) {
    if (play.position == play.ops.size()) {
      play.position = 0;
      host_.stepped(stage, ++play.step, now);
      continue;
    }
    const Op& op = play.ops[play.position];
    if (op.kind == Op::Kind::kSend) {
      if (!send(stage, op, now)) return;
    } else if (op.kind == Op::Kind::kReceive) {
      if (!receive(stage, op, now)) return;
    } else {
      ++play.position;
      host_.wake(stage, now + host_.compute(stage, op, play.step + 1, now));
      return;
    }
    ++play.position;
  }
}

// A message whose place is still taken by the one two steps before waits: workers have credits.
bool SchedulePlay::send(int32_t stage, const Op& op, double now) {
  Stage& play = stages_[static_cast<size_t>(stage)];
  const size_t slot = slot_of(op, play.step);
  if (arrival_[slot] != kFree) {
    play.blocked_by = static_cast<int64_t>(slot);
    return false;
  }
  arrival_[slot] = host_.send(stage, op, play.step + 1, now);
  const int32_t to = ways_[static_cast<size_t>(op.way)].to;
  Stage& receiver = stages_[static_cast<size_t>(to)];
  if (receiver.alive && receiver.waits_for == static_cast<int64_t>(slot)) {
    receiver.waits_for = -1;
    host_.wake(to, std::max(now, arrival_[slot]));
  }
  return true;
}

bool SchedulePlay::receive(int32_t stage, const Op& op, double now) {
  Stage& play = stages_[static_cast<size_t>(stage)];
  const size_t slot = slot_of(op, play.step);
  const double arrival = arrival_[slot];
  if (arrival == kFree) {
    play.waits_for = static_cast<int64_t>(slot);
    return false;
  }
  if (arrival > now) {
    host_.wake(stage, arrival);
    return false;
  }
  arrival_[slot] = kFree;
  const int32_t from = ways_[static_cast<size_t>(op.way)].from;
  Stage& sender = stages_[static_cast<size_t>(from)];
  if (sender.alive && sender.blocked_by == static_cast<int64_t>(slot)) {
    sender.blocked_by = -1;
    host_.wake(from, now);
  }
  return true;
}

}  // namespace weft::broker
