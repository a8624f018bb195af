// A cluster of scripted daemons around the real coordinator under a virtual clock: messages are
// delayed, lost (and repeated, as the control plane does) or lost for good; daemons die, drain,
// leave, restart and hang; users cancel and resume. One seed gives one history.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "broker/coordinator/coordinator.h"

namespace weft::broker::testing {

inline job::Plan even_plan(const Job& job, const std::vector<const Peer*>& idle) {
  job::Plan plan;
  const size_t stages = job.requested_stages == 0 ? std::min<size_t>(idle.size(), 4)
                                                  : static_cast<size_t>(job.requested_stages);
  plan.partition.stages = static_cast<int32_t>(stages);
  for (size_t i = 0; i < stages; ++i) {
    plan.stages.push_back({{idle[i]->id}, 0, 0, 0});
    plan.partition.stage_of.push_back(static_cast<int32_t>(i));
  }
  plan.reason = "even";
  return plan;
}

struct FakeOptions {
  double loss = 0;    // of a message for good
  double delay = 0;   // chance that a message is late (up to 3 s)
  double kill = 0;    // chance a second that a daemon dies
  double crash = 0;   // chance a second that a worker dies
  double hang = 0;    // chance a second that a worker hangs silently
  double drain = 0;   // chance a second that a daemon drains
  double leave = 0;   // chance a second that a daemon stops its worker and leaves
  double cancel = 0;  // chance a second that a user cancels
  int32_t peers = 5;
  int64_t step_ms = 500;
  int64_t fetch_ms = 0;  // a stage downloads that long, and says that it does
  int64_t load_ms = 0;   // and loads that long
};

class FakeCluster {
 public:
  FakeCluster(uint64_t seed, FakeOptions fake) : rng_(seed), fake_(fake) {
    options_.plan = [](const Job& job, const std::vector<const Peer*>& idle) {
      return Result<job::Plan>(even_plan(job, idle));
    };
    for (int32_t i = 0; i < fake_.peers; ++i) {
      const std::string id = fmt::format("p-{}", i);
      daemons_[id] = Daemon{};
      feed(PeerJoined{id, "name" + id, "curve" + id, "key" + id});
      start_daemon(id);
    }
  }

  CoordinatorOptions& options() { return options_; }
  State& state() { return state_; }
  const Job& job(const std::string& id) { return state_.jobs.at(id); }
  int64_t now() const { return now_ms_; }
  const std::string& log() const { return log_; }

  void feed(const Event& event) {
    for (const Effect& effect : apply(state_, event, now_ms_, options_)) handle(effect);
    check_invariants();
  }

  // Runs the clock; chaos (deaths, cancels, losses) only while chaos is true.
  void run_ms(int64_t duration_ms, bool chaos) {
    for (const int64_t end_ms = now_ms_ + duration_ms; now_ms_ < end_ms;) {
      now_ms_ += 50;
      chaos_ = chaos;
      deliver();
      if (now_ms_ % 1000 == 0) every_second();
      if (now_ms_ % 250 == 0) feed(Tick{});
    }
  }
  bool run_until(const std::function<bool()>& done, int64_t limit_ms, bool chaos = false) {
    const int64_t end_ms = now_ms_ + limit_ms;
    while (now_ms_ < end_ms) {
      if (done()) return true;
      run_ms(50, chaos);
    }
    return done();
  }

