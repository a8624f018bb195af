// A simulation as a Chrome trace (chrome://tracing, ui.perfetto.dev): one row a stage with what it
// computes and what it sends, one row a job with what the coordinator tells of it. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "simulate/job_play.h"

namespace weft::simulate {

class ChromeTrace {
 public:
  // Of each deployment the stages' spans of its first `steps` steps are kept, of all jobs, or of
  // one by name. Beyond kMostEvents nothing more is kept.
  ChromeTrace(std::string job, int64_t steps) : job_(std::move(job)), steps_(steps) {}

  void span(const std::string& job, int32_t deployment, const PlaySpan& span);
  void event(double time_s, const std::string& job, const std::string& kind,
             const std::string& message);
  // The whole document; once.
  std::string finish();
  bool full() const { return events_ >= kMostEvents; }

  static constexpr size_t kMostEvents = 2000000;

 private:
  // Of a job's rows: its process.
  int32_t process_of(const std::string& job);
  void add(const std::string& event);
  bool wanted(const std::string& job) const { return job_.empty() || job == job_; }

  std::string job_;
  int64_t steps_;
  std::map<std::string, int32_t> processes_;
  std::map<std::pair<std::string, int32_t>, int64_t> first_step_;  // of a deployment
  std::string text_ = "{\"traceEvents\":[";
  size_t events_ = 0;
};

}  // namespace weft::simulate
