// Lines over descriptors: how a daemon and its worker speak. A descriptor belongs to the caller;
// one thread at a time uses it, except that wake() may come from any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weft::os {

// Writes everything, also through short writes; false when the reader is gone.
bool write_fully(int fd, std::string_view text);

// As write_fully, on a descriptor made non-blocking: kUnavailable when the reader is gone or takes
// nothing for timeout_ms. A part of the text may have been written then.
Status write_within(int fd, std::string_view text, int timeout_ms);
void set_nonblocking(int fd);
void close_descriptor(int fd);

// A pipe that wakes a thread blocked in LineReader::next.
class WakePipe {
 public:
  WakePipe();
  ~WakePipe();
  WakePipe(const WakePipe&) = delete;
  WakePipe& operator=(const WakePipe&) = delete;
  void wake();
  int read_fd() const { return fds_[0]; }

 private:
  int fds_[2] = {-1, -1};
};

// Lines of a descriptor, bounded.
class LineReader {
 public:
  explicit LineReader(int fd) : fd_(fd) {}
  // Blocks for the next line, without its end. kCancelled: woken; kUnavailable: end of file or a
  // read error; kTooLarge: a line beyond max_bytes.
  Result<std::string> next(size_t max_bytes, const WakePipe* wake = nullptr);

 private:
  int fd_;
  std::string pending_;
  size_t begin_ = 0;     // of the next line
  size_t searched_ = 0;  // no line end before this
};

}  // namespace weft::os
