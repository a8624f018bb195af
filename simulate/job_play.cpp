#include "simulate/job_play.h"

#include <set>

namespace weft::simulate {

JobPlay::JobPlay(PlayPlan plan, int32_t slot, World& world, VirtualQueue& queue)
    : plan_(std::move(plan)),
      slot_(slot),
      world_(world),
      queue_(queue),
      play_(plan_.pipeline, plan_.schedule, *this),
      neighbours_(plan_.peers.size()),
      factor_(plan_.peers.size(), 1.0),
      busy_s_(plan_.peers.size(), 0.0),
      busy_until_s_(plan_.peers.size(), queue.now()) {
  const auto peer = [&](int32_t stage) { return plan_.peers[static_cast<size_t>(stage)]; };
  std::set<std::pair<int32_t, int32_t>> pairs;
  for (const broker::PlayWay& way : play_.ways()) {
    routes_.push_back(world_.route(peer(way.from), peer(way.to)));
    pairs.insert({way.from, way.to});
  }
  for (const auto& [from, to] : pairs) neighbours_[static_cast<size_t>(from)].push_back(to);
}

void JobPlay::start(int32_t stage, int64_t done) {
  draw(stage, done);
  play_.start(stage, done, plan_.steps, queue_.now());
}

void JobPlay::draw(int32_t stage, int64_t step) {
  if (plan_.jitter == 0) return;
  Rng rng(derive_seed({plan_.seed, static_cast<uint64_t>(stage), static_cast<uint64_t>(step)}));
  factor_[static_cast<size_t>(stage)] = log_normal(rng, plan_.jitter);
}

double JobPlay::send(int32_t stage, const Op& op, int64_t step, double now) {
  const auto at = static_cast<size_t>(op.way);
  const broker::PlayWay& way = play_.ways()[at];
  const double arrives_s = world_.send(routes_[at], way.bytes, now).arrives_s;
  if (on_span) on_span({stage, way.to, op.action, step, op.micro_batch, now, arrives_s});
  return arrives_s;
}

double JobPlay::compute(int32_t stage, const Op& op, int64_t step, double now) {
  const auto at = static_cast<size_t>(stage);
  const double seconds = op.seconds * factor_[at] / world_.speed_share(plan_.peers[at]);
  busy_s_[at] += seconds;
  busy_until_s_[at] = now + seconds;
  if (on_span) on_span({stage, -1, op.action, step, op.micro_batch, now, now + seconds});
  return seconds;
}

void JobPlay::stepped(int32_t stage, int64_t step, double) {
  draw(stage, step);
  on_step(stage, step);
}

}  // namespace weft::simulate
