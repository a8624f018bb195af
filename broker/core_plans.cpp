// The core's plans: what a job is planned with, again while it runs, or without being one.
#include <algorithm>

#include "broker/core.h"
#include "broker/worker_spec_builder.h"

namespace weft::broker {
namespace {

constexpr size_t kMaxLoadedJobs = 8;

}  // namespace

Result<std::shared_ptr<const LoadedJob>> Core::loaded(const std::string& job) {
  const auto found = loaded_.find(job);
  if (found != loaded_.end()) return found->second;
  WEFT_TRY(const nlohmann::json body, store_.submission(job));
  WEFT_TRY(Submission submission, submission_from_json(body));
  WEFT_TRY(JobGraphs graphs, load_graphs(submission, blobs_));
  WEFT_TRY_STATUS(settle_eval_batches(submission, graphs, blobs_));
  if (loaded_.size() >= kMaxLoadedJobs) {
    std::erase_if(loaded_, [&](const auto& entry) {
      const auto owner = state_.jobs.find(entry.first);
      return owner == state_.jobs.end() || ended(owner->second.phase);
    });
  }
  auto entry =
      std::make_shared<const LoadedJob>(LoadedJob{std::move(submission), std::move(graphs)});
  loaded_[job] = entry;
  return std::shared_ptr<const LoadedJob>(entry);
}

Result<job::Plan> Core::plan(const Job& job, const std::vector<const Peer*>& idle) {
  WEFT_TRY(const auto known, loaded(job.id));
  WEFT_TRY_STATUS(check_resume_point(job, known->graphs.graph));
  return plan_over(known->graphs.graph, spec_to_plan(known->submission.spec, job), idle);
}

DeviceLessons Core::lessons_for(const std::vector<const Peer*>& peers) const {
  const bool any = std::any_of(peers.begin(), peers.end(),
                               [](const Peer* peer) { return DeviceLessons::asked_by(*peer); });
  return any ? DeviceLessons(state_.peers) : DeviceLessons();
}

PlannerOptions Core::planner_options() {
  PlannerOptions options;
  options.memory_share = options_.memory_share;
  options.measured = [this](const std::vector<std::string>& ids) {
    return links().view(ids).planner_ways();
  };
  return options;
}

Result<job::Plan> Core::plan_over(const opdag::Graph& graph, const job::JobSpec& spec,
                                  const std::vector<const Peer*>& idle) {
  auto plan =
      plan_over_idle(graph, spec, idle, options_.known, lessons_for(idle), planner_options());
  if (plan.ok()) links_.depend_on(ways_of(graph, plan.value()));
  return plan;
}

// Graph, first weights and data; the checkpoint's shards are counted by their own rule.
double Core::bytes_to_fetch(const Job& job, const LoadedJob& known, const job::Plan& plan,
                            int32_t stage) const {
  Job fresh = job;
  fresh.plan = plan;
  fresh.resume_step = 0;
  const auto spec = build_worker_spec(fresh, known.submission, known.graphs, stage);
  if (!spec.ok()) return 0;  // the deployment will say so
  const auto has = peer_blobs_.find(plan.stages[static_cast<size_t>(stage)].replicas[0]);
  double bytes = 0;
  for (const job::BlobRef& blob : blobs_of(spec.value())) {
    if (blob.sha256 == spec->init.sha256) continue;  // of a job that begins only
    if (has != peer_blobs_.end() && has->second.contains(blob.sha256)) continue;
    bytes += static_cast<double>(blob.bytes);
  }
  return bytes;
}

Result<Replanned> Core::replan(const Job& job, const std::vector<const Peer*>& peers,
                               double unproven) {
  WEFT_TRY(const auto known, loaded(job.id));
  auto replanned = replan_over(known->graphs.graph, known->submission.spec, job, peers,
                               options_.known, lessons_for(peers), planner_options(), unproven,
                               [&](const job::Plan& plan, int32_t stage) {
                                 return bytes_to_fetch(job, *known, plan, stage);
                               });
  if (replanned.ok()) links_.depend_on(ways_of(known->graphs.graph, replanned->plan));
  return replanned;
}

Result<job::Plan> Core::dry_run(const Submission& submission, const JobGraphs& graphs) {
  std::vector<const Peer*> idle;
  for (const auto& [id, peer] : state_.peers) {
    if (usable(peer)) idle.push_back(&peer);
  }
  return plan_over(graphs.graph, submission.spec, idle);
}

Status Core::submit(const std::string& job, const nlohmann::json& body,
                    const Submission& submission, JobGraphs graphs) {
  SubmitJob event{job,
                  submission.spec.name,
                  submission.spec.train.steps,
                  submission.spec.pipeline.stages,
                  submission.spec.train.checkpoint_keep,
                  submission.spec.train.checkpoint_every,
                  submission.spec.pipeline.replan == job::Replan::kAuto};
  WEFT_TRY_STATUS(check_command(state_, event));
  WEFT_TRY_STATUS(store_.put_submission(job, body));
  know(job, body);
  loaded_[job] = std::make_shared<const LoadedJob>(LoadedJob{submission, std::move(graphs)});
  apply(event);
  return {};
}

}  // namespace weft::broker
