// Time as an injected value. Decisions take `now` as an argument; only adapters hold a Clock.
// SystemClock may be called from any thread; VirtualClock belongs to one thread.
#pragma once

#include <cstdint>

namespace weft {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t monotonic_ms() const = 0;  // never goes back; no defined origin
  virtual int64_t wall_ms() const = 0;       // Unix time
};

class SystemClock final : public Clock {
 public:
  int64_t monotonic_ms() const override;
  int64_t wall_ms() const override;
};

// Seconds of the system's monotonic clock, for measuring how long something took. Any thread.
double monotonic_seconds();

// Stands still until told to move.
class VirtualClock final : public Clock {
 public:
  int64_t monotonic_ms() const override { return now_ms_; }
  int64_t wall_ms() const override { return now_ms_; }
  void advance_ms(int64_t delta_ms) { now_ms_ += delta_ms; }

 private:
  int64_t now_ms_ = 0;
};

}  // namespace weft
