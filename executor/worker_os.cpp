#include "executor/worker_os.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

namespace weft::executor {

void harden_process() {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void name_this_thread(const char* name) {
  pthread_setname_np(pthread_self(), name);
}

void exit_now(int code) {
  _exit(code);
}

bool write_fully(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = write(fd, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    done += static_cast<size_t>(written);
  }
  return true;
}

WakePipe::WakePipe() {
  if (pipe2(fds_, O_CLOEXEC | O_NONBLOCK) != 0) fds_[0] = fds_[1] = -1;
}

WakePipe::~WakePipe() {
  for (const int fd : fds_) {
    if (fd >= 0) close(fd);
  }
}

void WakePipe::wake() {
  const char byte = 1;
  // A full pipe is awake already.
  [[maybe_unused]] const ssize_t written = write(fds_[1], &byte, 1);
}

Result<std::string> LineReader::next(size_t max_bytes, const WakePipe* wake) {
  for (;;) {
    const size_t end = pending_.find('\n', searched_);
    if (end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      searched_ = 0;
      return line;
    }
    searched_ = pending_.size();
    if (pending_.size() > max_bytes) {
      return make_error(Code::kTooLarge,
                        fmt::format("a line on standard input exceeds {} bytes", max_bytes));
    }
    pollfd waits[2] = {{fd_, POLLIN, 0}, {wake != nullptr ? wake->read_fd() : -1, POLLIN, 0}};
    if (poll(waits, wake != nullptr ? 2 : 1, -1) < 0 && errno != EINTR) {
      return make_error(Code::kUnavailable, fmt::format("poll: {}", std::strerror(errno)));
    }
    if (waits[1].revents != 0) return make_error(Code::kCancelled, "woken");
    if (waits[0].revents == 0) continue;
    char chunk[65536];
    const ssize_t got = read(fd_, chunk, sizeof(chunk));
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return make_error(Code::kUnavailable, "end of standard input");
    pending_.append(chunk, static_cast<size_t>(got));
  }
}

}  // namespace weft::executor
