// Daemons and workers, as the coordinator sees them: who is there, who prepares, connects, starts,
// stops, and who notices that another is silent.
#include <fmt/format.h>

#include <algorithm>

#include "simulate/engine.h"

namespace weft::simulate {

using broker::StagePhase;

namespace {

constexpr double kWorkerStart_s = 1;  // a process that loads libtorch and reads its graph
constexpr double kAliveEvery_s = 10, kWorkerAliveEvery_s = 5;

broker::ReportedAssignment reported(const std::string& job, uint32_t epoch, int32_t stage,
                                    StagePhase phase) {
  return {job, epoch, stage, std::string(broker::phase_name(phase))};
}

}  // namespace

Engine::Work* Engine::held(int32_t peer, const std::string& job, uint32_t epoch) {
  auto& work = daemon(peer).work;
  return work && work->job == job && work->epoch == epoch && !over(*work) ? &*work : nullptr;
}

void Engine::start_daemon(int32_t peer) {
  Daemon& starting = daemon(peer);
  starting = Daemon{};
  starting.alive = true;
  starting.session = ++sessions_;
  starting.life = ++lives_;
  starting.heard_s = queue_.now();
  starting.speaks_s =
      world_.reachable_at(world_.peer(peer).site, world_.broker_site(), queue_.now()) +
      world_.latency_to_broker(peer);
  outcome_.most_peers_at_once = std::max(outcome_.most_peers_at_once, ++present_);
  hello(peer);
}

void Engine::hello(int32_t peer) {
  const SimPeer& known = world_.peer(peer);
  broker::PeerHello hello{known.id, daemon(peer).session, {}, {}};
  hello.capabilities.cores = known.device.cores;
  hello.capabilities.device = "cpu";  // whose workers tell of the step they report
  hello.capabilities.memory_bytes = known.device.memory_bytes;
  if (const auto& work = daemon(peer).work; work && !over(*work)) {
    hello.assignments.push_back(reported(work->job, work->epoch, work->stage, work->phase));
  }
  tell_broker(peer, std::move(hello));
}

// Heartbeats are never repeated: one that cannot get through is lost.
void Engine::beat(size_t batch) {
  const double now = queue_.now();
  for (size_t i = batch; i < daemons_.size(); i += kBeats) {
    Daemon& beating = daemons_[i];
    const auto peer = static_cast<int32_t>(i);
    if (!beating.alive || now < beating.speaks_s) continue;
    if (world_.cut_from_broker(peer, now)) {
      // Its workers are not left computing for nobody.
      if (now - beating.heard_s > scenario_.broker.broker_timeout_s && beating.work &&
          !over(*beating.work)) {
        end_work(peer, StagePhase::kStopped);
      }
      continue;
    }
    beating.heard_s = now;
    broker::PeerHeartbeat heartbeat{
        world_.peer(peer).id, beating.session, ++beating.sequence, false, {}};
    if (beating.work) {
      const Work& work = *beating.work;
      if (work.run >= 0 && !over(work) && now - beating.alive_s >= kWorkerAliveEvery_s &&
          runs_[static_cast<size_t>(work.run)]) {
        beating.alive_s = now;
        const JobPlay& play = *runs_[static_cast<size_t>(work.run)]->play;
        report_alive(peer, work, work.uploads.empty() ? play.idle_s(work.stage) : 0);
      }
      heartbeat.assignments.push_back(reported(work.job, work.epoch, work.stage, work.phase));
    }
    feed(heartbeat);
  }
  queue_.after(scenario_.broker.heartbeat_s, [this, batch] { beat(batch); });
}

void Engine::update(int32_t peer, const Work& work, const broker::Failure& failure) {
  tell_broker(peer,
              broker::StageUpdate{world_.peer(peer).id, work.job, work.epoch, work.stage,
                                  std::string(broker::phase_name(work.phase)), "", 1, failure});
}

void Engine::report_alive(int32_t peer, const Work& work, double idle_s) {
  broker::StageReport alive{world_.peer(peer).id,
                            work.job,
                            work.epoch,
                            work.stage,
                            broker::StageReport::Kind::kAlive,
                            0,
                            {},
                            {},
                            idle_s};
  tell_broker(peer, std::move(alive));
}

// The graph is small; weights come whole, of a resumed job with the optimizer's state.
void Engine::prepare(int32_t peer, const broker::SendPrepare& effect) {
  Daemon& preparing = daemon(peer);
  if (preparing.work && !over(*preparing.work)) return;
  const auto job = state_.jobs.find(effect.job);
  if (job == state_.jobs.end() || !job->second.plan || job->second.epoch != effect.epoch) return;
  const auto& stage = job->second.plan->stages[static_cast<size_t>(effect.stage)];
  const auto& train = models_[owned_.at(effect.job).model].spec.train;
  const double states = train.optimizer == job::Optimizer::kSgd ? (train.momentum > 0 ? 1 : 0) : 2;
  Work work;
  work.job = effect.job;
  work.epoch = effect.epoch;
  work.stage = effect.stage;
  const auto weights = static_cast<double>(stage.parameter_bytes);
  work.state_bytes = (1 + states) * weights;
  const double bytes = job->second.resume_step > 0 ? work.state_bytes : weights;
  preparing.work = std::move(work);
  Transfer fetch{peer, preparing.life, world_.from_broker(peer), bytes, 0, {}, {}, {}};
  fetch.wanted = [this, peer, effect] { return held(peer, effect.job, effect.epoch) != nullptr; };
  fetch.progress = [this, peer, effect, told_s = queue_.now()]() mutable {
    const Work* work = held(peer, effect.job, effect.epoch);
    if (work == nullptr || queue_.now() - told_s < kAliveEvery_s) return;
    told_s = queue_.now();
    report_alive(peer, *work, 0);
  };
  fetch.done = [this, peer, effect] {
    const uint64_t life = daemon(peer).life;
    queue_.after(kWorkerStart_s, [this, peer, effect, life] {
      Work* work = held(peer, effect.job, effect.epoch);
      if (daemon(peer).life != life || work == nullptr) return;
      work->phase = StagePhase::kListening;
      update(peer, *work);
    });
  };
  transfer(std::move(fetch));
}

// TCP and TLS take three ways each way to the farthest neighbour.
void Engine::connect(int32_t peer, const broker::SendConnect& effect) {
  Work* work = held(peer, effect.job, effect.epoch);
  if (work == nullptr || work->phase != StagePhase::kListening) return;
  const int32_t slot = run_of(effect.job, effect.epoch);
  if (slot < 0) return;
  const JobPlay& play = *runs_[static_cast<size_t>(slot)]->play;
  double farthest = 0;
  for (const int32_t other : play.neighbours(effect.stage)) {
    const int32_t neighbour = play.plan().peers[static_cast<size_t>(other)];
    farthest = std::max(farthest, world_.route(peer, neighbour).latency_s);
  }
  const uint64_t life = daemon(peer).life;
  queue_.after(6 * farthest, [this, peer, effect, life] {
    Work* linked = held(peer, effect.job, effect.epoch);
    if (daemon(peer).life != life || linked == nullptr) return;
    linked->phase = StagePhase::kReady;
    update(peer, *linked);
  });
}

void Engine::start(int32_t peer, const broker::SendStart& effect) {
  Work* work = held(peer, effect.job, effect.epoch);
  if (work == nullptr || work->phase != StagePhase::kReady) return;
  const int32_t slot = run_of(effect.job, effect.epoch);
  if (slot < 0) return;
  work->phase = StagePhase::kRunning;
  work->run = slot;
  update(peer, *work);
  Run& run = *runs_[static_cast<size_t>(slot)];
  const double now = queue_.now();
  if (run.started_s < 0) {
    run.started_s = now;
    Owned& owned = owned_.at(run.job);
    if (owned.outcome.started_s < 0) owned.outcome.started_s = now;
    ++owned.outcome.deployments;
  }
  run.stage_started_s[static_cast<size_t>(effect.stage)] = now;
  ++run.computing;
  run.play->start(effect.stage);
}

// A stage that is past the step takes no notice; one that waits goes on when told another.
void Engine::hold(int32_t peer, const broker::SendHold& effect) {
  Work* work = held(peer, effect.job, effect.epoch);
  if (work == nullptr || work->run < 0) return;
  const auto& run = runs_[static_cast<size_t>(work->run)];
  const int64_t waits_behind = work->hold_step;
  work->hold_step = effect.step;
  if (!run || run->play->alive(work->stage) || work->waits_for_room || waits_behind == 0) return;
  run->play->start(work->stage, waits_behind);
}

void Engine::end_work(int32_t peer, StagePhase phase, const broker::Failure& failure) {
  Work& work = *daemon(peer).work;
  const int32_t slot = work.run;
  work.phase = phase;
  update(peer, work, failure);
  if (slot >= 0 && runs_[static_cast<size_t>(slot)]) stage_over(slot, work.stage);
}

void Engine::neighbours_notice(int32_t slot, int32_t stage, double after_s) {
  queue_.after(after_s, [this, slot, stage] {
    const auto& run = runs_[static_cast<size_t>(slot)];
    if (!run) return;
    const std::vector<int32_t> neighbours = run->play->neighbours(stage);
    for (const int32_t other : neighbours) {
      if (!runs_[static_cast<size_t>(slot)]) return;
      const int32_t peer = run->play->plan().peers[static_cast<size_t>(other)];
      const Work* work = held(peer, run->job, run->epoch);
      if (work == nullptr || !(run->play->alive(other) || work->waits_for_room)) continue;
      const std::string lost =
          world_.peer(run->play->plan().peers[static_cast<size_t>(stage)]).name;
      end_work(peer, StagePhase::kFailed,
               {"unavailable", fmt::format("stage {} on {} does not answer", stage, lost), "",
                other, world_.peer(peer).id});
    }
  });
}

// No word to anybody.
void Engine::vanish(int32_t peer) {
  Daemon& gone = daemon(peer);
  if (!gone.alive) return;
  const std::optional<Work> work = gone.work;
  gone = Daemon{};
  gone.life = ++lives_;
  --present_;
  ++outcome_.departures;
  if (!work || over(*work) || work->run < 0) return;
  if (!runs_[static_cast<size_t>(work->run)]) return;
  neighbours_notice(work->run, work->stage, scenario_.link_timeout_s);
  stage_over(work->run, work->stage);
}

// Stops its work, then says goodbye.
void Engine::leave(int32_t peer) {
  Daemon& leaving = daemon(peer);
  if (!leaving.alive) return;
  if (leaving.work && !over(*leaving.work)) {
    const int32_t slot = leaving.work->run, stage = leaving.work->stage;
    end_work(peer, StagePhase::kStopped);
    if (slot >= 0 && runs_[static_cast<size_t>(slot)]) neighbours_notice(slot, stage, 0.1);
  }
  tell_broker(peer, broker::PeerLeaving{world_.peer(peer).id, "its owner wants it back"});
  leaving = Daemon{};
  leaving.life = ++lives_;
  --present_;
  ++outcome_.departures;
  ++outcome_.farewells;
}

}  // namespace weft::simulate
