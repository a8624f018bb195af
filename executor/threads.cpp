#include "executor/threads.h"

#include <fmt/format.h>

#include <chrono>

#include "base/log.h"
#include "base/os/own_process.h"
#include "base/os/signals.h"

namespace weft::executor {
namespace {

constexpr size_t kMaxLineBytes = size_t{4} << 20;
constexpr size_t kMaxQueuedLines = 64;

std::chrono::duration<double> seconds(double value) {
  return std::chrono::duration<double>(value);
}

}  // namespace

void WorkerControl::moved() {
  const std::lock_guard lock(mutex_);
  moved_s_ = monotonic_seconds();
}

double WorkerControl::seconds_since_moved() const {
  const std::lock_guard lock(mutex_);
  return monotonic_seconds() - moved_s_;
}

void WorkerControl::set_endpoint(net::Endpoint* endpoint) {
  const std::lock_guard lock(mutex_);
  endpoint_ = endpoint;
  if (endpoint_ != nullptr && cause_ != StopCause::kNone) endpoint_->interrupt();
}

Result<DaemonLine> WorkerControl::next_line() {
  std::unique_lock lock(mutex_);
  for (;;) {
    // Waiting for the daemon is not being stuck.
    moved_s_ = monotonic_seconds();
    if (cause_ != StopCause::kNone) break;
    if (!lines_.empty()) {
      DaemonLine line = std::move(lines_.front());
      lines_.pop_front();
      return line;
    }
    changed_.wait_for(lock, seconds(0.5));
  }
  lock.unlock();
  return stop_error();
}

bool WorkerControl::held(int64_t step, double wait_seconds) {
  std::unique_lock lock(mutex_);
  const auto goes_on = [&] { return hold_step_ != step || cause_ != StopCause::kNone; };
  if (wait_seconds > 0) changed_.wait_for(lock, seconds(wait_seconds), goes_on);
  moved_s_ = monotonic_seconds();  // waiting because one is told to is not being stuck
  return hold_step_ == step;
}

StopCause WorkerControl::stop_cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

Error WorkerControl::stop_error() const {
  const std::lock_guard lock(mutex_);
  return make_error(Code::kCancelled, reason_.empty() ? "stopped" : reason_);
}

void WorkerControl::push(DaemonLine line) {
  if (line.kind == DaemonLine::Kind::kStop) {
    stop(StopCause::kOrdered, line.reason);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (line.kind == DaemonLine::Kind::kHold) {  // holds from now on, nobody waits for it
      hold_step_ = line.step;
      changed_.notify_all();
      return;
    }
    if (lines_.size() < kMaxQueuedLines) {
      lines_.push_back(std::move(line));
      changed_.notify_all();
      return;
    }
  }
  stop(StopCause::kBadLine, fmt::format("more than {} lines nobody waits for", kMaxQueuedLines));
}

void WorkerControl::stop(StopCause cause, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (cause_ == StopCause::kNone) {
    cause_ = cause;
    reason_ = reason;
  }
  if (endpoint_ != nullptr) endpoint_->interrupt();
  changed_.notify_all();
}

bool WorkerControl::wait_finished(double limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, seconds(limit), [this] { return finished_; });
}

void WorkerControl::finished() {
  const std::lock_guard lock(mutex_);
  finished_ = true;
  changed_.notify_all();
}

int exit_code_of(StopCause cause) {
  return cause == StopCause::kOrdered ? 0 : 1;
}

StdinThread::StdinThread(WorkerControl& control, os::LineReader& reader,
                         std::function<void(int)> hard_exit)
    : control_(control),
      reader_(reader),
      hard_exit_(std::move(hard_exit)),
      thread_([this] { run(); }) {}

StdinThread::~StdinThread() {
  control_.finished();
  wake_.wake();
  thread_.join();
}

void StdinThread::run() {
  os::name_thread("weft-stdin");
  while (!control_.stopped()) {
    auto line = reader_.next(kMaxLineBytes, &wake_);
    if (!line.ok()) {
      if (line.error().code == Code::kCancelled) return;
      control_.stop(StopCause::kDaemonGone, "the daemon is gone: " + line.error().message);
      break;
    }
    if (line->empty()) continue;
    auto parsed = parse_daemon_line(*line);
    if (parsed.ok()) {
      control_.push(std::move(*parsed));
    } else {
      control_.stop(StopCause::kBadLine, parsed.error().message);
    }
  }
  log_info("stopping: {}", control_.stop_error().message);
  if (control_.wait_finished(kStopGraceSeconds)) return;
  log_warning("the compute thread did not end within {} s: exiting hard", kStopGraceSeconds);
  hard_exit_(exit_code_of(control_.stop_cause()));
}

AliveThread::AliveThread(const WorkerControl& control, EventSink events, double period_seconds)
    : control_(control),
      events_(std::move(events)),
      thread_([this, period_seconds] { run(period_seconds); }) {}

AliveThread::~AliveThread() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ending_.notify_all();
  thread_.join();
}

void AliveThread::run(double period_seconds) {
  os::name_thread("weft-alive");
  std::unique_lock lock(mutex_);
  while (!ending_.wait_for(lock, seconds(period_seconds), [this] { return end_; })) {
    job::WorkerEvent event;
    event.kind = job::WorkerEventKind::kAlive;
    event.seconds = control_.seconds_since_moved();
    event.peak_memory_bytes = os::peak_resident_bytes();
    events_(event);
  }
}

}  // namespace weft::executor
