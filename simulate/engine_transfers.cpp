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

// One after the other, as a daemon stores them; a worker does not run ahead of too many.
void Engine::upload(int32_t peer, int64_t step) {
  Work& work = *daemon(peer).work;
  work.uploads.push_back(step);
  if (work.uploads.size() == 1) upload_next(peer);
}

void Engine::upload_next(int32_t peer) {
  Daemon& storing = daemon(peer);
  Work& work = *storing.work;
  const int64_t step = work.uploads.front();
  const double bytes = work.state_bytes;
  Transfer store{peer, storing.life, world_.to_broker(peer), bytes, 0, {}, {}, {}};
  store.wanted = [this, peer, name = work.job, epoch = work.epoch] {
    return held(peer, name, epoch) != nullptr;
  };
  store.progress = [this, peer, name = work.job, epoch = work.epoch,
                    told_s = queue_.now()]() mutable {
    const Work* uploading = held(peer, name, epoch);
    if (uploading == nullptr || queue_.now() - told_s < 10) return;
    told_s = queue_.now();
    report_alive(peer, *uploading, 0);
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
    const int64_t newest = uploaded->uploads.back();
    uploaded->uploads.pop_front();
    if (uploaded->waits_for_room) {
      uploaded->waits_for_room = false;
      const auto& run = runs_[static_cast<size_t>(uploaded->run)];
      if (run && uploaded->hold_step != newest) run->play->start(uploaded->stage, newest);
    }
    if (!uploaded->uploads.empty()) {
      upload_next(peer);
    } else if (uploaded->last_step_done) {
      end_work(peer, broker::StagePhase::kFinished);
    }
  };
  transfer(std::move(store));
}

}  // namespace weft::simulate
