#include "daemon/worker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"
#include "base/os/signals.h"

namespace weft::daemon {
namespace {

constexpr size_t kMaxLineBytes = size_t{1} << 20;
constexpr int kWriteTimeoutMs = 1000;

// Splits what a worker writes into lines and hands each to on_line; a line over the bound ends it.
class LineReader {
 public:
  explicit LineReader(int fd) : fd_(fd) {}

  template <typename OnLine>
  void run(OnLine on_line) {
    char block[65536];
    for (;;) {
      const ssize_t got = ::read(fd_, block, sizeof block);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return;
      pending_.append(block, static_cast<size_t>(got));
      size_t begin = 0;
      for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
        on_line(std::string_view(pending_).substr(begin, end - begin));
      }
      pending_.erase(0, begin);
      if (pending_.size() > kMaxLineBytes) return;
    }
  }

 private:
  int fd_;
  std::string pending_;
};

}  // namespace

struct WorkerProcess::Impl {
  os::Child child;
  OnEvent on_event;
  OnExit on_exit;
  std::thread reader;

  void read_loop() {
    os::name_thread("weft-worker-out");
    LineReader(child.stdout_fd).run([&](std::string_view line) {
      const auto parsed = nlohmann::json::parse(line, nullptr, false);
      auto event = job::event_from_json(parsed);
      if (event.ok()) {
        on_event(std::move(*event));
      } else {
        log_warning("worker {} wrote a line that is no event: {}", child.pid,
                    event.error().message);
      }
    });
    on_exit(os::wait(child.pid));
  }
};

WorkerProcess::WorkerProcess(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::start(const std::string& program,
                                                            const os::Path& spec_file,
                                                            const os::Path& log_file,
                                                            OnEvent on_event, OnExit on_exit) {
  os::SpawnOptions options;
  options.argv = {program, "run", "--spec", spec_file.string()};
  options.stderr_file = log_file;
  options.pipe_stdio = true;
  auto impl = std::make_unique<Impl>();
  WEFT_TRY(impl->child, os::spawn(options));
  ::fcntl(impl->child.stdin_fd, F_SETFL, O_NONBLOCK);
  impl->on_event = std::move(on_event);
  impl->on_exit = std::move(on_exit);
  impl->reader = std::thread([raw = impl.get()] { raw->read_loop(); });
  return std::unique_ptr<WorkerProcess>(new WorkerProcess(std::move(impl)));
}

WorkerProcess::~WorkerProcess() {
  kill_now();
  ::close(impl_->child.stdin_fd);
  impl_->reader.join();
  ::close(impl_->child.stdout_fd);
}

Status WorkerProcess::send_line(const std::string& line) {
  const std::string text = line + "\n";
  size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t wrote = ::write(impl_->child.stdin_fd, text.data() + sent, text.size() - sent);
    if (wrote > 0) {
      sent += static_cast<size_t>(wrote);
      continue;
    }
    pollfd waiting{impl_->child.stdin_fd, POLLOUT, 0};
    if (errno == EINTR || (errno == EAGAIN && ::poll(&waiting, 1, kWriteTimeoutMs) > 0)) continue;
    return make_error(Code::kUnavailable,
                      fmt::format("worker {} takes no messages: {}", pid(), std::strerror(errno)));
  }
  return {};
}

// A stopped process (SIGSTOP) dies by SIGKILL too. The pid cannot have been reused: it stays a
// zombie until the reader thread reaps it, and the reader outlives every caller.
void WorkerProcess::kill_now() {
  os::send_signal(impl_->child.pid, SIGKILL);
}

pid_t WorkerProcess::pid() const {
  return impl_->child.pid;
}

}  // namespace weft::daemon
