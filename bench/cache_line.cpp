#include "bench/cache_line.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/clock.h"

namespace weft {
namespace {

bool stay_on(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;  // of the calling thread
}

}  // namespace

double cache_line_round_trip_ns() {
  constexpr int kTries = 20, kTrips = 2000;
  enum { kHere, kThere, kOver };
  alignas(128) std::atomic<int> place = kHere;
  std::atomic<bool> pinned = true;
  std::thread other([&] {
    pinned = stay_on(1);
    for (int seen = kHere; pinned && (seen = place) != kOver;) {
      if (seen == kThere) place = kHere;
    }
  });
  double best = 0;
  std::thread one([&] {
    for (int i = 0; stay_on(0) && pinned && i < kTries; ++i) {
      const double start = monotonic_seconds();
      for (int trip = 0; trip < kTrips && pinned; ++trip) {
        place = kThere;
        while (place == kThere && pinned) {
        }
      }
      const double ns = (monotonic_seconds() - start) / kTrips * 1e9;
      best = best == 0 ? ns : std::min(best, ns);
    }
    place = kOver;
  });
  one.join();
  other.join();
  return pinned ? best : 0;
}

}  // namespace weft
