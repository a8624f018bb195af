// The threads of weft-worker beside the compute thread (main, the only one that touches ATen) and
// the data plane's I/O thread ("weft-data", inside net/tls):
//   "weft-stdin"  reads the daemon's lines; stop or end of file interrupts everything
//   "weft-alive"  says once a second how long the compute thread has not moved
// WorkerControl is what they share.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/os/line_pipe.h"
#include "executor/worker_lines.h"
#include "net/endpoint.h"

namespace weft::executor {

enum class StopCause { kNone, kOrdered, kDaemonGone, kBadLine };

class WorkerControl {
 public:
  // Compute thread: it is alive and getting on.
  void moved();
  double seconds_since_moved() const;

  // Compute thread: the endpoint that a stop interrupts; nullptr before it goes away.
  void set_endpoint(net::Endpoint* endpoint);

  // Compute thread: blocks for the next connect or start line; kCancelled once stopped.
  Result<DaemonLine> next_line();

  // Compute thread: whether to wait behind a step, as said last. Blocks until that is no longer so,
  // until stopped, or for that long.
  bool held(int64_t step, double wait_seconds = 0);

  StopCause stop_cause() const;
  bool stopped() const { return stop_cause() != StopCause::kNone; }
  Error stop_error() const;  // kCancelled, with the reason

  // weft-stdin (and tests): a parsed line, or the end.
  void push(DaemonLine line);
  void stop(StopCause cause, const std::string& reason);

  // Waits for the compute thread to say finished(); false after seconds without it.
  bool wait_finished(double seconds);
  void finished();

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<DaemonLine> lines_;
  net::Endpoint* endpoint_ = nullptr;
  int64_t hold_step_ = 0;  // 0: none
  StopCause cause_ = StopCause::kNone;
  std::string reason_;
  bool finished_ = false;
  double moved_s_ = monotonic_seconds();
};

// The exit code a stop leads to: 0 when it was ordered, else 1.
int exit_code_of(StopCause cause);

// Owns "weft-stdin". After a stop the compute thread has kStopGraceSeconds to end by itself, then
// `hard_exit` is called: a stuck kernel must not outlive its daemon.
class StdinThread {
 public:
  static constexpr double kStopGraceSeconds = 2;
  StdinThread(WorkerControl& control, os::LineReader& reader, std::function<void(int)> hard_exit);
  ~StdinThread();

 private:
  void run();
  WorkerControl& control_;
  os::LineReader& reader_;
  std::function<void(int)> hard_exit_;
  os::WakePipe wake_;
  std::thread thread_;
};

// Owns "weft-alive".
class AliveThread {
 public:
  AliveThread(const WorkerControl& control, EventSink events, double period_seconds = 1);
  ~AliveThread();

 private:
  void run(double period_seconds);
  const WorkerControl& control_;
  EventSink events_;
  std::mutex mutex_;
  std::condition_variable ending_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace weft::executor
