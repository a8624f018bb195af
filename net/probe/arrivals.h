// Arrivals: when the parts of a train of bytes reached their receiver, and how fast the line
// between carried them. Only the receiver can tell: at the sender the kernel's buffers take bytes
// at once. Pure; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/result.h"

namespace weft::net {

struct Arrival {
  double bytes = 0, seconds = 0;  // so many had come by then, since the first
};

// Notes what comes; however much it is, at most kMax marks are kept, evenly over the bytes.
class ArrivalLog {
 public:
  static constexpr size_t kMax = 256;

  void note(size_t bytes, double now_s);
  std::vector<Arrival> arrivals() const;

 private:
  std::vector<Arrival> marks_;
  Arrival last_;
  double first_s_ = 0, stride_ = 0;
};

struct TrainRate {
  double bytes = 0, seconds = 0;  // the part of it that counts, as its rate
  double all_bytes = 0, span_s = 0;
  double bytes_s() const { return bytes / seconds; }
};

// The median of the slopes between far marks of the train's later half: what token buckets had
// saved, slow start and bbr's start lie in the first, and a reader that woke late is one mark of
// many. nullopt: too few marks, or no time between them.
std::optional<TrainRate> train_rate(const std::vector<Arrival>& arrivals);

// A reader that slept through most of a train found it in the kernel's buffer, and read it faster
// than any line. But all of it took no less than it seemed to the asking side, from asking to the
// end, without the round trip: the rate is at most a quarter above that one.
void bound_rate(TrainRate& rate, double asked_to_end_s, double round_trip_s);

// [[bytes, seconds], ...]
nlohmann::json arrivals_to_json(const std::vector<Arrival>& arrivals);
Result<std::vector<Arrival>> arrivals_from_json(const nlohmann::json& json);

}  // namespace weft::net
