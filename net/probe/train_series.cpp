#include "net/probe/train_series.h"

#include <algorithm>
#include <cmath>

namespace weft::net {
namespace {

constexpr uint64_t kFirstBytes = 64 << 10, kLeastBytes = 16 << 10;
// Token buckets hold some ten milliseconds of their rate, slow start takes a few round trips.
constexpr double kLongS = 0.15, kLongTrips = 4;
constexpr double kMaxTrainS = 2;
constexpr double kGrowth = 8;  // at most, from one train to the next
// Where no two agreed: so many count, and trains that were cut short by the limit only as so many.
constexpr size_t kKept = 4, kLeastShort = 3;
constexpr double kWhole = 0.9;

}  // namespace

TrainSeries::TrainSeries(const TrainLimits& limits)
    : limits_(limits), long_s_(kLongS + kLongTrips * limits.round_trip_s) {}

bool TrainSeries::agree() const {
  if (long_.size() < 2) return false;
  const double a = long_[long_.size() - 2].bytes_s(), b = long_.back().bytes_s();
  return std::abs(a - b) <= kAgree * std::max(a, b);
}

std::optional<TrainSeries::Train> TrainSeries::next(double elapsed_s) const {
  if (sent_ >= kMaxTrains || agree()) return std::nullopt;
  const double left_s = limits_.max_s - elapsed_s - limits_.round_trip_s;
  if (left_s <= 0 && sent_ > 0) return std::nullopt;
  Train train;
  train.seconds = std::clamp(left_s, 0.0, kMaxTrainS);
  double bytes = static_cast<double>(kFirstBytes);
  if (last_) {
    const double asked = static_cast<double>(last_asked_.bytes), rate = last_->bytes_s();
    bytes = std::clamp(1.3 * rate * long_s_, 2 * asked, kGrowth * asked);
    // A train that cannot end in time says what a shorter one says.
    if (bytes > rate * left_s) {
      if (!long_.empty() && rate * left_s < asked) return std::nullopt;
      bytes = std::max(rate * left_s, static_cast<double>(kLeastBytes));
    }
  } else if (sent_ > 0) {
    bytes = 2 * static_cast<double>(last_asked_.bytes);
  }
  train.bytes = std::min(static_cast<uint64_t>(bytes), limits_.max_bytes);
  return train;
}

void TrainSeries::add(const Train& asked, const std::optional<TrainRate>& got) {
  ++sent_;
  last_asked_ = asked;
  last_ = got;
  if (!got) return;
  // Longer than the largest there is none.
  const bool whole = got->all_bytes >= kWhole * static_cast<double>(limits_.max_bytes);
  if (whole || got->span_s >= long_s_) long_.push_back(*got);
}

std::vector<TrainRate> TrainSeries::trains() const {
  if (agree()) return {long_.end() - 2, long_.end()};
  std::vector<TrainRate> counting;
  for (const TrainRate& train : long_) {
    // One or two short trains may say no more than how far the window had grown.
    if (train.span_s >= long_s_ || long_.size() >= kLeastShort) counting.push_back(train);
  }
  if (counting.size() > kKept) counting.erase(counting.begin(), counting.end() - kKept);
  return counting;
}

double TrainSeries::bytes_s() const {
  double bytes = 0, seconds = 0;
  for (const TrainRate& train : trains()) {
    bytes += train.bytes;
    seconds += train.seconds;
  }
  return seconds > 0 ? bytes / seconds : 0;
}

}  // namespace weft::net
