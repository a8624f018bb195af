#include "simulate/job_play.h"

#include <algorithm>
#include <set>

namespace weft::simulate {
namespace {

using job::ActionKind;

constexpr double kFree = -1;

double work_of(ActionKind kind, const broker::PipelineStage& stage) {
  switch (kind) {
    case ActionKind::kForward:
      return stage.forward_s;
    case ActionKind::kBackward:
      return stage.backward_s;
    case ActionKind::kBackwardInput:
      return (1 - broker::kWeightShare) * stage.backward_s;
    case ActionKind::kBackwardWeight:
      return broker::kWeightShare * stage.backward_s;
    default:
      return 0;
  }
}

bool sends(ActionKind kind) {
  return kind == ActionKind::kSendActivation || kind == ActionKind::kSendGradient;
}
bool receives(ActionKind kind) {
  return kind == ActionKind::kRecvActivation || kind == ActionKind::kRecvGradient;
}
bool is_gradient(ActionKind kind) {
  return kind == ActionKind::kSendGradient || kind == ActionKind::kRecvGradient;
}

}  // namespace

JobPlay::JobPlay(PlayPlan plan, int32_t slot, World& world, VirtualQueue& queue)
    : plan_(std::move(plan)),
      slot_(slot),
      world_(world),
      queue_(queue),
      stages_(plan_.peers.size()),
      micro_batches_(static_cast<size_t>(std::max(plan_.schedule.micro_batches, 1))),
      neighbours_(plan_.peers.size()) {
  for (const opdag::Edge& edge : plan_.pipeline.graph.edges) {
    add_way(edge.from, edge.to, static_cast<double>(edge.bytes));
    add_way(edge.to, edge.from, static_cast<double>(edge.bytes));
  }
  for (const broker::PipelineTie& tie : plan_.pipeline.ties) {
    add_way(tie.other, tie.owner, tie.bytes);
    add_way(tie.owner, tie.other, tie.bytes);
  }
  arrival_.assign(ways_.size() * 2 * micro_batches_, kFree);
  std::set<std::pair<int32_t, int32_t>> pairs;
  for (const MessageWay& way : ways_) pairs.insert({way.from, way.to});
  for (const auto& [from, to] : pairs) neighbours_[static_cast<size_t>(from)].push_back(to);
  add_ops();
  add_tie_ops();
}

void JobPlay::add_way(int32_t from, int32_t to, double bytes) {
  const auto peer = [&](int32_t stage) { return plan_.peers[static_cast<size_t>(stage)]; };
  ways_.push_back(
      {from, to, bytes, world_.route(peer(from), peer(to)), ways_.size() * 2 * micro_batches_});
}

void JobPlay::add_ops() {
  const auto schedule = job::make_schedule(plan_.pipeline.graph, plan_.schedule);
  for (size_t s = 0; s < stages_.size(); ++s) {
    for (const job::Action& action : schedule[s]) {
      const bool message = sends(action.kind) || receives(action.kind);
      Op op{OpKind::kCompute, action.kind, 0, action.micro_batch, 0};
      if (message) {
        op.kind = sends(action.kind) ? OpKind::kSend : OpKind::kReceive;
        op.way = 2 * action.edge + (is_gradient(action.kind) ? 1 : 0);
      } else {
        op.seconds = work_of(action.kind, plan_.pipeline.stages[s]);
        if (op.seconds <= 0) continue;
      }
      stages_[s].ops.push_back(op);
    }
  }
}

// Gradients of shared weights to their owners, then the weights back.
void JobPlay::add_tie_ops() {
  const auto first = static_cast<int32_t>(2 * plan_.pipeline.graph.edges.size());
  const auto& ties = plan_.pipeline.ties;
  const auto each = [&](int32_t back, OpKind kind, ActionKind action, bool at_owner) {
    for (size_t t = 0; t < ties.size(); ++t) {
      const int32_t stage = at_owner ? ties[t].owner : ties[t].other;
      stages_[static_cast<size_t>(stage)].ops.push_back(
          {kind, action, first + 2 * static_cast<int32_t>(t) + back, 0, 0});
    }
  };
  each(0, OpKind::kSend, ActionKind::kSendGradient, false);
  each(0, OpKind::kReceive, ActionKind::kRecvGradient, true);
  each(1, OpKind::kSend, ActionKind::kSendActivation, true);
  each(1, OpKind::kReceive, ActionKind::kRecvActivation, false);
}

void JobPlay::start(int32_t stage) {
  StagePlay& play = stages_[static_cast<size_t>(stage)];
  play.alive = true;
  play.step = plan_.first_step;
  draw(stage);
  queue_.at(queue_.now(), {slot_, stage});
}

void JobPlay::draw(int32_t stage) {
  if (plan_.jitter == 0) return;
  StagePlay& play = stages_[static_cast<size_t>(stage)];
  Rng rng(
      derive_seed({plan_.seed, static_cast<uint64_t>(stage), static_cast<uint64_t>(play.step)}));
  play.factor = log_normal(rng, plan_.jitter);
}

size_t JobPlay::slot_of(const Op& op, int64_t step) const {
  return ways_[static_cast<size_t>(op.way)].slots + static_cast<size_t>(step & 1) * micro_batches_ +
         static_cast<size_t>(op.micro_batch);
}

void JobPlay::advance(int32_t stage) {
  StagePlay& play = stages_[static_cast<size_t>(stage)];
  while (play.alive && play.step < plan_.steps) {
    if (play.position == play.ops.size()) {
      play.position = 0;
      ++play.step;
      draw(stage);
      on_step(stage, play.step);
      continue;
    }
    const Op& op = play.ops[play.position];
    if (op.kind == OpKind::kSend) {
      if (!send(op, stage)) return;
    } else if (op.kind == OpKind::kReceive) {
      if (!receive(op, stage)) return;
    } else {
      const double now = queue_.now(), seconds = op.seconds * play.factor;
      play.busy_s += seconds;
      ++play.position;
      if (on_span)
        on_span({stage, -1, op.action, play.step + 1, op.micro_batch, now, now + seconds});
      queue_.at(now + seconds, {slot_, stage});
      return;
    }
    ++play.position;
  }
}

// A message whose place is still taken by the one two steps before waits: workers have credits.
bool JobPlay::send(const Op& op, int32_t stage) {
  StagePlay& play = stages_[static_cast<size_t>(stage)];
  const size_t slot = slot_of(op, play.step);
  if (arrival_[slot] != kFree) {
    play.blocked_by = static_cast<int64_t>(slot);
    return false;
  }
  const MessageWay& way = ways_[static_cast<size_t>(op.way)];
  const double now = queue_.now();
  const World::Sent sent = world_.send(way.route, way.bytes, now);
  arrival_[slot] = sent.arrives_s;
  if (on_span) {
    on_span({stage, way.to, op.action, play.step + 1, op.micro_batch, now, sent.arrives_s});
  }
  StagePlay& receiver = stages_[static_cast<size_t>(way.to)];
  if (receiver.alive && receiver.waits_for == static_cast<int64_t>(slot)) {
    receiver.waits_for = -1;
    queue_.at(sent.arrives_s, {slot_, way.to});
  }
  return true;
}

bool JobPlay::receive(const Op& op, int32_t stage) {
  StagePlay& play = stages_[static_cast<size_t>(stage)];
  const size_t slot = slot_of(op, play.step);
  const double arrival = arrival_[slot];
  if (arrival == kFree) {
    play.waits_for = static_cast<int64_t>(slot);
    return false;
  }
  if (arrival > queue_.now()) {
    queue_.at(arrival, {slot_, stage});
    return false;
  }
  arrival_[slot] = kFree;
  const MessageWay& way = ways_[static_cast<size_t>(op.way)];
  StagePlay& sender = stages_[static_cast<size_t>(way.from)];
  if (sender.alive && sender.blocked_by == static_cast<int64_t>(slot)) {
    sender.blocked_by = -1;
    queue_.at(queue_.now(), {slot_, way.from});
  }
  return true;
}

}  // namespace weft::simulate
