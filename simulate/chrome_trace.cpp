#include "simulate/chrome_trace.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "job/schedule_walk.h"

namespace weft::simulate {
namespace {

// Row of a stage's messages beside the row of its work.
constexpr int32_t kMessageRows = 100000;
constexpr double kMicroseconds = 1e6;

std::string name_of(const PlaySpan& span) {
  const char* what = job::is_gradient(span.kind) ? "gradient" : "activation";
  if (span.other >= 0) {
    return fmt::format("{} of micro-batch {} to stage {}", what, span.micro_batch, span.other);
  }
  // A message on the stage's own time is a codec's work.
  if (job::is_send(span.kind)) {
    return fmt::format("encode the {} of micro-batch {}", what, span.micro_batch);
  }
  if (job::is_receive(span.kind)) {
    return fmt::format("decode the {} of micro-batch {}", what, span.micro_batch);
  }
  return job::describe({span.kind, span.micro_batch, -1});
}

}  // namespace

void ChromeTrace::add(const std::string& event) {
  if (full()) return;
  if (events_++ > 0) text_ += ",\n";
  text_ += event;
}

int32_t ChromeTrace::process_of(const std::string& job) {
  const auto [known, added] = processes_.try_emplace(job, static_cast<int32_t>(processes_.size()));
  if (added) {
    const std::string name = job.empty() ? "cluster" : job;
    add(fmt::format(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":{}}}}})",
                    known->second, nlohmann::json(name).dump()));
  }
  return known->second;
}

void ChromeTrace::span(const std::string& job, int32_t deployment, const PlaySpan& span) {
  if (full() || !wanted(job)) return;
  const int64_t first = first_step_.try_emplace({job, deployment}, span.step).first->second;
  if (span.step >= first + steps_) return;
  const bool message = span.other >= 0;
  const std::string what = name_of(span);
  add(fmt::format(
      R"({{"ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"name":"{}","args":{{"step":{}}}}})",
      process_of(job), (message ? kMessageRows : 0) + 1 + span.stage, kMicroseconds * span.begin_s,
      kMicroseconds * (span.end_s - span.begin_s), what, span.step));
}

void ChromeTrace::event(double time_s, const std::string& job, const std::string& kind,
                        const std::string& message) {
  if (full() || !wanted(job)) return;
  const std::string text = nlohmann::json(kind + ": " + message)
                               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  add(fmt::format(R"({{"ph":"i","s":"t","pid":{},"tid":0,"ts":{:.3f},"name":{}}})", process_of(job),
                  kMicroseconds * time_s, text));
}

std::string ChromeTrace::finish() {
  text_ += "]}\n";
  return std::move(text_);
}

}  // namespace weft::simulate
