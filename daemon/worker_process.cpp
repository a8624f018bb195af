#include "daemon/worker_process.h"

#include <fmt/format.h>
#include <signal.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "base/os/line_pipe.h"
#include "base/os/signals.h"
#include "job/json_read.h"

namespace weft::daemon {
namespace {

constexpr size_t kMaxLineBytes = size_t{1} << 20;
constexpr int kWriteTimeoutMs = 1000;

// A worker that a job took over may say anything.
Result<job::WorkerEvent> read_event(const std::string& line) {
  WEFT_TRY(const nlohmann::json json, job::parse_json(line, "the line"));
  return job::event_from_json(json);
}

}  // namespace

struct WorkerProcess::Impl {
  os::Child child;
  OnLine on_line;
  OnExit on_exit;
  std::thread reader;
  std::mutex reap_mutex;  // a signal must not meet a pid that was reaped and reused
  bool reaped = false;

  os::ExitStatus reap() {
    os::wait_unreaped(child.pid);
    std::lock_guard lock(reap_mutex);
    reaped = true;
    return os::wait(child.pid);
  }

  void read_loop() {
    os::name_thread("weft-worker-out");
    os::LineReader lines(child.stdout_fd);
    for (auto line = lines.next(kMaxLineBytes); line.ok(); line = lines.next(kMaxLineBytes)) {
      on_line(std::move(*line));
    }
    on_exit(reap());
  }
};

WorkerProcess::WorkerProcess(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::start(const std::string& program,
                                                            const os::Path& spec_file,
                                                            const os::Path& log_file,
                                                            OnEvent on_event, OnExit on_exit,
                                                            const std::string& jail) {
  const auto on_line = [on_event = std::move(on_event),
                        wrong_lines = std::make_shared<LogLimit>()](const std::string& line) {
    auto event = read_event(line);
    if (event.ok()) {
      on_event(std::move(*event));
    } else if (const auto note = wrong_lines->admit(SystemClock().monotonic_ms())) {
      log_warning("the worker wrote a line that is no event: {}{}", event.error().message, *note);
    }
  };
  return start_command({program, "run", "--spec", spec_file.string(), "--jail", jail}, log_file,
                       on_line, std::move(on_exit));
}

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::start_command(std::vector<std::string> argv,
                                                                    const os::Path& log_file,
                                                                    OnLine on_line,
                                                                    OnExit on_exit) {
  os::SpawnOptions options;
  options.argv = std::move(argv);
  options.environment = {"CUDA_DEVICE_ORDER=PCI_BUS_ID"};  // "cuda:N": as nvidia-smi counts
  options.stderr_file = log_file;
  options.pipe_stdio = true;
  options.ignore_stop_signals = true;  // from its first instruction on
  auto impl = std::make_unique<Impl>();
  WEFT_TRY(impl->child, os::spawn(options));
  os::set_nonblocking(impl->child.stdin_fd);
  impl->on_line = std::move(on_line);
  impl->on_exit = std::move(on_exit);
  impl->reader = std::thread([raw = impl.get()] { raw->read_loop(); });
  return std::unique_ptr<WorkerProcess>(new WorkerProcess(std::move(impl)));
}

WorkerProcess::~WorkerProcess() {
  kill_now();
  os::close_descriptor(impl_->child.stdin_fd);
  impl_->reader.join();
  os::close_descriptor(impl_->child.stdout_fd);
}

Status WorkerProcess::send_line(const std::string& line) {
  auto sent = os::write_within(impl_->child.stdin_fd, line + "\n", kWriteTimeoutMs);
  if (sent.ok()) return {};
  return std::move(sent).error().within(fmt::format("worker {} takes no messages", pid()));
}

// A stopped process (SIGSTOP) dies by SIGKILL too.
void WorkerProcess::kill_now() {
  std::lock_guard lock(impl_->reap_mutex);
  if (!impl_->reaped) os::send_signal(impl_->child.pid, SIGKILL);
}

pid_t WorkerProcess::pid() const {
  return impl_->child.pid;
}

}  // namespace weft::daemon
