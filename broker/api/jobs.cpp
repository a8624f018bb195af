// /api/v1/plans and /api/v1/jobs
#include <fmt/format.h>

#include <algorithm>

#include "broker/api/api.h"

namespace weft::broker {
namespace {

Json optional_number(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace

Result<std::string> Api::find_job(const std::string& id_or_name) const {
  const auto& jobs = core_.state().jobs;
  if (jobs.contains(id_or_name)) return id_or_name;
  std::vector<std::string> named;
  for (const auto& [id, job] : jobs) {
    if (job.name == id_or_name) named.push_back(id);
  }
  if (named.size() == 1) return named[0];
  if (named.empty()) {
    return make_error(Code::kNotFound, fmt::format("there is no job {}", id_or_name),
                      "see `weft job list`");
  }
  return make_error(
      Code::kInvalid,
      fmt::format("{} jobs are named {}: {}", named.size(), id_or_name, fmt::join(named, ", ")),
      "use the id");
}

Json Api::job_json(const Job& job) {
  Json peers = Json::array();
  for (const StageState& stage : job.stages) peers.push_back(stage.peer);
  Json spec = core_.spec_of(job.id);
  Json last = nullptr;
  if (job.last_checkpoint_step() >= 0) last = job.last_checkpoint_step();
  return {{"id", job.id},
          {"name", job.name},
          {"state", phase_name(job.phase)},
          {"reason", job.reason},
          {"created_ms", job.created_ms},
          {"started_ms", job.started_ms},
          {"ended_ms", job.ended_ms},
          {"step", job.step},
          {"steps", job.steps},
          {"loss", optional_number(job.loss)},
          {"eval_loss", optional_number(job.eval_loss)},
          {"first_loss", optional_number(job.first_loss)},
          {"eval_accuracy", optional_number(job.eval_accuracy)},
          {"stages", job.plan ? static_cast<int64_t>(job.plan->stages.size())
                              : static_cast<int64_t>(job.requested_stages)},
          {"peers", std::move(peers)},
          {"epoch", job.epoch},
          {"last_checkpoint_step", std::move(last)},
          {"resumable", job.resumable()},
          {"spec", std::move(spec)},
          {"next", job.next}};
}

void Api::post_plan(const Call& call, const net::HttpReply& reply) {
  answer(reply, [&]() -> Result<Json> {
    WEFT_TRY(const Json body, parse_json(call.request.body));
    WEFT_TRY(const Submission submission, submission_from_json(body));
    WEFT_TRY(const JobGraphs graphs, load_graphs(submission, core_.blobs()));
    WEFT_TRY_STATUS(check_submission(submission, graphs, core_.blobs(), /*dry_run=*/true));
    WEFT_TRY(const job::Plan plan, core_.dry_run(submission, graphs));
    Json as_json = job::plan_to_json(plan);
    Json stages = Json::array();
    for (const job::StagePlan& stage : plan.stages) {
      stages.push_back({{"peers", stage.replicas},
                        {"flops", stage.flops},
                        {"parameter_bytes", stage.parameter_bytes},
                        {"memory_bytes", stage.memory_bytes}});
    }
    return Json{{"plan", std::move(as_json)},
                {"stages", std::move(stages)},
                {"reason", plan.reason},
                {"warnings", warnings_of(submission, graphs)}};
  }());
}

void Api::post_job(const Call& call, const net::HttpReply& reply) {
  answer(
      reply,
      [&]() -> Result<Json> {
        WEFT_TRY(const Json body, parse_json(call.request.body));
        WEFT_TRY(Submission submission, submission_from_json(body));
        WEFT_TRY(JobGraphs graphs, load_graphs(submission, core_.blobs()));
        WEFT_TRY_STATUS(check_submission(submission, graphs, core_.blobs(), /*dry_run=*/false));
        WEFT_TRY_STATUS(settle_eval_batches(submission, graphs, core_.blobs()));
        const std::string id = fresh_id(
            "j-", [&](const std::string& made) { return core_.state().jobs.contains(made); });
        WEFT_TRY_STATUS(core_.submit(id, body, submission, std::move(graphs)));
        return job_json(core_.state().jobs.at(id));
      }(),
      201);
}

void Api::get_jobs(const Call&, const net::HttpReply& reply) {
  std::vector<const Job*> jobs;
  for (const auto& [id, job] : core_.state().jobs) jobs.push_back(&job);
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const Job* a, const Job* b) { return a->created_ms > b->created_ms; });
  Json list = Json::array();
  for (const Job* job : jobs) list.push_back(job_json(*job));
  answer(reply, Json{{"jobs", std::move(list)}});
}

void Api::get_job(const Call& call, const net::HttpReply& reply) {
  answer(reply, [&]() -> Result<Json> {
    WEFT_TRY(const std::string id, find_job(call.id));
    return job_json(core_.state().jobs.at(id));
  }());
}

void Api::delete_job(const Call& call, const net::HttpReply& reply) {
  const Status done = [&]() -> Status {
    WEFT_TRY(const std::string id, find_job(call.id));
    return core_.command(DeleteJob{id});
  }();
  if (!done.ok()) {
    reply(net::problem_response(done.error()));
    return;
  }
  net::HttpResponse response;
  response.status = 204;
  reply(std::move(response));
}

void Api::cancel_job(const Call& call, const net::HttpReply& reply) {
  answer(reply, [&]() -> Result<Json> {
    WEFT_TRY(const std::string id, find_job(call.id));
    WEFT_TRY(const Json body, parse_body(call.request, {"reason"}));
    std::string reason;
    if (body.contains("reason")) {
      WEFT_TRY(reason, text_field(body, "reason", 1024));
    }
    WEFT_TRY_STATUS(core_.command(CancelJob{id, reason}));
    return job_json(core_.state().jobs.at(id));
  }());
}

void Api::resume_job(const Call& call, const net::HttpReply& reply) {
  answer(reply, [&]() -> Result<Json> {
    WEFT_TRY(const std::string id, find_job(call.id));
    WEFT_TRY(const Json body, parse_body(call.request, {"stages", "steps"}));
    ResumeJob event{id, std::nullopt, std::nullopt};
    if (body.contains("stages")) {
      WEFT_TRY(const int64_t stages, integer_field(body, "stages", 0, 0, 4096));
      event.stages = static_cast<int32_t>(stages);
    }
    if (body.contains("steps")) {
      WEFT_TRY(event.steps, integer_field(body, "steps", 0, 1, INT64_MAX));
    }
    WEFT_TRY_STATUS(core_.command(event));
    return job_json(core_.state().jobs.at(id));
  }());
}

}  // namespace weft::broker