  void kill(const std::string& id) { daemons_[id] = Daemon{}; }
  // And never comes back.
  void kill_for_good(const std::string& id) {
    kill(id);
    buried_.insert(id);
  }
  void start_daemon(const std::string& id) {
    Daemon& daemon = daemons_[id];
    daemon = Daemon{};
    daemon.alive = true;
    daemon.session = ++sessions_;
    Capabilities capabilities;
    capabilities.advertise_host = "10.0.0.1";
    feed(PeerHello{id, daemon.session, capabilities, {}});
  }
  // Finishes its work, then leaves.
  void drain(const std::string& id) { daemons_[id].draining = true; }
  // Stops its work and says goodbye; comes back some time, unless it is buried.
  void leave(const std::string& id) {
    Daemon& daemon = daemons_[id];
    if (daemon.work && !over(*daemon.work)) {
      daemon.work->state = "stopped";
      update(id, *daemon.work);
    }
    // Behind everything it said before, as the control plane keeps the order.
    packets_.push_back({now_ms_ + kMostDelayMs, ++order_, [this, id] {
                          feed(PeerLeaving{id, "the daemon ends"});
                        }});
    daemon = Daemon{};
  }
  void leave_for_good(const std::string& id) {
    leave(id);
    buried_.insert(id);
  }
  // Its Hello never arrives; heartbeats do.
  void start_unheard(const std::string& id) {
    daemons_[id] = Daemon{};
    daemons_[id].alive = true;
    daemons_[id].session = ++sessions_;
  }
  // Its worker computes one long step: it says that it is alive, nothing else.
  void slow_worker(const std::string& id) {
    if (daemons_[id].work) daemons_[id].work->slow = true;
  }
  void fast_worker(const std::string& id) {
    if (daemons_[id].work) daemons_[id].work->slow = false;
  }
  // Stop is heard and never obeyed.
  void deaf_worker(const std::string& id) {
    if (daemons_[id].work) daemons_[id].work->deaf = true;
  }
  void crash_worker(const std::string& id) {
    Daemon& daemon = daemons_[id];
    if (daemon.work) worker_failed(id, *daemon.work, "internal", "its worker was killed");
  }
  void hang_worker(const std::string& id) {
    if (daemons_[id].work) daemons_[id].work->hung = true;
  }
  // Its steps take so many times as long, and it says so.
  void slow_down(const std::string& id, double factor) { slow_factor_[id] = factor; }
  // No stage gets more than a step ahead of another.
  void couple() { coupled_ = true; }
  // Shards of a hold never arrive.
  void lose_hold_shards() { no_hold_shards_ = true; }
  std::vector<std::string> decisions_of(const std::string& kind) const {
    std::vector<std::string> found;
    for (const auto& [k, reason] : decisions_) {
      if (k == kind) found.push_back(reason);
    }
    return found;
  }
  bool has_worker(const std::string& id) { return daemons_[id].work.has_value(); }
  std::vector<std::string> events_of_kind(const std::string& kind) const {
    std::vector<std::string> found;
    for (const auto& [k, message] : events_) {
      if (k == kind) found.push_back(message);
    }
    return found;
  }
  // Called on every effect, after it was acted on.
  std::function<void(const Effect&)> on_effect;

 private:
  static constexpr int64_t kMostDelayMs = 50;  // of a message that is not late

  struct Work {
    std::string job;
    uint32_t epoch = 0;
    int32_t stage = 0;
    std::string state = "preparing";
    int64_t listen_at_ms = -1, ready_at_ms = -1, next_step_ms = -1;
    int64_t step = 0;
    int64_t hold_step = 0;
    bool hung = false, slow = false, deaf = false;
  };
  struct Daemon {
    bool alive = false, draining = false;
    uint64_t session = 0, sequence = 0;
    std::optional<Work> work;  // stays, ended, until replaced
  };
  struct Packet {
    int64_t at_ms = 0;
    uint64_t order = 0;
    std::function<void()> deliver;
  };

  static bool over(const Work& work) {
    return work.state == "finished" || work.state == "failed" || work.state == "stopped";
  }

  // At work on something long that it reports to be alive in.
  static bool busy(const Work& work) {
    return work.slow || work.listen_at_ms >= 0 || work.ready_at_ms >= 0 || holds(work);
  }
  static bool holds(const Work& work) { return work.hold_step > 0 && work.step == work.hold_step; }
  // A stage waits for what others of its job send it in a step.
  bool ahead(const Work& work) const {
    return std::any_of(daemons_.begin(), daemons_.end(), [&](const auto& entry) {
      const auto& other = entry.second.work;
      return other && other->job == work.job && other->epoch == work.epoch && !over(*other) &&
             other->step < work.step;
    });
  }

  bool chance(double probability) { return chaos_ && rng_.uniform() < probability; }

  void send(std::function<void()> deliver) {
    if (chance(fake_.loss)) return;
    int64_t delay_ms = 10 + static_cast<int64_t>(rng_.below(kMostDelayMs - 10));
    if (chance(fake_.delay)) delay_ms += static_cast<int64_t>(rng_.below(3000));
    packets_.push_back({now_ms_ + delay_ms, ++order_, std::move(deliver)});
  }

  void deliver() {
    std::stable_sort(packets_.begin(), packets_.end(), [](const Packet& a, const Packet& b) {
      return std::tie(a.at_ms, a.order) < std::tie(b.at_ms, b.order);
    });
    while (!packets_.empty() && packets_.front().at_ms <= now_ms_) {
      auto packet = std::move(packets_.front());
      packets_.erase(packets_.begin());
      packet.deliver();
    }
    for (auto& [id, daemon] : daemons_) {
      if (daemon.alive && daemon.work) step_worker(id, *daemon.work);
    }
  }

