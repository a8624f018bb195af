#include "base/os/line_pipe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace weft::os {

bool write_fully(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

Status write_within(int fd, std::string_view text, int timeout_ms) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<size_t>(written));
      continue;
    }
    const int why = errno;
    pollfd waiting{fd, POLLOUT, 0};
    if (why == EINTR || (why == EAGAIN && poll(&waiting, 1, timeout_ms) > 0)) continue;
    return make_error(Code::kUnavailable, std::strerror(why));
  }
  return {};
}

void set_nonblocking(int fd) {
  fcntl(fd, F_SETFL, O_NONBLOCK);
}

void close_descriptor(int fd) {
  close(fd);
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
      std::string line = pending_.substr(begin_, end - begin_);
      begin_ = searched_ = end + 1;
      return line;
    }
    pending_.erase(0, begin_);
    begin_ = 0;
    searched_ = pending_.size();
    if (pending_.size() > max_bytes) {
      return make_error(Code::kTooLarge, fmt::format("a line exceeds {} bytes", max_bytes));
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
    if (got <= 0) return make_error(Code::kUnavailable, "end of input");
    pending_.append(chunk, static_cast<size_t>(got));
  }
}

}  // namespace weft::os
