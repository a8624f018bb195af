// TrainSeries: which trains of bytes one direction is measured with. They grow until one takes long
// enough to be told from bursts and start-up, and go on until two in a row agree or the limits are
// reached. On a line so fast that the largest is short, the fastest two of several must agree.
// Pure: time is given; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "net/probe/arrivals.h"

namespace weft::net {

struct TrainLimits {
  uint64_t max_bytes = 0;  // of one train
  double max_s = 0;        // of all of them
  double round_trip_s = 0;
};

class TrainSeries {
 public:
  static constexpr double kAgree = 0.1;
  static constexpr size_t kMaxTrains = 24;
  static constexpr double kFarS = 0.1;  // round trips that set how long a train takes

  explicit TrainSeries(const TrainLimits& limits);

  struct Train {
    uint64_t bytes = 0;  // at most
    double seconds = 0;  // of sending, at most
  };
  // nullopt: enough. elapsed_s: since the first.
  std::optional<Train> next(double elapsed_s) const;
  // What came of the train asked for; nullopt: nothing that tells a rate.
  void add(const Train& asked, const std::optional<TrainRate>& got);

  // Those that count: the two that agree, else the last few that were long enough, or the fastest
  // two. None: what the limits allow says more of a window that grows than of the line.
  std::vector<TrainRate> trains() const;
  // Of them; 0: none.
  double bytes_s() const;

 private:
  bool cut_short() const;
  size_t least_short() const;
  std::vector<TrainRate> ranked() const;
  bool agree() const;

  TrainLimits limits_;
  double long_s_ = 0;
  size_t sent_ = 0;
  Train last_asked_;
  std::optional<TrainRate> last_;
  std::vector<TrainRate> long_;
};

}  // namespace weft::net