  void update(const std::string& id, const Work& work, Failure failure = {}) {
    StageUpdate event{id, work.job, work.epoch, work.stage, work.state, "", 9, failure};
    send([this, event] { feed(event); });
  }

  void worker_failed(const std::string& id, Work& work, const char* code, const char* message) {
    if (over(work)) return;
    work.state = "failed";
    update(id, work, Failure{code, message, "", 0, ""});
  }

  void step_worker(const std::string& id, Work& work) {
    if (work.hung || over(work)) return;
    if (work.listen_at_ms >= 0 && now_ms_ >= work.listen_at_ms) {
      work.listen_at_ms = -1;
      work.state = "listening";
      update(id, work);
    }
    if (work.ready_at_ms >= 0 && now_ms_ >= work.ready_at_ms) {
      work.ready_at_ms = -1;
      work.state = "ready";
      update(id, work);
    }
    if (work.slow) return;
    if (holds(work) || (coupled_ && ahead(work))) return;
    if (work.state == "running" && now_ms_ >= work.next_step_ms) step(id, work);
  }

  void step(const std::string& id, Work& work) {
    const double slower = slow_factor_.contains(id) ? slow_factor_.at(id) : 1;
    work.next_step_ms = now_ms_ + static_cast<int64_t>(slower * static_cast<double>(fake_.step_ms));
    ++work.step;
    StageReport report{id,        work.job, work.epoch, work.stage,   StageReport::Kind::kStep,
                       work.step, {},       {},         0.5 * slower, 0.5 * slower};
    if (work.stage == 0) report.loss = 10.0 / static_cast<double>(work.step);
    send([this, report] { feed(report); });
    const auto found = state_.jobs.find(work.job);
    const int64_t steps = found == state_.jobs.end() ? 20 : found->second.steps;
    const bool lost = holds(work) && no_hold_shards_;
    if (!lost && (work.step % 5 == 0 || work.step == steps || holds(work))) {
      ShardStored shard{id,         work.job,  work.epoch,
                        work.stage, work.step, fmt::format("{:064x}", work.step * 100 + work.stage),
                        10,         {"w"}};
      send([this, shard] { feed(shard); });
    }
    if (work.step >= steps) {
      work.state = "finished";
      update(id, work);
    }
  }

  void every_second() {
    std::vector<std::string> ids;
    for (auto& [id, daemon] : daemons_) ids.push_back(id);
    for (const std::string& id : ids) {
      Daemon& daemon = daemons_[id];
      if (!daemon.alive) {
        if (!buried_.contains(id) && rng_.below(10) == 0) start_daemon(id);
        continue;
      }
      if (chance(fake_.kill)) {
        kill(id);
        continue;
      }
      if (chance(fake_.leave) || (daemon.draining && (!daemon.work || over(*daemon.work)))) {
        leave(id);
        continue;
      }
      if (chance(fake_.drain)) drain(id);
      if (chance(fake_.crash)) crash_worker(id);
      if (chance(fake_.hang)) hang_worker(id);
      PeerHeartbeat beat{id, daemon.session, ++daemon.sequence, daemon.draining, {}};
      if (daemon.work) {
        beat.assignments.push_back(
            {daemon.work->job, daemon.work->epoch, daemon.work->stage, daemon.work->state});
      }
      send([this, beat] { feed(beat); });
      if (daemon.work && !daemon.work->hung && busy(*daemon.work)) {
        const Work& work = *daemon.work;
        StageReport alive{id,        work.job, work.epoch, work.stage, StageReport::Kind::kAlive,
                          work.step, {},       {},         0.5};
        send([this, alive] { feed(alive); });
      }
    }
    for (auto& [id, entry] : state_.jobs) {
      if (!ended(entry.phase) && chance(fake_.cancel)) {
        feed(CancelJob{id, "chaos"});
        break;
      }
    }
  }

