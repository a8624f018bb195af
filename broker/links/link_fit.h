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
  bool carried = false;         // the rate is that of real work
};

class LinkRecord {
 public:
  static constexpr size_t kMaxTrips = 8, kMaxSamples = 20;

  // One probe of this direction. Numbers that cannot be are left out; false: none was left.
  bool add(const ProbedLink& probe, int64_t now_ms);
  // Real work was carried at this rate, among whatever else shared the way at that moment: it
  // carries that much AT LEAST, and half of a shared line is not the link. So it raises what probes
  // say, never lowers it, and counts against later ones for half an hour since it was last
  // confirmed; of a way that was never probed it is the rate. A round trip can only be measured too
  // long: it counts where it is shorter than those of probes. False: nothing of it is news.
  bool add_traffic(const Carried& carried, int64_t now_ms);
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
  bool add_trip(double seconds, int64_t now_ms);
  bool add_rate(double bytes_s, int64_t now_ms);
  double at_least(int64_t now_ms) const;  // bytes a second; 0: nothing of late
  double fit_slope(int64_t time_ms) const;

  std::vector<Trip> trips_;
  std::vector<Sample> samples_;
  int64_t probed_ms_ = -1;
  double carried_bytes_s_ = 0;  // by real work
  int64_t carried_ms_ = 0;
};

}  // namespace weft::broker
