#include "simulate/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "broker/coordinator/replan_inputs.h"

namespace weft::simulate {

using broker::Event;

Engine::Engine(const Scenario& scenario, const std::vector<JobModel>& models,
               const SimulateOptions& options)
    : scenario_(scenario),
      models_(models),
      options_(options),
      world_(scenario),
      daemons_(world_.peers().size()),
      absent_(world_.peers().size(), false) {
  outcome_.seed = scenario.seed;
  outcome_.peers = static_cast<int64_t>(world_.peers().size());
  const BrokerSpec& broker = scenario.broker;
  coordinator_.suspect_ms = static_cast<int64_t>(1e3 * broker.suspect_s);
  coordinator_.gone_ms = static_cast<int64_t>(1e3 * broker.gone_s);
  coordinator_.plan = [this](const broker::Job& job, const std::vector<const broker::Peer*>& idle) {
    return plan(job, idle);
  };
  coordinator_.replan = [this](const broker::Job& job,
                               const std::vector<const broker::Peer*>& peers,
                               double unproven) { return replan(job, peers, unproven); };
  coordinator_.speeds = [this](const std::vector<const broker::Peer*>& peers) {
    return broker::promised_speeds(peers, world_.known(), {});
  };
  queue_.on_stage = [this](VirtualQueue::Stage at) {
    const auto& run = runs_[static_cast<size_t>(at.run)];
    if (run) run->play->advance(at.stage);
  };
}

int64_t Engine::now_ms() const {
  return static_cast<int64_t>(std::floor(1e3 * queue_.now()));
}

void Engine::record(const std::string& kind, const std::string& job, const std::string& message) {
  const std::string line = fmt::format("{} {} {} {}\n", now_ms(), job, kind, message);
  hash_.update(std::as_bytes(std::span(line.data(), line.size())));
  if (!options_.on_event) return;
  const auto known = owned_.find(job);
  options_.on_event(queue_.now(), known == owned_.end() ? job : known->second.outcome.name, kind,
                    message);
}

void Engine::feed(const Event& event) {
  for (const broker::Effect& effect : broker::apply(state_, event, now_ms(), coordinator_)) {
    std::visit([this](const auto& body) { act(body); }, effect);
  }
}

void Engine::tell_broker(int32_t peer, Event event) {
  const double now = queue_.now(), latency_s = world_.latency_to_broker(peer);
  const int32_t site = world_.peer(peer).site;
  // The control plane repeats what was not acknowledged until it gets through.
  queue_.at(world_.reachable_at(site, world_.broker_site(), now) + latency_s,
            [this, event = std::move(event)] { feed(event); });
}

void Engine::tell_peer(int32_t peer, std::function<void()> call) {
  const double now = queue_.now(), latency_s = world_.latency_to_broker(peer);
  const int32_t site = world_.peer(peer).site;
  const uint64_t life = daemon(peer).life;
  queue_.at(world_.reachable_at(world_.broker_site(), site, now) + latency_s,
            [this, peer, life, call = std::move(call)] {
              if (daemon(peer).alive && daemon(peer).life == life) call();
            });
}

void Engine::tick() {
  feed(broker::Tick{});
  stuck_ = nothing_can_change();
  queue_.after(scenario_.broker.tick_s, [this] { tick(); });
}

// Every job waits, has waited for long, and nobody comes, goes or is cut off any more.
bool Engine::nothing_can_change() const {
  constexpr double kLong_s = 300;
  if (!scenario_.churn.empty() || queue_.now() - changed_s_ < kLong_s) return false;
  for (const SlowdownSpec& slow : scenario_.slowdowns) {
    const double last_s = slow.at_s + slow.every_s * static_cast<double>(slow.times - 1);
    if (queue_.now() < last_s + slow.for_s + kLong_s) return false;
  }
  for (const PartitionSpec& cut : scenario_.partitions) {
    if (queue_.now() < cut.at_s + cut.for_s + kLong_s) return false;
  }
  return std::all_of(owned_.begin(), owned_.end(), [&](const auto& entry) {
    const Owned& owned = entry.second;
    if (!owned.submitted) return false;
    return owned.phase == broker::JobPhase::kQueued ||
           (broker::ended(owned.phase) && owned.outcome.ended_s >= 0 &&
            (owned.phase != broker::JobPhase::kFailed || !scenario_.resume_s));
  });
}

Result<Outcome> Engine::run() {
  const double began = options_.seconds ? options_.seconds() : 0;
  start_churn();
  for (size_t i = 0; i < daemons_.size(); ++i) {
    const auto peer = static_cast<int32_t>(i);
    const SimPeer& known = world_.peer(peer);
    feed(broker::PeerJoined{known.id, known.name, "curve-" + known.id, "key-" + known.id});
    if (!absent_[i]) start_daemon(peer);
  }
  for (size_t batch = 0; batch < kBeats; ++batch) {
    queue_.after(scenario_.broker.heartbeat_s * static_cast<double>(batch) / kBeats,
                 [this, batch] { beat(batch); });
  }
  tick();
  submit_jobs();
  start_partitions();
  start_slowdowns();
  while (unended_ > 0 && !stuck_ && queue_.step(scenario_.most_s)) {
  }
  outcome_.all_ended = unended_ == 0;
  outcome_.ended_s = outcome_.all_ended || stuck_ ? queue_.now() : scenario_.most_s;
  if (stuck_) outcome_.notes.push_back("every job waits and nothing can change that: ended early");
  outcome_.wall_s = options_.seconds ? options_.seconds() - began : 0;
  return finish();
}

Outcome Engine::finish() {
  for (size_t slot = 0; slot < runs_.size(); ++slot) {
    if (!runs_[slot]) continue;
    const size_t stages = runs_[slot]->play->plan().peers.size();
    for (size_t stage = 0; stage < stages; ++stage) {
      const auto s = static_cast<int32_t>(stage);
      if (runs_[slot]->play->alive(s)) stage_over(static_cast<int32_t>(slot), s);
    }
  }
  double held = 0, busy = 0;
  for (const std::string& id : order_) {
    outcome_.jobs.push_back(outcome_of(id));
    const JobOutcome& job = outcome_.jobs.back();
    held += owned_.at(id).held_s;
    busy += owned_.at(id).busy_s;
    outcome_.steps_lost += job.computed - job.steps;
    outcome_.migrations += job.migrations;
    record("outcome", id,
           fmt::format("{} {} {} {} {}", job.phase, job.steps, job.computed, job.step_s, job.busy));
  }
  outcome_.notes.insert(outcome_.notes.end(), scenario_.notes.begin(), scenario_.notes.end());
  outcome_.compression = scenario_.compression.name;
  if (!scenario_.compression.assumed.empty()) {
    outcome_.notes.push_back("compression is assumed, not measured: " +
                             scenario_.compression.assumed);
  }
  outcome_.utilization = held > 0 ? busy / held : 0;
  outcome_.bytes_sent = world_.bytes_sent();
  outcome_.bytes_between_sites = world_.bytes_between_sites();
  outcome_.events = queue_.done();
  record("outcome", "", fmt::format("{} {}", outcome_.bytes_sent, outcome_.events));
  outcome_.hash = hash_.finish_hex();
  return outcome_;
}

// ---- effects -----------------------------------------------------------------------------------

void Engine::act(const broker::SendWelcome& effect) {
  if (!effect.hello_wanted) return;
  const int32_t peer = world_.index_of(effect.peer);
  tell_peer(peer, [this, peer] { hello(peer); });
}

void Engine::act(const broker::SendPrepare& effect) {
  const int32_t peer = world_.index_of(effect.peer);
  tell_peer(peer, [this, peer, effect] { prepare(peer, effect); });
}

void Engine::act(const broker::SendConnect& effect) {
  const int32_t peer = world_.index_of(effect.peer);
  tell_peer(peer, [this, peer, effect] { connect(peer, effect); });
}

void Engine::act(const broker::SendStart& effect) {
  const int32_t peer = world_.index_of(effect.peer);
  tell_peer(peer, [this, peer, effect] { start(peer, effect); });
}

void Engine::act(const broker::SendStop& effect) {
  const int32_t peer = world_.index_of(effect.peer);
  tell_peer(peer, [this, peer, effect] {
    if (held(peer, effect.job, effect.epoch) != nullptr) {
      end_work(peer, broker::StagePhase::kStopped);
    }
  });
}

void Engine::act(const broker::SendHold& effect) {
  const int32_t peer = world_.index_of(effect.peer);
  tell_peer(peer, [this, peer, effect] { hold(peer, effect); });
}

void Engine::act(const broker::Decided& effect) {
  // What changes nothing is told, but makes no history.
  if (effect.decision == "keep" && options_.on_event) {
    options_.on_event(queue_.now(), owned_.at(effect.job).outcome.name, "keep", effect.reason);
  }
}

void Engine::act(const broker::EmitEvent& effect) {
  record(effect.kind, effect.job, effect.message);
  if (effect.kind == "state" && !effect.job.empty()) phase_changed(effect.job);
}

}  // namespace weft::simulate
