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

// Work that does worse than what is known, report after report. Who shares a way comes and goes;
// what a way has become stays. A better report ends it.
class Shortfall {
 public:
  static constexpr int64_t kLastsMs = 2 * 60000, kGapMs = 10 * 60000;
  static constexpr int kReports = 8;
  static constexpr int kCounted = 4;  // of them, at least, tell of nothing before it
  // memory_ms: reports tell of so long before them, so the first ones of what was before, too.
  explicit Shortfall(int64_t memory_ms) : memory_ms_(memory_ms) {}
  // value: the more the better. Once it has lasted, in so many reports with no gap: the best of
  // those that tell of nothing before it; then it begins anew.
  std::optional<double> note(double value, int64_t now_ms);
  void end() { reports_ = 0; }

 private:
  int64_t memory_ms_;
  int reports_ = 0, counted_ = 0;
  int64_t since_ms_ = 0, last_ms_ = 0;
  double best_ = 0;
};

class LinkRecord {
 public:
  static constexpr size_t kMaxTrips = 8, kMaxSamples = 20;

  // One probe of this direction. Numbers that cannot be are left out; false: none was left.
  bool add(const ProbedLink& probe, int64_t now_ms);
  // Real work was carried at this rate, among whatever else shared the way at that moment: it
  // carries that much AT LEAST. So it raises what probes say at once, and counts against later ones
  // for half an hour since it was last confirmed; of a way that was never probed it is the rate. A
  // round trip can only be measured too long: one shorter than those of probes counts at once.
  //
  // Half of a shared line is not the link: less lowers what is known only as a Shortfall that
  // lasts, and if flows times the rate is less, where so many flows of work share a line at one of
  // its ends. Then what was measured before counts no more, and the way is to be probed again. So
  // with round trips. False: nothing of it is news.
  bool add_traffic(const Carried& carried, int64_t now_ms, double flows = 1);
  // Whether flows matter: it would be a shortfall without others.
  bool falls_short(const Carried& carried, int64_t now_ms) const;
  // The way back has shown that the round trip is this.
  void set_trip(double seconds, int64_t now_ms) { trips_ = {{now_ms, seconds}}; }
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
  bool add_longer_trip(double seconds, int64_t now_ms);
  bool add_rate(double bytes_s, int64_t now_ms);
  bool add_lower_rate(double bytes_s, int64_t now_ms);
  bool is_lower(double bytes_s, int64_t now_ms) const;
  double at_least(int64_t now_ms) const;  // bytes a second; 0: nothing of late
  double fit_slope(int64_t time_ms) const;

  std::vector<Trip> trips_;
  std::vector<Sample> samples_;
  int64_t probed_ms_ = -1;
  double carried_bytes_s_ = 0;  // by real work
  int64_t carried_ms_ = 0;
  // Not kept over a restart: they begin anew. A round trip is the shortest of late, which what was
  // before keeps from being longer; a rate may be of a message that saw both (run_meter.h).
  static constexpr int64_t kRateOfMs = 60000;
  Shortfall slower_{kRateOfMs}, longer_{0};
};

}  // namespace weft::broker
