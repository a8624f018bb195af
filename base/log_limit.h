// Bounds how many lines a kind of event may write to the log: what strangers send wrong must not
// fill a disk. A number of lines a period; the next line says how many were left out. Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

namespace weft {

class LogLimit {
 public:
  explicit LogLimit(uint32_t lines = 10, int64_t period_ms = 60000)
      : lines_(lines), period_ms_(period_ms) {}

  // Nothing: leave the line out. Else what to put behind it: empty, or " (N more left out)".
  std::optional<std::string> admit(int64_t now_ms);

 private:
  const uint32_t lines_;
  const int64_t period_ms_;
  std::mutex mutex_;
  int64_t period_ends_ms_ = INT64_MIN;
  uint32_t written_ = 0;
  uint64_t left_out_ = 0;
};

}  // namespace weft
