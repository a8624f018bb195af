// The lines between a daemon and its worker (job/worker_spec.h): parsing what the daemon says,
// writing what the worker reports.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "job/worker_spec.h"

namespace weft::executor {

struct DaemonLine {
  enum class Kind { kConnect, kStart, kHold, kStop };
  Kind kind = Kind::kStop;
  std::vector<job::StageAddress> stages;  // of connect
  int64_t step = 0;                       // of hold
  std::string reason;                     // of stop
};

Result<DaemonLine> parse_daemon_line(const std::string& line);

// Takes events from any thread.
using EventSink = std::function<void(const job::WorkerEvent&)>;

// Writes each event as one JSON line to a descriptor; whole lines only, from any thread.
class EventWriter {
 public:
  explicit EventWriter(int fd) : fd_(fd) {}
  void write(const job::WorkerEvent& event);

 private:
  int fd_;
  std::mutex mutex_;
};

job::WorkerEvent failure_event(const Error& error, int64_t step);

}  // namespace weft::executor
