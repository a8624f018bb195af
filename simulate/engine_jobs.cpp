// Users and their jobs: submissions, plans, deployments that compute, resumes, and the books.
#include <fmt/format.h>

#include <algorithm>

#include "base/statistics.h"
#include "broker/coordinator/planner_inputs.h"
#include "broker/coordinator/replan_inputs.h"
#include "job/checkpoint.h"
#include "simulate/engine.h"

namespace weft::simulate {

using broker::JobPhase;

void Engine::submit_jobs() {
  for (size_t model = 0; model < scenario_.jobs.size(); ++model) {
    const JobGroup& group = scenario_.jobs[model];
    for (int32_t i = 0; i < group.count; ++i) {
      const std::string id = fmt::format("j-{:04}", order_.size());
      Owned owned;
      owned.model = model;
      owned.outcome.id = id;
      owned.outcome.name = job_name(group, i);
      owned.outcome.submitted_s = group.submit_s + group.every_s * i;
      owned.outcome.wanted = models_[model].spec.train.steps;
      order_.push_back(id);
      const double at_s = owned.outcome.submitted_s;
      owned_.emplace(id, std::move(owned));
      ++unended_;
      queue_.at(at_s, [this, id] { submit(id); });
    }
  }
}

void Engine::submit(const std::string& id) {
  Owned& owned = owned_.at(id);
  owned.submitted = true;
  changed_s_ = queue_.now();
  const job::JobSpec& spec = models_[owned.model].spec;
  feed(broker::SubmitJob{id, owned.outcome.name, spec.train.steps, spec.pipeline.stages,
                         spec.train.checkpoint_keep, spec.train.checkpoint_every,
                         spec.pipeline.replan == job::Replan::kAuto});
}

broker::PlannerOptions Engine::planner_options() const {
  broker::PlannerOptions options;
  options.compression = scenario_.compression;
  return options;
}

Result<job::Plan> Engine::plan(const broker::Job& job,
                               const std::vector<const broker::Peer*>& idle) {
  const double began = options_.seconds ? options_.seconds() : 0;
  const JobModel& model = models_[owned_.at(job.id).model];
  // All of its peers' speeds are written: no run teaches another.
  auto plan = broker::plan_over_idle(model.graph, broker::spec_to_plan(model.spec, job), idle,
                                     world_.known(), {}, planner_options());
  if (options_.seconds) outcome_.planning_s += options_.seconds() - began;
  ++outcome_.plans;
  if (!plan.ok()) ++outcome_.plans_refused;
  return plan;
}

Result<broker::Replanned> Engine::replan(const broker::Job& job,
                                         const std::vector<const broker::Peer*>& peers,
                                         double unproven) {
  const double began = options_.seconds ? options_.seconds() : 0;
  const JobModel& model = models_[owned_.at(job.id).model];
  auto replanned = broker::replan_over(model.graph, model.spec, job, peers, world_.known(), {},
                                       planner_options(), unproven);
  if (options_.seconds) outcome_.planning_s += options_.seconds() - began;
  ++outcome_.replans;
  return replanned;
}

// The deployment of a job's epoch, made when its first stage connects; -1: it is over.
int32_t Engine::run_of(const std::string& id, uint32_t epoch) {
  if (const auto known = run_slots_.find({id, epoch}); known != run_slots_.end()) {
    return runs_[static_cast<size_t>(known->second)] ? known->second : -1;
  }
  const broker::Job& job = state_.jobs.at(id);
  if (!job.plan || job.epoch != epoch) return -1;
  const Owned& owned = owned_.at(id);
  const JobModel& model = models_[owned.model];
  PlayPlan play;
  std::vector<broker::PlannerPeer> devices;
  std::vector<const broker::Peer*> holders;
  for (const job::StagePlan& stage : job.plan->stages) {
    play.peers.push_back(world_.index_of(stage.replicas.at(0)));
    devices.push_back(world_.peer(play.peers.back()).device);
    devices.back().id = stage.replicas[0];
    holders.push_back(&state_.peers.at(stage.replicas[0]));
  }
  // What is compressed follows from the links as the planner knows them, what that takes from the
  // peers as they are.
  broker::PlannerOptions options = planner_options();
  broker::PlannerInputs known;
  if (options.compression.policy) known = broker::planner_inputs(holders, world_.known(), {});
  options.access = std::move(known.access);
  auto pipeline =
      broker::pipeline_of_plan(model.graph, model.spec, *job.plan, devices, known.links, options);
  auto micro_batches = broker::micro_batches_of(model.graph, model.spec);
  WEFT_CHECK(pipeline.ok() && micro_batches.ok());  // the planner has made it of the same
  play.pipeline = std::move(pipeline).value();
  play.schedule = {job.plan->schedule, *micro_batches, job.plan->gap};
  play.first_step = job.resume_step;
  owned_.at(id).first_stage_step = job.resume_step;
  play.steps = job.steps;
  play.jitter = scenario_.compute_jitter;
  const auto slot = static_cast<int32_t>(runs_.size());
  play.seed = derive_seed({scenario_.seed, static_cast<uint64_t>(slot)});
  auto run = std::make_unique<Run>();
  run->job = id;
  run->epoch = epoch;
  run->stage_started_s.assign(play.peers.size(), -1);
  run->busy_before_s.assign(play.peers.size(), 0);
  run->predicted_s = job.plan->step_s;
  run->play = std::make_unique<JobPlay>(std::move(play), slot, world_, queue_);
  run->play->on_step = [this, slot](int32_t stage, int64_t step) { stepped(slot, stage, step); };
  if (options_.on_span) {
    run->play->on_span = [this, name = owned.outcome.name, epoch](const PlaySpan& span) {
      options_.on_span(name, static_cast<int32_t>(epoch), span);
    };
  }
  Owned& books = owned_.at(id);
  books.outcome.stages = static_cast<int32_t>(job.plan->stages.size());
  books.outcome.predicted_step_s = run->predicted_s;
  runs_.push_back(std::move(run));
  run_slots_[{id, epoch}] = slot;
  return slot;
}

void Engine::stepped(int32_t slot, int32_t stage, int64_t step) {
  Run& run = *runs_[static_cast<size_t>(slot)];
  const int32_t peer = run.play->plan().peers[static_cast<size_t>(stage)];
  Work* work = held(peer, run.job, run.epoch);
  if (work == nullptr) return;
  const double now = queue_.now();
  const int64_t last = run.play->plan().steps;
  broker::StageReport report{world_.peer(peer).id,
                             run.job,
                             run.epoch,
                             stage,
                             broker::StageReport::Kind::kStep,
                             step,
                             {},
                             {},
                             0};
  double& busy_before_s = run.busy_before_s[static_cast<size_t>(stage)];
  report.compute_s = run.play->busy_s(stage) - busy_before_s;
  busy_before_s += report.compute_s;
  if (stage == 0) {
    // The first stage is the last to finish a step; the first step fills the pipeline.
    Owned& owned = owned_.at(run.job);
    ++owned.outcome.computed;
    owned.first_stage_step = step;
    report.seconds = now - (run.last_step_s < 0 ? run.started_s : run.last_step_s);
    if (run.last_step_s >= 0) {
      run.step_seconds.push_back(static_cast<float>(report.seconds));
      owned.step_seconds.push_back(static_cast<float>(report.seconds));
    }
    run.last_step_s = now;
  }
  tell_broker(peer, std::move(report));
  const int64_t every = models_[owned_.at(run.job).model].spec.train.checkpoint_every;
  if (step == last) work->last_step_done = true;
  const bool holds = step < last && work->hold_step == step;
  if (step == last || holds || (every > 0 && step % every == 0)) upload(peer, step);
  work->waits_for_room = !holds && step < last && work->uploads.size() > job::kMaxStoredShards;
  if (holds || work->waits_for_room) run.play->stop(stage);
}

void Engine::stage_over(int32_t slot, int32_t stage) {
  Run& run = *runs_[static_cast<size_t>(slot)];
  const auto at = static_cast<size_t>(stage);
  if (run.stage_started_s[at] < 0) return;
  Owned& owned = owned_.at(run.job);
  owned.held_s += queue_.now() - run.stage_started_s[at];
  owned.busy_s += run.play->busy_s(stage);
  run.stage_started_s[at] = -1;
  run.play->stop(stage);
  --run.computing;
  maybe_free(slot);
}

void Engine::maybe_free(int32_t slot) {
  Run& run = *runs_[static_cast<size_t>(slot)];
  const broker::Job& job = state_.jobs.at(run.job);
  if (run.computing > 0 || (job.epoch == run.epoch && !broker::ended(job.phase))) return;
  Owned& owned = owned_.at(run.job);
  const double observed = quantile(run.step_seconds, 0.5);
  if (observed > 0) owned.errors.push_back(run.predicted_s / observed - 1);
  run.step_seconds.clear();
  // It may be its own stage that ends it: it goes when nobody is inside it any more.
  queue_.after(0, [this, slot] { runs_[static_cast<size_t>(slot)].reset(); });
}

void Engine::phase_changed(const std::string& id) {
  const broker::Job& job = state_.jobs.at(id);
  Owned& owned = owned_.at(id);
  const JobPhase before = owned.phase;
  changed_s_ = queue_.now();
  owned.phase = job.phase;
  if (before == JobPhase::kRunning && job.phase == JobPhase::kQueued) ++owned.outcome.migrations;
  if (!broker::ended(job.phase) || broker::ended(before)) return;
  if (const auto known = run_slots_.find({id, job.epoch});
      known != run_slots_.end() && runs_[static_cast<size_t>(known->second)]) {
    maybe_free(known->second);
  }
  owned.outcome.ended_s = queue_.now();
  if (job.phase == JobPhase::kFailed) ++owned.outcome.failures;
  const bool again = job.phase == JobPhase::kFailed && scenario_.resume_s &&
                     broker::check_command(state_, broker::ResumeJob{id, {}, {}}).ok() && job.plan;
  if (!again) {
    --unended_;
    return;
  }
  queue_.after(*scenario_.resume_s, [this, id] {
    ++outcome_.recoveries;
    owned_.at(id).outcome.ended_s = -1;
    feed(broker::ResumeJob{id, {}, {}});
  });
}

JobOutcome Engine::outcome_of(const std::string& id) {
  const Owned& owned = owned_.at(id);
  JobOutcome result = owned.outcome;
  if (const auto known = state_.jobs.find(id); known != state_.jobs.end()) {
    result.phase = broker::phase_name(known->second.phase);
    result.reason = known->second.reason;
    // Of a job that ended before its end, a resume would go on from its last checkpoint.
    const JobPhase phase = known->second.phase;
    const bool running = phase == JobPhase::kRunning || phase == JobPhase::kFinished;
    result.steps = running ? owned.first_stage_step : known->second.step_to_resume();
  } else {
    result.phase = "not submitted";
  }
  result.step_s = quantile(owned.step_seconds, 0.5);
  result.slow_step_s = quantile(owned.step_seconds, 0.95);
  result.error = median(owned.errors);
  result.busy = owned.held_s > 0 ? owned.busy_s / owned.held_s : 0;
  return result;
}

}  // namespace weft::simulate
