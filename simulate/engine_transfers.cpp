// Weights to peers and checkpoints from them: pieces, each sent when the one before has passed, so
// that messages of running jobs find their turn between them.
#include <fmt/format.h>

#include <algorithm>

#include "simulate/engine.h"

namespace weft::simulate {

namespace {

// A piece keeps a line from others for about that long, as a fair share of a link would.
constexpr double kChunk_s = 0.02, kLeastChunk = 1 << 14, kMostChunks = 4096;

}  // namespace

void Engine::transfer(Transfer transfer) {
  double slowest = 0;  // seconds per byte
  for (const SimRoute::Hop& hop : transfer.route.hops) {
    slowest = std::max(slowest, hop.seconds_per_byte);
  }
  const double piece = slowest > 0 ? kChunk_s / slowest : transfer.left_bytes;
  transfer.chunk_bytes = std::max({kLeastChunk, piece, transfer.left_bytes / kMostChunks});
  move_chunk(std::make_shared<Transfer>(std::move(transfer)));
}

void Engine::move_chunk(const std::shared_ptr<Transfer>& moving) {
  const Daemon& end = daemon(moving->peer);
  if (!end.alive || end.life != moving->life || !moving->wanted()) return;
  if (moving->left_bytes <= 0) {
    moving->done();
    return;
  }
  const double bytes = std::min(moving->chunk_bytes, moving->left_bytes);
  moving->left_bytes -= bytes;
  const World::Sent sent = world_.send(moving->route, bytes, queue_.now());
  // The last piece counts when it has arrived.
  queue_.at(moving->left_bytes > 0 ? sent.passed_s : sent.arrives_s, [this, moving] {
    if (moving->progress) moving->progress();
    move_chunk(moving);
  });
}

void Engine::upload(int32_t peer, int64_t step) {
  Daemon& storing = daemon(peer);
  Work& work = *storing.work;
  const broker::Job& job = state_.jobs.at(work.job);
  const auto& train = models_[owned_.at(work.job).model].spec.train;
  const double states = train.optimizer == job::Optimizer::kSgd ? (train.momentum > 0 ? 1 : 0) : 2;
  const auto& stage = job.plan->stages[static_cast<size_t>(work.stage)];
  const double bytes = (1 + states) * static_cast<double>(stage.parameter_bytes);
  ++work.uploads;
  Transfer store{peer, storing.life, world_.to_broker(peer), bytes, 0, {}, {}, {}};
  store.wanted = [this, peer, name = work.job, epoch = work.epoch] {
    return held(peer, name, epoch) != nullptr;
  };
  store.progress = [this, peer, name = work.job, epoch = work.epoch,
                    told_s = queue_.now()]() mutable {
    const Work* uploading = held(peer, name, epoch);
    if (uploading == nullptr || queue_.now() - told_s < 10) return;
    told_s = queue_.now();
    report_alive(peer, *uploading);
  };
  store.done = [this, peer, name = work.job, epoch = work.epoch, step, bytes] {
    Work* uploaded = held(peer, name, epoch);
    if (uploaded == nullptr) return;
    const std::string digest =
        sha256_hex(fmt::format("{} {} {} {}", name, epoch, uploaded->stage, step));
    feed(broker::ShardStored{world_.peer(peer).id,
                             name,
                             epoch,
                             uploaded->stage,
                             step,
                             digest,
                             static_cast<uint64_t>(bytes),
                             {"weights"}});
    uploaded = held(peer, name, epoch);
    if (uploaded == nullptr) return;
    --uploaded->uploads;
    if (uploaded->last_step_done && uploaded->uploads == 0) {
      end_work(peer, broker::StagePhase::kFinished);
    }
  };
  transfer(std::move(store));
}

}  // namespace weft::simulate
