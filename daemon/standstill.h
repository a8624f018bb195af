// Standstill: tells that this process itself did not run for a while (stopped, suspended, a laptop
// asleep), so that silence of others during that time is not held against them: what they said
// meanwhile has not been read yet. Pure; one thread.
#pragma once

#include <cstdint>

namespace weft::daemon {

class Standstill {
 public:
  // gap_ms: calls of note() that lie further apart than this mean that the process stood still.
  explicit Standstill(int64_t gap_ms) : gap_ms_(gap_ms) {}

  // Call regularly. Whether the process stood still since the last call.
  bool note(int64_t now_ms) {
    const bool stood = last_ms_ >= 0 && now_ms - last_ms_ > gap_ms_;
    last_ms_ = now_ms;
    return stood;
  }

 private:
  int64_t gap_ms_;
  int64_t last_ms_ = -1;  // never called yet
};

}  // namespace weft::daemon
