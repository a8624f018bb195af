// Other plans for running jobs: when to look for one, whether to move to it, and the move.
#include <algorithm>
#include <cmath>
#include <set>

#include "broker/coordinator/machine.h"

namespace weft::broker {
namespace {

// A peer that is idle now must be that much faster than those the plan left idle, and than the
// slowest the job has, to be worth a look.
constexpr double kFaster = 1.1;

constexpr double kNoise = 1.25;  // in the speed of a peer

}  // namespace

int64_t first_pause_ms(const Job& job, const CoordinatorOptions& options) {
  const int doublings = std::min(job.migrations, 20);
  return std::min(options.look_ms << doublings, options.look_most_ms);
}

void reserve(const Job& job, std::set<std::string>& peers) {
  if (!job.migration || job.phase == JobPhase::kDeploying) return;
  for (const job::StagePlan& stage : job.migration->plan.stages) peers.insert(stage.replicas[0]);
}

std::vector<double> Machine::planned_factors(const job::Plan& plan) const {
  std::vector<double> factors;
  for (const job::StagePlan& stage : plan.stages) {
    const Peer& holder = state_.peers.at(stage.replicas[0]);
    factors.push_back(holder.slowness.factor > 0 ? holder.slowness.factor
                      : stage.correction > 0     ? stage.correction
                                                 : 1);
  }
  return factors;
}

void Machine::note_spares(Job& job, const job::Plan& plan, std::vector<const Peer*> spares) {
  if (!options_.speeds) return;
  std::erase_if(spares, [&](const Peer* spare) {
    return std::any_of(plan.stages.begin(), plan.stages.end(),
                       [&](const job::StagePlan& stage) { return stage.replicas[0] == spare->id; });
  });
  const std::vector<double> speeds = options_.speeds(spares);
  job.spare_gflops = speeds.empty() ? 0 : *std::max_element(speeds.begin(), speeds.end());
}

bool Machine::may_look(const Job& job) const {
  return job.phase == JobPhase::kRunning && job.replan && !job.migration && job.plan &&
         job.verdict_ms == 0 && job.finish_deadline_ms == 0 && now_ms_ >= job.look_ms;
}

std::optional<std::string> Machine::reason_to_look(const Job& job, double fastest_idle) const {
  if (auto drift = drift_of(job.drift, *job.plan)) return drift;
  if (!(fastest_idle > kFaster * job.spare_gflops)) return std::nullopt;
  std::vector<const Peer*> own;
  for (const StageState& stage : job.stages) own.push_back(&state_.peers.at(stage.peer));
  const std::vector<double> speeds = options_.speeds(own);
  const double slowest = *std::min_element(speeds.begin(), speeds.end());
  if (!(fastest_idle > kFaster * slowest)) return std::nullopt;
  return fmt::format("a peer of {:.3g} GFLOP/s is idle, the job's slowest has {:.3g}", fastest_idle,
                     slowest);
}

// One job at most is planned anew, the one that has waited for it longest.
void Machine::glance() {
  if (!options_.replan || !options_.speeds || now_ms_ < state_.next_glance_ms) return;
  state_.next_glance_ms = now_ms_ + options_.glance_ms;
  forget_slowness();
  std::vector<Job*> due;
  for (auto& [id, entry] : state_.jobs) {
    if (may_look(entry)) due.push_back(&entry);
  }
  if (due.empty()) return;
  std::vector<const Peer*> idle;
  for (const auto& [id, candidate] : state_.peers) {
    if (usable(candidate)) idle.push_back(&candidate);
  }
  const std::vector<double> speeds = options_.speeds(idle);
  const double fastest = speeds.empty() ? 0 : *std::max_element(speeds.begin(), speeds.end());
  std::stable_sort(due.begin(), due.end(),
                   [](const Job* a, const Job* b) { return a->look_ms < b->look_ms; });
  for (Job* entry : due) {
    const auto why = reason_to_look(*entry, fastest);
    if (!why) continue;
    entry->spare_gflops = std::max(entry->spare_gflops, fastest);
    look(*entry, *why);
    return;
  }
}

// What the job's own steps say of its peers.
void Machine::remember_slowness(const Job& job) {
  for (size_t stage = 0; stage < job.stages.size(); ++stage) {
    Peer* holder = peer(job.stages[stage].peer);
    const auto ratio = stage_drift(job.drift, *job.plan, stage);
    if (holder == nullptr || !ratio || stage >= job.planned_factors.size()) continue;
    Slowness& slowness = holder->slowness;
    const double factor =
        std::clamp(job.planned_factors[stage] * *ratio, 1 / kMostSlowness, kMostSlowness);
    if (*ratio > 1 && (slowness.factor <= 0 || factor > kNoise * slowness.factor)) {
      slowness.believe_ms = std::clamp(4 * slowness.believe_ms, options_.believe_slow_ms,
                                       options_.believe_slow_most_ms);
    }
    slowness.factor = factor;
    slowness.until_ms = now_ms_ + slowness.believe_ms;
  }
}

void Machine::forget_slowness() {
  for (auto& [id, entry] : state_.peers) {
    Slowness& slowness = entry.slowness;
    if (slowness.factor <= 0) continue;
    if (entry.assignment) {
      slowness.until_ms = now_ms_ + slowness.believe_ms;  // its runs tell
    } else if (now_ms_ >= slowness.until_ms) {
      slowness.factor = 0;
    }
  }
}

void Machine::keep(Job& job, const std::string& why, const std::string& reason) {
  job.look_pause_ms = std::clamp(2 * job.look_pause_ms, options_.look_ms,
                                 std::max(options_.look_ms, options_.look_most_ms));
  job.look_ms = now_ms_ + job.look_pause_ms;
  decide(job.id, "keep",
         fmt::format("{}: the plan stays: {}; looked at again in {} s at the "
                     "earliest",
                     why, reason, job.look_pause_ms / 1000));
}

void Machine::look(Job& job, const std::string& why) {
  std::set<std::string> reserved;
  for (const auto& [id, other] : state_.jobs) reserve(other, reserved);
  std::set<std::string> own;
  for (const StageState& stage : job.stages) {
    const Peer* holder = peer(stage.peer);
    if (holder == nullptr || holder->phase != PeerPhase::kRunning || holder->drain_requested) {
      keep(job, why, fmt::format("{} is about to go", peer_text(stage.peer)));
      return;
    }
    own.insert(stage.peer);
  }
  remember_slowness(job);
  std::vector<const Peer*> peers;
  for (const auto& [id, candidate] : state_.peers) {
    if (own.contains(id) || (usable(candidate) && !reserved.contains(id))) {
      peers.push_back(&candidate);
    }
  }
  Result<Replanned> replanned = options_.replan(job, peers, model_error(job.drift, *job.plan));
  if (!replanned.ok()) {
    keep(job, why, "no other plan: " + replanned.error().message);
    return;
  }
  const MigrationVerdict verdict =
      judge_migration(replanned.value(), job.steps - job.step, options_.migration_start_s);
  if (!verdict.migrate) {
    keep(job, why, verdict.reason);
  } else if (!begin_migration(job, std::move(replanned).value(), why + ": " + verdict.reason)) {
    keep(job, why, "the job ends too soon");
  } else {
    note_spares(job, job.migration->plan, std::move(peers));
  }
}

// Stages are at most a step apart; the step behind which they wait must come after the message.
bool Machine::begin_migration(Job& job, Replanned replanned, const std::string& reason) {
  const double step_ms = 1000 * job.drift.step_s().value_or(replanned.current_s);
  const double lead = static_cast<double>(options_.hold_lead_ms) / std::max(step_ms, 1.0);
  const auto steps = 2 + static_cast<int64_t>(std::ceil(std::min(lead, 1e6)));
  if (job.step + steps >= job.steps) return false;
  Migration migration;
  migration.planned_factors = std::move(replanned.factors);
  migration.plan = std::move(replanned.plan);
  migration.reason = reason;
  migration.hold_step = job.step + steps;
  const double expected_ms = static_cast<double>(steps + 1) * step_ms + 1000 * replanned.store_s;
  migration.deadline_ms =
      now_ms_ + options_.hold_ms + static_cast<int64_t>(std::min(4 * expected_ms, 1e12));
  decide(job.id, "migrate", reason);
  emit(job.id, "migration",
       fmt::format("moves to another plan behind step {}: {}", migration.hold_step, reason),
       {{"step", migration.hold_step}});
  job.migration = std::move(migration);
  for (size_t i = 0; i < job.stages.size(); ++i) {
    effects_.push_back(SendHold{job.stages[i].peer, job.id, job.epoch, static_cast<int32_t>(i),
                                job.migration->hold_step});
  }
  return true;
}

// The stages that wait go on, the plan stays.
void Machine::release_hold(Job& job, const std::string& reason) {
  const std::string why = fmt::format("the move behind step {} failed", job.migration->hold_step);
  job.migration.reset();
  for (size_t i = 0; i < job.stages.size(); ++i) {
    effects_.push_back(SendHold{job.stages[i].peer, job.id, job.epoch, static_cast<int32_t>(i), 0});
  }
  emit(job.id, "migration", why + ": " + reason);
  keep(job, why, reason);
}

// The checkpoint behind which every stage waits is complete: nothing is lost from here on.
void Machine::maybe_move(Job& job, int64_t stored_step) {
  if (job.phase != JobPhase::kRunning || !job.migration ||
      stored_step != job.migration->hold_step) {
    return;
  }
  const std::string reason =
      fmt::format("moves from step {} to another plan as epoch {}", stored_step, job.epoch + 1);
  stop_all(job, reason);
  restart(job);
  ++job.migrations;
  job.migration->deadline_ms = now_ms_ + 2 * options_.stop_ms;
  set_phase(job, JobPhase::kQueued, reason);
}

// Whether the job got the plan it moves to. It does not where one of its peers is lost, or does not
// become free: then the job is planned as any other that waits.
bool Machine::deploy_planned(Job& job) {
  Migration& migration = *job.migration;
  std::string missing;
  bool lost = now_ms_ >= migration.deadline_ms;
  for (const job::StagePlan& stage : migration.plan.stages) {
    const auto found = state_.peers.find(stage.replicas[0]);
    if (found != state_.peers.end() && usable(found->second)) continue;
    missing = stage.replicas[0];
    lost = lost || found == state_.peers.end() || found->second.drain_requested ||
           found->second.phase == PeerPhase::kGone || found->second.phase == PeerPhase::kDraining ||
           (found->second.assignment && !found->second.assignment->stopping);
  }
  if (missing.empty()) {
    job.planned_factors = migration.planned_factors;
    deploy(job, migration.plan);
    return true;
  }
  if (lost) {
    decide(job.id, "fall back",
           fmt::format("{} is not free for the plan the job moves to: it is planned again",
                       peer_text(missing)));
    job.migration.reset();
  }
  return false;
}

// The new plan did not come up: the job goes on from the checkpoint it moved with, under whatever
// plan its peers allow, and is left alone for long.
void Machine::fall_back(Job& job, const std::string& reason) {
  decide(job.id, "fall back", reason);
  emit(job.id, "migration", "the plan the job moved to did not come up: " + reason);
  job.migration.reset();
  job.migrations += 4;  // of its pauses
  stop_all(job, "the deployment failed: " + reason);
  restart(job);
  job.failures.clear();
  job.verdict_ms = 0;
  set_phase(job, JobPhase::kQueued,
            fmt::format("from step {} as epoch {}: {}", job.resume_step, job.epoch, reason));
}

}  // namespace weft::broker
