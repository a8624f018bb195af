#include "daemon/free_memory.h"

#include <algorithm>

namespace weft::daemon {
namespace {

constexpr int64_t kPeriodMs = 60000;
constexpr int64_t kSettleMs = 2000;   // what a worker held is given back by then
constexpr int64_t kRetryMs = 600000;  // where it cannot be told: a broken driver hangs

}  // namespace

FreeMemory::FreeMemory(uint64_t known_bytes, Read read, EventQueue& events, const Clock& clock)
    : read_(std::move(read)),
      events_(events),
      clock_(clock),
      bytes_(known_bytes),
      next_ms_(clock.monotonic_ms() + kPeriodMs) {}

void FreeMemory::tick(bool alone) {
  const int64_t now = clock_.monotonic_ms();
  if (!alone) {
    bytes_ = 0;
    ++disturbances_;
    next_ms_ = std::max(next_ms_, now + kSettleMs);
    return;
  }
  if (reading_ || now < next_ms_) return;
  reading_ = true;
  next_ms_ = now + kPeriodMs;
  runner_.post([this, begun = disturbances_] {
    const uint64_t bytes = read_();
    events_.post([this, begun, bytes] { took(begun, bytes); });
  });
}

void FreeMemory::took(uint64_t disturbances, uint64_t bytes) {
  reading_ = false;
  if (disturbances != disturbances_) return;
  bytes_ = bytes;
  if (bytes == 0) next_ms_ = clock_.monotonic_ms() + kRetryMs;
}

}  // namespace weft::daemon
