// LinkRecord: what was measured of one direction between two peers, and the line through it:
// a message of M bytes takes latency + M * seconds_per_byte. Pure; time is given.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/result.h"
#include "broker/links/link_types.h"

namespace weft::broker {

struct LinkFit {
  double latency_s = 0;         // one way: half of the shortest round trip
  double seconds_per_byte = 0;  // 0: unknown
  int64_t time_ms = 0;          // of the newest measurement
};

class LinkRecord {
 public:
  static constexpr size_t kMaxTrips = 8, kMaxSamples = 20;

  // One probe of this direction. Numbers that cannot be are left out; false: none was left.
  bool add(const ProbedLink& probe, int64_t now_ms);
  // A message of real work: all of it took so long.
  bool add_traffic(double bytes, double seconds, int64_t now_ms);
  void forget_before(int64_t time_ms);

  // Least squares of the seconds over the sizes with the latency fixed, relative errors, outliers
  // weighted down as Huber does, old samples as they age. nullopt: nothing is known.
  std::optional<LinkFit> fit() const;
  bool empty() const { return trips_.empty() && samples_.empty(); }
  int64_t probed_ms() const { return probed_ms_; }

  nlohmann::json to_json() const;
  static Result<LinkRecord> from_json(const nlohmann::json& json);

 private:
  struct Trip {
    int64_t time_ms = 0;
    double seconds = 0;
  };
  struct Sample {
    int64_t time_ms = 0;
    double bytes = 0, seconds = 0;  // without the latency
  };
  std::optional<double> latency_s() const;
  void add_sample(Sample sample);

  std::vector<Trip> trips_;
  std::vector<Sample> samples_;
  int64_t probed_ms_ = -1;
};

}  // namespace weft::broker
