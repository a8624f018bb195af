#include "base/clock.h"

#include <chrono>

namespace weft {
namespace {
template <typename ClockType>
int64_t count_ms() {
  using std::chrono::duration_cast;
  return duration_cast<std::chrono::milliseconds>(ClockType::now().time_since_epoch()).count();
}
}  // namespace

int64_t SystemClock::monotonic_ms() const {
  return count_ms<std::chrono::steady_clock>();
}
int64_t SystemClock::wall_ms() const {
  return count_ms<std::chrono::system_clock>();
}

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace weft
