// Jobs: progress, checkpoints, commands; and the texts of reasons.
#include <algorithm>
#include <cmath>

#include "broker/coordinator/machine.h"

namespace weft::broker {

int64_t Job::last_checkpoint_step() const {
  const Checkpoint* last = last_checkpoint();
  return last != nullptr ? last->step : -1;
}

const Checkpoint* Job::last_checkpoint() const {
  for (auto it = checkpoints.rbegin(); it != checkpoints.rend(); ++it) {
    if (it->second.complete) return &it->second;
  }
  return nullptr;
}

Job* Machine::job(const std::string& id) {
  const auto found = state_.jobs.find(id);
  return found == state_.jobs.end() ? nullptr : &found->second;
}

void Machine::set_phase(Job& job, JobPhase to, const std::string& reason) {
  WEFT_CHECK(allowed(job.phase, to));
  const auto from = job.phase;
  job.phase = to;
  job.reason = reason;
  job.next.clear();
  effects_.push_back(PersistJob{job.id});
  emit(job.id, "state", fmt::format("{} -> {}: {}", phase_name(from), phase_name(to), reason),
       {{"from", phase_name(from)}, {"to", phase_name(to)}, {"epoch", job.epoch}});
}

// The stage, if this very peer holds it in the job's current epoch; else nullptr (fencing).
StageState* Machine::held_stage(const std::string& sender, const std::string& job_id,
                                uint32_t epoch, int32_t stage) {
  Job* owner = job(job_id);
  if (owner == nullptr || owner->epoch != epoch || stage < 0 ||
      static_cast<size_t>(stage) >= owner->stages.size()) {
    return nullptr;
  }
  if (owner->phase != JobPhase::kDeploying && owner->phase != JobPhase::kRunning) return nullptr;
  StageState& entry = owner->stages[static_cast<size_t>(stage)];
  return entry.peer == sender ? &entry : nullptr;
}

void Machine::on(const StageReport& event) {
  StageState* stage = held_stage(event.peer, event.job, event.epoch, event.stage);
  if (stage == nullptr) return;
  Job& owner = *job(event.job);
  if (event.kind == StageReport::Kind::kAlive) {
    const double idle_ms = std::clamp(event.seconds * 1000.0, 0.0, 1e12);
    int64_t& moved_ms =
        owner.phase == JobPhase::kDeploying ? stage->progress_ms : owner.progress_ms;
    moved_ms = std::max(moved_ms, now_ms_ - static_cast<int64_t>(std::ceil(idle_ms)));
    return;
  }
  if (owner.phase != JobPhase::kRunning || event.step < 0 || event.step > owner.steps) return;
  owner.progress_ms = owner.report_ms = now_ms_;
  if (event.kind == StageReport::Kind::kEval) {
    if (event.loss) owner.eval_loss = event.loss;
    if (event.accuracy) owner.eval_accuracy = event.accuracy;
    effects_.push_back(PersistJob{owner.id});
    return;
  }
  owner.step = std::max(owner.step, event.step);
  learn_speed(owner, event);
  owner.drift.add(static_cast<size_t>(event.stage), event.step, event.seconds, event.compute_s);
  if (event.loss) {
    owner.loss = event.loss;
    if (!owner.first_loss) owner.first_loss = event.loss;
  }
  if (std::isfinite(event.seconds) && event.seconds >= 0) {
    if (owner.step_seconds.size() == kStepHistory) {
      owner.step_seconds.erase(owner.step_seconds.begin());
    }
    owner.step_seconds.push_back(event.seconds);
  }
}

void Machine::on(const ShardStored& event) {
  if (held_stage(event.peer, event.job, event.epoch, event.stage) == nullptr) return;
  Job& owner = *job(event.job);
  if (owner.phase != JobPhase::kRunning || event.step <= owner.resume_step ||
      event.step > owner.steps) {
    return;
  }
  owner.progress_ms = owner.report_ms = now_ms_;
  Checkpoint& entry = owner.checkpoints[event.step];
  if (entry.complete || event.step < owner.last_checkpoint_step()) {
    // A repeat of what is committed, or older than what is: nobody needs it.
    if (!entry.complete && entry.shards.empty()) owner.checkpoints.erase(event.step);
    return;
  }
  if (entry.shards.empty()) {
    entry.step = event.step;
    entry.time_ms = now_ms_;
    entry.epoch = owner.epoch;
    entry.stages = static_cast<int32_t>(owner.stages.size());
  }
  entry.shards[event.stage] = Shard{event.stage, event.sha256, event.bytes, event.tensors};
  if (static_cast<int32_t>(entry.shards.size()) < entry.stages) {
    effects_.push_back(SaveCheckpoint{owner.id, event.step});
    return;
  }
  commit(owner, entry);
  maybe_finished(owner);
  maybe_move(owner, event.step);
}

void Machine::commit(Job& owner, Checkpoint& entry) {
  entry.complete = true;
  entry.time_ms = now_ms_;
  effects_.push_back(CommitCheckpoint{owner.id, entry.step});
  effects_.push_back(PersistJob{owner.id});
  emit(owner.id, "checkpoint",
       fmt::format("step {}: all {} shards are stored", entry.step, entry.stages),
       {{"step", entry.step}});
  // Newest first: keep that many complete ones; incomplete ones older than a complete one go.
  std::vector<int64_t> drop;
  int64_t kept = 0;
  for (auto it = owner.checkpoints.rbegin(); it != owner.checkpoints.rend(); ++it) {
    if (it->first > entry.step) continue;
    if (it->second.complete && kept < std::max<int64_t>(1, owner.checkpoint_keep)) {
      ++kept;
    } else {
      drop.push_back(it->first);
    }
  }
  for (int64_t step : drop) drop_checkpoint(owner, step);
}

void Machine::drop_checkpoint(Job& owner, int64_t step) {
  DropCheckpoint effect{owner.id, step, {}};
  for (const auto& [stage, shard] : owner.checkpoints.at(step).shards) {
    effect.blobs.push_back(shard.sha256);
  }
  owner.checkpoints.erase(step);
  effects_.push_back(std::move(effect));
}

void Machine::on(const SubmitJob& event) {
  Job entry;
  entry.id = event.job;
  entry.name = event.name;
  entry.created_ms = entry.queued_ms = now_ms_;
  entry.steps = event.steps;
  entry.requested_stages = event.stages;
  entry.checkpoint_keep = event.checkpoint_keep;
  entry.checkpoint_every = event.checkpoint_every;
  entry.replan = event.replan;
  entry.reason = "submitted";
  state_.jobs.emplace(entry.id, std::move(entry));
  effects_.push_back(PersistJob{event.job});
  emit(event.job, "state", "submitted", {{"to", "queued"}});
}

void Machine::on(const CancelJob& event) {
  Job& owner = *job(event.job);
  const std::string reason =
      event.reason.empty() ? "cancelled by the user" : "cancelled: " + event.reason;
  decide(owner.id, "cancel", reason);
  if (owner.phase == JobPhase::kQueued) {
    end(owner, JobPhase::kCancelled, reason, "");
    return;
  }
  owner.deadline_ms = now_ms_ + options_.stop_ms;
  owner.verdict_ms = owner.finish_deadline_ms = 0;
  set_phase(owner, JobPhase::kCancelling, reason);
  stop_all(owner, reason);
  maybe_cancelled(owner);
}

// What follows goes on from the last complete checkpoint, under another plan and epoch.
void Machine::restart(Job& owner) {
  std::vector<int64_t> partial;
  for (const auto& [step, checkpoint] : owner.checkpoints) {
    if (!checkpoint.complete) partial.push_back(step);
  }
  for (int64_t step : partial) drop_checkpoint(owner, step);
  owner.epoch += 1;
  owner.resume_step = owner.step = owner.step_to_resume();
  owner.ended_ms = 0;
  owner.queued_ms = now_ms_;
  owner.tried_version = 0;
  owner.plan.reset();
  owner.stages.clear();
  if (owner.resume_step == 0) owner.loss = owner.first_loss = owner.eval_loss = std::nullopt;
  effects_.push_back(TruncateMetrics{owner.id, owner.resume_step});
}

void Machine::on(const ResumeJob& event) {
  Job& owner = *job(event.job);
  if (event.stages) owner.requested_stages = *event.stages;
  if (event.steps) owner.steps = *event.steps;
  restart(owner);
  const std::string reason = fmt::format(
      "resumed from {} as epoch {}",
      owner.resume_step > 0 ? fmt::format("the checkpoint of step {}", owner.resume_step)
                            : std::string("step 0, there is no complete checkpoint"),
      owner.epoch);
  decide(owner.id, "resume", reason);
  set_phase(owner, JobPhase::kQueued, reason);
}

void Machine::on(const DeleteJob& event) {
  state_.jobs.erase(event.job);
  effects_.push_back(EraseJob{event.job});
}

std::string Machine::peer_text(const std::string& id) const {
  const auto found = state_.peers.find(id);
  if (found == state_.peers.end() || found->second.name.empty()) return "peer " + id;
  return fmt::format("peer {} ({})", found->second.name, id);
}

std::string Machine::stage_text(const Job& owner, int32_t stage) const {
  if (stage < 0 || static_cast<size_t>(stage) >= owner.stages.size()) {
    return fmt::format("stage {}", stage);
  }
  return fmt::format("stage {} on {}", stage,
                     peer_text(owner.stages[static_cast<size_t>(stage)].peer));
}

std::string Machine::checkpoint_text(const Job& owner) const {
  const int64_t step = owner.last_checkpoint_step();
  return step >= 0 ? fmt::format("last complete checkpoint: step {}", step)
                   : std::string("no complete checkpoint yet");
}

void Machine::emit(const std::string& job_id, std::string kind, std::string message,
                   nlohmann::json data) {
  effects_.push_back(EmitEvent{job_id, std::move(kind), std::move(message), std::move(data)});
}

void Machine::decide(const std::string& job_id, std::string decision, std::string reason) {
  effects_.push_back(Decided{job_id, std::move(decision), std::move(reason)});
}

// ---- commands ----------------------------------------------------------------------------------
namespace {

Error no_job(const std::string& id) {
  return make_error(Code::kNotFound, fmt::format("there is no job {}", id), "see `weft job list`");
}
Error no_peer(const std::string& id) {
  return make_error(Code::kNotFound, fmt::format("there is no peer {}", id),
                    "see `weft peer list`");
}

Status check_resume(const Job& job, const ResumeJob& event) {
  if (!ended(job.phase)) {
    return make_error(Code::kInvalid,
                      fmt::format("job {} is {}; only an ended job can be resumed", job.id,
                                  phase_name(job.phase)),
                      fmt::format("cancel it first: weft job cancel {}", job.id));
  }
  if (event.stages && *event.stages < 0) {
    return make_error(Code::kInvalid,
                      fmt::format("stages is {}; it must be 0 (auto) or more", *event.stages));
  }
  const int64_t steps = event.steps.value_or(job.steps);
  if (steps <= job.step_to_resume()) {
    return make_error(Code::kInvalid,
                      fmt::format("job {} has done {} steps already and {} are asked for", job.id,
                                  job.step_to_resume(), steps),
                      fmt::format("ask for more: weft job resume {} --steps N", job.id));
  }
  return {};
}

}  // namespace

Status check_command(const State& state, const Event& event) {
  const auto find_job = [&](const std::string& id) -> const Job* {
    const auto found = state.jobs.find(id);
    return found == state.jobs.end() ? nullptr : &found->second;
  };
  if (const auto* submit = std::get_if<SubmitJob>(&event)) {
    if (find_job(submit->job) != nullptr) {
      return make_error(Code::kExists, fmt::format("job {} exists already", submit->job));
    }
    if (submit->steps <= 0) {
      return make_error(Code::kInvalid, fmt::format("steps is {}; at least 1", submit->steps));
    }
  } else if (const auto* cancel = std::get_if<CancelJob>(&event)) {
    const Job* found = find_job(cancel->job);
    if (found == nullptr) return no_job(cancel->job);
    if (ended(found->phase) || found->phase == JobPhase::kCancelling) {
      return make_error(Code::kInvalid,
                        fmt::format("job {} is {} already", found->id, phase_name(found->phase)));
    }
  } else if (const auto* resume = std::get_if<ResumeJob>(&event)) {
    const Job* found = find_job(resume->job);
    if (found == nullptr) return no_job(resume->job);
    return check_resume(*found, *resume);
  } else if (const auto* remove = std::get_if<DeleteJob>(&event)) {
    const Job* found = find_job(remove->job);
    if (found == nullptr) return no_job(remove->job);
    if (!ended(found->phase)) {
      return make_error(Code::kInvalid,
                        fmt::format("job {} is {}; only an ended job can be deleted", found->id,
                                    phase_name(found->phase)),
                        fmt::format("cancel it first: weft job cancel {}", found->id));
    }
  } else if (const auto* drain = std::get_if<DrainPeer>(&event)) {
    if (!state.peers.contains(drain->peer)) return no_peer(drain->peer);
  } else if (const auto* erase = std::get_if<RemovePeer>(&event)) {
    if (!state.peers.contains(erase->peer)) return no_peer(erase->peer);
  }
  return {};
}

std::vector<Effect> apply(State& state, const Event& event, int64_t now_ms,
                          const CoordinatorOptions& options) {
  if (!check_command(state, event).ok()) return {};
  Machine machine(state, now_ms, options);
  std::visit([&](const auto& body) { machine.on(body); }, event);
  machine.schedule();
  return machine.take();
}

}  // namespace weft::broker
