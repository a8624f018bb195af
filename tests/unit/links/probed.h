// What a probe of one direction finds, for tests of the book and its records.
#pragma once

#include "base/rng.h"
#include "broker/links/link_types.h"

namespace weft::broker {

// Three trains at that rate, each off by noise at most, by seed.
inline ProbedLink probed(double round_trip_s, double bytes_s, double noise = 0, uint64_t seed = 1) {
  ProbedLink link;
  link.round_trip_s = round_trip_s;
  Rng rng(seed);
  for (const double bytes : {65536.0, 262144.0, 1048576.0}) {
    link.trains.push_back({bytes, bytes / bytes_s * (1 + noise * (2 * rng.uniform() - 1))});
  }
  return link;
}

}  // namespace weft::broker
