// Deployment: queued jobs to idle peers, the two phases, failures and their causes, stopping.
#include <algorithm>
#include <set>

#include "base/statistics.h"
#include "broker/coordinator/machine.h"

namespace weft::broker {
namespace {

// A broken link is seen by its neighbours at once, its cause (a dead peer) only later.
bool link_failure(const Failure& failure) {
  return failure.code == "unavailable" || failure.code == "timeout";
}

std::string without_numbers(std::string text) {
  std::erase_if(text, [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
  return text;
}

}  // namespace

bool usable(const Peer& peer) {
  const bool introduced = peer.hello_session != 0 || peer.capabilities.cores != 0;
  return peer.phase == PeerPhase::kIdle && introduced && !peer.assignment && !peer.leftover &&
         !peer.drain_requested;
}

// "auto" takes the peers there are, so it waits while peers are about to become idle.
bool Machine::must_settle(const Job& job, bool any_idle) const {
  if (job.requested_stages != 0 || !any_idle) return false;
  if (state_.last_arrival_ms >= 0 && now_ms_ - state_.last_arrival_ms < options_.settle_ms &&
      now_ms_ - job.queued_ms < 10 * options_.settle_ms) {
    return true;
  }
  // A daemon that claims a stopping assignment for ever is not waited for.
  return std::any_of(state_.peers.begin(), state_.peers.end(), [&](const auto& entry) {
    const auto& held = entry.second.assignment;
    return held && held->stopping && now_ms_ - held->stop_since_ms < options_.stop_ms;
  });
}

// A plan over peers of whose links nothing is known takes them for unlimited.
bool Machine::awaits_links(const Job& job, const std::vector<const Peer*>& idle) const {
  const size_t least = job.requested_stages == 0 ? 2 : static_cast<size_t>(job.requested_stages);
  return options_.links_awaited && job.requested_stages != 1 && idle.size() >= least &&
         now_ms_ - job.queued_ms < options_.links_ms && options_.links_awaited(idle);
}

void Machine::wait(Job& job, const std::string& reason) {
  if (job.reason == reason) return;
  // How much memory is free changes by the minute: that is told, but is no decision.
  const bool said = without_numbers(job.reason) == without_numbers(reason);
  job.reason = reason;
  if (said) return;
  job.next = "start peers with `weftd join`, see `weft peer list`";
  effects_.push_back(PersistJob{job.id});
  decide(job.id, "wait", reason);
  emit(job.id, "waiting", reason);
}

void Machine::schedule() {
  std::vector<Job*> queued;
  std::set<std::string> reserved;
  for (auto& [id, entry] : state_.jobs) {
    if (entry.phase == JobPhase::kQueued) queued.push_back(&entry);
    reserve(entry, reserved);
  }
  std::sort(queued.begin(), queued.end(), [](const Job* a, const Job* b) {
    return std::tie(a->created_ms, a->id) < std::tie(b->created_ms, b->id);
  });
  for (Job* entry : queued) {
    if (entry->migration) {
      if (deploy_planned(*entry)) continue;
      if (entry->migration) continue;  // its peers are not free yet
    }
    if (entry->tried_version == state_.idle_version || now_ms_ < entry->retry_ms) continue;
    std::vector<const Peer*> idle;
    for (const auto& [id, candidate] : state_.peers) {
      if (usable(candidate) && !reserved.contains(id)) idle.push_back(&candidate);
    }
    if (must_settle(*entry, !idle.empty()) || awaits_links(*entry, idle)) continue;
    entry->tried_version = state_.idle_version;
    const size_t wanted = static_cast<size_t>(std::max(1, entry->requested_stages));
    if (idle.size() < wanted) {
      wait(*entry, fmt::format("waiting for {} peer{}: {} of {} known peers {} idle", wanted,
                               wanted == 1 ? "" : "s", idle.size(), state_.peers.size(),
                               idle.size() == 1 ? "is" : "are"));
      continue;
    }
    Result<job::Plan> plan = options_.plan(*entry, idle);
    if (plan.ok()) {
      const Status sound = check_plan(*entry, plan.value());
      if (sound.ok()) {
        entry->planned_factors = planned_factors(plan.value());
        deploy(*entry, std::move(plan).value());
        note_spares(*entry, *entry->plan, idle);
      } else {
        fail(*entry, Failure{"internal", sound.error().message, "", -1, ""});
      }
    } else if (plan.error().code == Code::kUnavailable) {
      entry->retry_pause_ms = std::clamp(2 * entry->retry_pause_ms, options_.retry_ms,
                                         std::max(options_.retry_ms, options_.retry_most_ms));
      entry->retry_ms = now_ms_ + entry->retry_pause_ms;
      wait(*entry, plan.error().message);
    } else {
      fail(*entry,
           Failure{code_name(plan.error().code), plan.error().message, plan.error().next, -1, ""});
    }
  }
}

Status Machine::check_plan(const Job& job, const job::Plan& plan) const {
  std::set<std::string> seen;
  if (plan.stages.empty() || static_cast<int32_t>(plan.stages.size()) != plan.partition.stages) {
    return make_error(Code::kInternal, "the plan's stages do not match its partition");
  }
  for (const job::StagePlan& stage : plan.stages) {
    if (stage.replicas.size() != 1) {
      return make_error(Code::kInternal, "the plan gives a stage other than one replica");
    }
    const auto found = state_.peers.find(stage.replicas[0]);
    if (found == state_.peers.end() || !usable(found->second) ||
        !seen.insert(stage.replicas[0]).second) {
      return make_error(
          Code::kInternal,
          fmt::format("the plan of {} uses peer {} which is not free", job.id, stage.replicas[0]));
    }
  }
  return {};
}

void Machine::deploy(Job& job, job::Plan plan) {
  plan.epoch = job.epoch;
  job.plan = std::move(plan);
  job.stages.clear();
  job.failures.clear();
  job.step_seconds.clear();
  job.verdict_ms = job.finish_deadline_ms = 0;
  job.connecting = false;
  job.deadline_ms = now_ms_ + options_.deploy_ms;
  set_phase(job, JobPhase::kDeploying,
            fmt::format("{} stages, preparing", job.plan->stages.size()));
  decide(job.id, "plan", job.plan->reason);
  for (size_t i = 0; i < job.plan->stages.size(); ++i) {
    Peer& target = state_.peers.at(job.plan->stages[i].replicas[0]);
    const int32_t stage = static_cast<int32_t>(i);
    job.stages.push_back(StageState{target.id, StagePhase::kPreparing, "", 0, now_ms_});
    Assignment assignment;
    assignment.job = job.id;
    assignment.epoch = job.epoch;
    assignment.stage = stage;
    assignment.since_ms = now_ms_;
    target.assignment = std::move(assignment);
    set_phase(target, PeerPhase::kAssigned, fmt::format("stage {} of job {}", stage, job.id));
    effects_.push_back(SendPrepare{target.id, job.id, job.epoch, stage});
  }
  // Assigned peers change what is idle; a plan that failed may be tried again only after that.
  job.tried_version = 0;
  job.retry_ms = job.retry_pause_ms = 0;
}

void Machine::on(const StageUpdate& event) {
  Peer* sender = peer(event.peer);
  if (sender == nullptr) return;
  const auto phase = phase_from_name<StagePhase>(event.state);
  if (!phase) return;
  if (!sender->assignment || !sender->assignment->is(event.job, event.epoch, event.stage)) {
    check_leftovers(*sender, {{event.job, event.epoch, event.stage, event.state}});
    return;
  }
  sender->assignment->seen = true;
  sender->assignment->missing_since_ms = -1;
  Job* owner = job(event.job);
  if (sender->assignment->stopping || owner == nullptr) {
    if (*phase == StagePhase::kFailed && owner != nullptr && owner->phase == JobPhase::kFailed) {
      emit(owner->id, "failure",
           fmt::format("also failed: {}: {}", stage_text(*owner, event.stage),
                       event.failure.message));
    }
    if (ended(*phase)) release(*sender, fmt::format("its worker {}", event.state));
    return;
  }
  StageState* stage = held_stage(event.peer, event.job, event.epoch, event.stage);
  if (stage == nullptr || *phase <= stage->phase) return;
  if (*phase == StagePhase::kListening) {
    stage->host = event.host.empty() ? sender->capabilities.advertise_host : event.host;
    stage->port = event.port;
  }
  stage->phase = *phase;
  stage->progress_ms = now_ms_;
  emit(owner->id, "stage", fmt::format("{}: {}", stage_text(*owner, event.stage), event.state),
       {{"stage", event.stage}, {"peer", event.peer}, {"state", event.state}});
  if (*phase == StagePhase::kFailed || *phase == StagePhase::kStopped) {
    Failure failure = event.failure;
    failure.stage = event.stage;
    failure.peer = event.peer;
    if (failure.message.empty()) failure.message = "its worker stopped unasked";
    stage_failed(*owner, std::move(failure));
  } else if (*phase == StagePhase::kFinished) {
    owner->progress_ms = now_ms_;
    stage_finished(*owner, event.stage);
  } else if (owner->phase == JobPhase::kDeploying) {
    advance_deployment(*owner);
  } else {
    owner->progress_ms = now_ms_;
  }
}

void Machine::stage_finished(Job& job, int32_t stage) {
  if (job.phase == JobPhase::kRunning) {
    maybe_finished(job);
    return;
  }
  stage_failed(job, Failure{"internal", "its worker ended before the job was started", "", stage,
                            job.stages[static_cast<size_t>(stage)].peer});
}

void Machine::advance_deployment(Job& job) {
  const auto all = [&](StagePhase least) {
    return std::all_of(job.stages.begin(), job.stages.end(),
                       [&](const StageState& stage) { return stage.phase >= least; });
  };
  if (!job.connecting && all(StagePhase::kListening)) {
    job.connecting = true;
    for (StageState& stage : job.stages) stage.progress_ms = now_ms_;
    emit(job.id, "deploy", "every stage listens; connecting");
    for (size_t i = 0; i < job.stages.size(); ++i) {
      effects_.push_back(
          SendConnect{job.stages[i].peer, job.id, job.epoch, static_cast<int32_t>(i)});
    }
  }
  if (job.connecting && all(StagePhase::kReady)) {
    job.progress_ms = job.report_ms = now_ms_;
    job.drift.begin(job.stages.size(), job.resume_step, job.checkpoint_every);
    job.look_pause_ms = first_pause_ms(job, options_);
    job.look_ms = now_ms_ + job.look_pause_ms;
    job.migration.reset();
    if (job.started_ms == 0) job.started_ms = now_ms_;
    set_phase(job, JobPhase::kRunning, "every stage is ready");
    for (size_t i = 0; i < job.stages.size(); ++i) {
      Peer& target = state_.peers.at(job.stages[i].peer);
      set_work_phase(target, PeerPhase::kRunning, fmt::format("job {} runs", job.id));
      effects_.push_back(SendStart{target.id, job.id, job.epoch, static_cast<int32_t>(i)});
    }
  }
}

void Machine::send_stop(Peer& peer, const std::string& reason) {
  Assignment& held = *peer.assignment;
  if (!held.stopping) {
    held.stopping = true;
    held.stop_since_ms = now_ms_;
  }
  held.stop_sent_ms = now_ms_;
  effects_.push_back(SendStop{peer.id, held.job, held.epoch, held.stage, reason});
}

void Machine::stop_all(Job& job, const std::string& reason) {
  for (size_t i = 0; i < job.stages.size(); ++i) {
    Peer* target = peer(job.stages[i].peer);
    if (target == nullptr || !target->assignment ||
        !target->assignment->is(job.id, job.epoch, static_cast<int32_t>(i))) {
      continue;
    }
    if (ended(job.stages[i].phase)) {
      release(*target, reason);
    } else if (!target->assignment->stopping) {
      send_stop(*target, reason);
    }
  }
}

void Machine::stage_failed(Job& job, Failure failure) {
  if (job.phase == JobPhase::kCancelling) return;
  const bool link = link_failure(failure);
  job.failures.push_back(std::move(failure));
  if (!link) {
    fail(job, job.failures.back());
  } else if (job.verdict_ms == 0) {
    job.verdict_ms = now_ms_ + options_.blame_ms;
  }
}

// Nothing but link failures came in: blame the peer nobody hears, else the first report.
void Machine::judge(Job& job) {
  Failure verdict = job.failures.front();
  for (size_t i = 0; i < job.stages.size(); ++i) {
    const Peer* suspect = peer(job.stages[i].peer);
    if (suspect != nullptr && suspect->phase == PeerPhase::kSuspect &&
        !ended(job.stages[i].phase)) {
      const std::string seen_by = stage_text(job, verdict.stage);
      verdict.message = fmt::format("it does not answer ({}: {})", seen_by, verdict.message);
      verdict.stage = static_cast<int32_t>(i);
      verdict.peer = suspect->id;
      break;
    }
  }
  fail(job, verdict);
}

void Machine::fail(Job& job, const Failure& failure) {
  if (ended(job.phase)) return;
  const std::string where = failure.stage >= 0 ? stage_text(job, failure.stage) + ": " : "";
  const bool deployed = !job.stages.empty();
  std::string reason = where + failure.message;
  if (job.phase == JobPhase::kRunning && job.last_checkpoint_step() >= job.steps) {
    // Too late to lose anything: what broke was the orderly end.
    emit(job.id, "failure", "after the last checkpoint: " + reason);
    finish(job);
    return;
  }
  if (job.phase == JobPhase::kDeploying && job.migration) {
    fall_back(job, reason);
    return;
  }
  if (deployed) reason += "; " + checkpoint_text(job);
  std::string next = failure.next;
  if (next.empty() && deployed) next = fmt::format("weft job resume {}", job.id);
  decide(job.id, "fail", reason);
  end(job, JobPhase::kFailed, std::move(reason), std::move(next));
}

void Machine::end(Job& job, JobPhase to, std::string reason, std::string next) {
  set_phase(job, to, reason);
  job.reason = std::move(reason);
  job.next = std::move(next);
  job.ended_ms = now_ms_;
  job.verdict_ms = job.finish_deadline_ms = 0;
  job.failures.clear();
  job.migration.reset();
  stop_all(job, fmt::format("job {}: {}", phase_name(to), job.reason));
}

void Machine::maybe_cancelled(Job& job) {
  if (job.phase != JobPhase::kCancelling) return;
  for (const auto& [id, holder] : state_.peers) {
    if (holder.assignment && holder.assignment->job == job.id &&
        holder.assignment->epoch == job.epoch) {
      return;
    }
  }
  end(job, JobPhase::kCancelled, job.reason,
      job.step > 0 ? fmt::format("weft job resume {}", job.id) : "");
}

// Whether nothing more is due from a stage. Its daemon sends the shard of the last step behind the
// step's report and evaluation, and the control plane keeps the order.
bool Machine::part_is_in(const Job& job, int32_t stage) const {
  if (job.stages.at(static_cast<size_t>(stage)).phase != StagePhase::kFinished) return false;
  const auto last = job.checkpoints.find(job.steps);
  return last != job.checkpoints.end() && last->second.shards.contains(stage);
}

void Machine::finish(Job& job) {
  job.step = job.steps;
  end(job, JobPhase::kFinished, fmt::format("all {} steps done", job.steps),
      fmt::format("weft checkpoint export {} --out model.safetensors", job.id));
}

void Machine::maybe_finished(Job& job) {
  if (job.phase != JobPhase::kRunning) return;
  for (const StageState& stage : job.stages) {
    if (stage.phase != StagePhase::kFinished) return;
  }
  if (job.last_checkpoint_step() >= job.steps) {
    finish(job);
  } else if (job.finish_deadline_ms == 0) {
    job.finish_deadline_ms = now_ms_ + options_.final_checkpoint_ms;
    emit(job.id, "checkpoint", "all steps done, waiting for the final checkpoint");
  }
}

void Machine::tick_job(Job& job) {
  if (job.verdict_ms != 0 && now_ms_ >= job.verdict_ms) {
    judge(job);
    return;
  }
  if (job.phase == JobPhase::kDeploying) {
    check_deployment(job);
  } else if (job.phase == JobPhase::kCancelling && now_ms_ >= job.deadline_ms) {
    end(job, JobPhase::kCancelled,
        job.reason +
            fmt::format("; not every worker answered within {} s", options_.stop_ms / 1000),
        "");
  } else if (job.phase == JobPhase::kRunning) {
    if (job.migration && now_ms_ >= job.migration->deadline_ms) {
      release_hold(job, "the checkpoint was not complete in time");
    }
    check_stall(job);
  }
}

void Machine::check_deployment(Job& job) {
  const bool late = now_ms_ >= job.deadline_ms;
  const StagePhase least = job.connecting ? StagePhase::kReady : StagePhase::kListening;
  const int64_t limit_ms = job.connecting ? options_.connect_ms : options_.prepare_ms;
  for (size_t i = 0; i < job.stages.size(); ++i) {
    const StageState& stage = job.stages[i];
    if (stage.phase >= least) continue;
    std::string why;
    if (now_ms_ - stage.progress_ms >= limit_ms) {
      why = fmt::format("not {}: no progress for {} s", phase_name(least), limit_ms / 1000);
    } else if (late) {
      why = fmt::format("not {} within {} s", phase_name(least), options_.deploy_ms / 1000);
    } else {
      continue;
    }
    fail(job, Failure{"timeout", std::move(why), "", static_cast<int32_t>(i), stage.peer});
    return;
  }
  // Whatever brought it here: no job deploys beyond its deadline.
  if (late) fail(job, Failure{"timeout", "the deployment did not complete in time", "", -1, ""});
}

void Machine::check_stall(Job& job) {
  const double median_ms = 1000.0 * median(job.step_seconds);
  const int64_t limit_ms =
      std::max(options_.stall_ms, static_cast<int64_t>(std::min(1e12, 10 * median_ms)));
  const int64_t still_ms = now_ms_ - job.progress_ms;
  const int64_t silent_ms = now_ms_ - job.report_ms;
  const bool stuck =
      still_ms >= limit_ms || silent_ms >= std::max(options_.silent_ms, 10 * limit_ms);
  if (job.finish_deadline_ms != 0) {
    // An upload that goes on may take longer than its deadline.
    if (now_ms_ < job.finish_deadline_ms || !stuck) return;
    fail(job, Failure{"timeout",
                      fmt::format("all steps are done, but the final checkpoint was not complete "
                                  "within {} s",
                                  options_.final_checkpoint_ms / 1000),
                      "", -1, ""});
    return;
  }
  if (!stuck) return;
  fail(job, Failure{"timeout",
                    fmt::format("no progress since step {} for {} s (limit {} s)", job.step,
                                std::max(still_ms, silent_ms) / 1000, limit_ms / 1000),
                    "", -1, ""});
}

}  // namespace weft::broker
