// What a reader follows of a job: events, metrics, logs; its explanation; its checkpoints.
#include <algorithm>

#include "base/statistics.h"
#include "broker/api/api.h"

namespace weft::broker {
namespace {

constexpr int64_t kPageRows = 1000;
constexpr int64_t kMaxWaitMs = 30000;

}  // namespace

// Answers when the page's list has entries, or the job has ended, or the wait is over.
void Api::answer_or_wait(const Call& call, const std::string& job, const char* list, Page page,
                         const net::HttpReply& reply) {
  auto wait_ms = query_integer(call.request, "wait_ms", 0);
  if (!wait_ms.ok()) {
    answer(reply, wait_ms.error());
    return;
  }
  const auto attempt = [this, job, list, page, reply](bool expired) {
    auto result = page();
    const auto owner = core_.state().jobs.find(job);
    const bool over = owner == core_.state().jobs.end() || ended(owner->second.phase);
    if (result.ok() && !expired && !over && result.value().at(list).empty()) return false;
    answer(reply, std::move(result));
    return true;
  };
  const int64_t bounded_ms = std::clamp<int64_t>(wait_ms.value(), 0, kMaxWaitMs);
  if (bounded_ms == 0) {
    attempt(true);
  } else if (!attempt(false) && !waiters_.add(job, core_.now_ms() + bounded_ms, attempt)) {
    attempt(true);
  }
}

Result<Json> Api::events_page(const std::string& job, int64_t after) {
  WEFT_TRY(const auto rows, core_.store().events(job, after, kPageRows));
  Json events = Json::array();
  int64_t next = after;
  for (const EventRow& row : rows) {
    next = row.seq;
    events.push_back({{"seq", row.seq},
                      {"time_ms", row.time_ms},
                      {"kind", row.kind},
                      {"message", row.message},
                      {"data", row.data}});
  }
  return Json{{"events", std::move(events)}, {"next", next}};
}

void Api::get_events(const Call& call, const net::HttpReply& reply) {
  auto id = find_job(call.id);
  auto after = query_integer(call.request, "after", 0);
  if (!id.ok() || !after.ok()) {
    answer(reply, id.ok() ? after.error() : id.error());
    return;
  }
  answer_or_wait(
      call, id.value(), "events",
      [this, job = id.value(), from = after.value()] { return events_page(job, from); }, reply);
}

Result<Json> Api::metrics_page(const std::string& job, int64_t after) {
  WEFT_TRY(auto rows, core_.store().steps(job, after, kPageRows));
  // Evaluations up to the last step shown; all of them once the last page is reached at the end.
  int64_t next = rows.empty() ? after : rows.back().at("step").get<int64_t>();
  const auto owner = core_.state().jobs.find(job);
  const bool over = owner != core_.state().jobs.end() && ended(owner->second.phase);
  const int64_t upto = over && rows.size() < static_cast<size_t>(kPageRows) ? INT64_MAX : next;
  WEFT_TRY(auto evals, core_.store().evals(job, after, upto));
  for (const Json& row : evals) next = std::max(next, row.at("step").get<int64_t>());
  return Json{{"steps", std::move(rows)}, {"evals", std::move(evals)}, {"next", next}};
}

void Api::get_job_metrics(const Call& call, const net::HttpReply& reply) {
  auto id = find_job(call.id);
  auto after = query_integer(call.request, "after", 0);
  if (!id.ok() || !after.ok()) {
    answer(reply, id.ok() ? after.error() : id.error());
    return;
  }
  answer_or_wait(
      call, id.value(), "steps",
      [this, job = id.value(), from = after.value()] { return metrics_page(job, from); }, reply);
}

void Api::get_logs(const Call& call, const net::HttpReply& reply) {
  answer(reply, [&]() -> Result<Json> {
    WEFT_TRY(const std::string id, find_job(call.id));
    WEFT_TRY(const int64_t after, query_integer(call.request, "after", 0));
    WEFT_TRY(const auto rows, core_.store().logs(id, after, kPageRows));
    Json lines = Json::array();
    int64_t next = after;
    for (const LogRow& row : rows) {
      next = row.seq;
      lines.push_back({{"seq", row.seq}, {"stage", row.stage}, {"text", row.text}});
    }
    return Json{{"lines", std::move(lines)}, {"next", next}};
  }());
}

void Api::get_explain(const Call& call, const net::HttpReply& reply) {
  answer(reply, [&]() -> Result<Json> {
    WEFT_TRY(const std::string id, find_job(call.id));
    const Job& job = core_.state().jobs.at(id);
    WEFT_TRY(const auto rows, core_.store().decisions(id));
    Json decisions = Json::array();
    for (const DecisionRow& row : rows) {
      decisions.push_back(
          {{"time_ms", row.time_ms}, {"decision", row.decision}, {"reason", row.reason}});
    }
    Json peers = Json::array();  // by stage, as people know them
    for (const StageState& stage : job.stages) {
      const auto known = core_.state().peers.find(stage.peer);
      const bool named = known != core_.state().peers.end() && !known->second.name.empty();
      peers.push_back(named ? known->second.name : stage.peer);
    }
    return Json{{"plan", job.plan ? job::plan_to_json(*job.plan) : Json(nullptr)},
                {"peers", std::move(peers)},
                {"observed_step_s",
                 job.step_seconds.empty() ? Json(nullptr) : Json(median(job.step_seconds))},
                {"reason", job.plan ? job.plan->reason : job.reason},
                {"decisions", std::move(decisions)}};
  }());
}

void Api::get_checkpoints(const Call& call, const net::HttpReply& reply) {
  answer(reply, [&]() -> Result<Json> {
    WEFT_TRY(const std::string id, find_job(call.id));
    Json list = Json::array();
    for (const auto& [step, checkpoint] : core_.state().jobs.at(id).checkpoints) {
      Json shards = Json::array();
      for (const auto& [stage, shard] : checkpoint.shards) {
        shards.push_back({{"stage", shard.stage},
                          {"sha256", shard.sha256},
                          {"bytes", shard.bytes},
                          {"tensors", shard.tensors}});
      }
      list.push_back({{"step", step},
                      {"time_ms", checkpoint.time_ms},
                      {"complete", checkpoint.complete},
                      {"shards", std::move(shards)}});
    }
    return Json{{"checkpoints", std::move(list)}};
  }());
}

}  // namespace weft::broker
