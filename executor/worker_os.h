// The operating-system calls of weft-worker beyond base/os, in one file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace weft::executor {

// No core dumps (they would hold weights and keys), no new privileges for anything executed.
void harden_process();
// Largest resident set so far.
int64_t peak_resident_bytes();
// Seconds since an undefined origin; never goes back. Any thread.
double monotonic_seconds();
// Names the calling thread in debuggers and /proc; at most 15 characters count.
void name_this_thread(const char* name);
// Ends the process at once: no destructors, no exit handlers, nothing that could hang.
[[noreturn]] void exit_now(int code);

// Writes everything, also through short writes; false when the reader is gone.
bool write_fully(int fd, const std::string& text);

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

// Lines of a descriptor, bounded. One thread at a time.
class LineReader {
 public:
  explicit LineReader(int fd) : fd_(fd) {}
  // Blocks for the next line, without its end. kCancelled: woken; kUnavailable: end of file or a
  // read error; kTooLarge: a line beyond max_bytes.
  Result<std::string> next(size_t max_bytes, const WakePipe* wake = nullptr);

 private:
  int fd_;
  std::string pending_;
  size_t searched_ = 0;
};

}  // namespace weft::executor