  void handle(const Effect& effect) {
    std::visit([&](const auto& body) { act(body); }, effect);
    if (on_effect) on_effect(effect);
  }
  void act(const SendWelcome& e) {
    if (!e.hello_wanted) return;
    send([this, e] {
      const Daemon& daemon = daemons_[e.peer];
      if (!daemon.alive) return;
      PeerHello hello{e.peer, daemon.session, {}, {}};
      hello.capabilities.advertise_host = "10.0.0.1";
      if (daemon.work && !over(*daemon.work)) {
        const Work& work = *daemon.work;
        hello.assignments.push_back({work.job, work.epoch, work.stage, work.state});
      }
      feed(hello);
    });
  }
  void act(const SendPrepare& e) {
    note("prepare", e.peer, e.stage);
    send([this, e] {
      Daemon& daemon = daemons_[e.peer];
      if (!daemon.alive || daemon.draining || (daemon.work && !over(*daemon.work))) return;
      Work work{e.job, e.epoch, e.stage};
      work.listen_at_ms = now_ms_ + fake_.fetch_ms + 100 + static_cast<int64_t>(rng_.below(500));
      work.step = state_.jobs.contains(e.job) ? state_.jobs.at(e.job).resume_step : 0;
      daemon.work = work;
    });
  }
  void act(const SendConnect& e) {
    note("connect", e.peer, e.stage);
    send([this, e] {
      Daemon& daemon = daemons_[e.peer];
      if (mine(daemon, e.job, e.epoch) && daemon.work->state == "listening") {
        daemon.work->ready_at_ms = now_ms_ + fake_.load_ms + 200;
      }
    });
  }
  void act(const SendStart& e) {
    note("start", e.peer, e.stage);
    send([this, e] {
      Daemon& daemon = daemons_[e.peer];
      if (!mine(daemon, e.job, e.epoch) || daemon.work->state != "ready") return;
      daemon.work->state = "running";
      daemon.work->next_step_ms = now_ms_ + fake_.step_ms;
      update(e.peer, *daemon.work);
    });
  }
  void act(const SendDrain& e) {
    send([this, e] { drain(e.peer); });
  }
  void act(const SendStop& e) {
    note("stop", e.peer, e.stage);
    send([this, e] {
      Daemon& daemon = daemons_[e.peer];
      if (!mine(daemon, e.job, e.epoch) || over(*daemon.work) || daemon.work->deaf) return;
      daemon.work->state = "stopped";
      update(e.peer, *daemon.work);
    });
  }
  void act(const SendHold& e) {
    note("hold", e.peer, e.stage);
    send([this, e] {
      Daemon& daemon = daemons_[e.peer];
      if (mine(daemon, e.job, e.epoch)) daemon.work->hold_step = e.step;
    });
  }
  void act(const Decided& e) { decisions_.emplace_back(e.decision, e.reason); }
  void act(const EmitEvent& e) {
    log_ += fmt::format("{} {} {} {}\n", now_ms_, e.job, e.kind, e.message);
    events_.emplace_back(e.kind, e.message);
  }
  template <typename Other>
  void act(const Other&) {}

  void note(const char* what, const std::string& peer, int32_t stage) {
    log_ += fmt::format("{} {} {} {}\n", now_ms_, what, peer, stage);
  }
  static bool mine(const Daemon& daemon, const std::string& job, uint32_t epoch) {
    return daemon.alive && daemon.work && daemon.work->job == job && daemon.work->epoch == epoch;
  }

  void check_invariants() {
    std::map<std::string, std::string> holder;
    for (const auto& [id, entry] : state_.jobs) {
      if (entry.phase != JobPhase::kDeploying && entry.phase != JobPhase::kRunning) continue;
      for (const StageState& stage : entry.stages) {
        // Whose part is in may have left, and come back to another job.
        if (stage.phase == StagePhase::kFinished) continue;
        WEFT_CHECK(holder.emplace(stage.peer, id).second);
        WEFT_CHECK(state_.peers.contains(stage.peer));
        const auto& held = state_.peers.at(stage.peer).assignment;
        WEFT_CHECK(held && held->job == id && held->epoch == entry.epoch);
      }
    }
    for (const auto& [id, entry] : state_.peers) {
      if (entry.phase == PeerPhase::kIdle) WEFT_CHECK(!entry.assignment);
      if (entry.phase == PeerPhase::kGone) WEFT_CHECK(!entry.assignment);
      if (entry.phase == PeerPhase::kAssigned) WEFT_CHECK(entry.assignment);
      if (entry.phase == PeerPhase::kRunning) WEFT_CHECK(entry.assignment);
    }
  }

  Rng rng_;
  FakeOptions fake_;
  CoordinatorOptions options_;
  State state_;
  std::map<std::string, Daemon> daemons_;
  std::set<std::string> buried_;
  std::vector<Packet> packets_;
  std::vector<std::pair<std::string, std::string>> events_;
  std::vector<std::pair<std::string, std::string>> decisions_;
  std::map<std::string, double> slow_factor_;
  bool no_hold_shards_ = false, coupled_ = false;
  std::string log_;
  int64_t now_ms_ = 1000000;
  uint64_t order_ = 0, sessions_ = 0;
  bool chaos_ = false;
};

}  // namespace weft::broker::testing
