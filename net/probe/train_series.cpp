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
// Where no two agreed so many count.
constexpr size_t kKept = 4;
// Trains that the limit of bytes keeps short are a few turns of the scheduler long: whoever did not
// get its turn made one slow, so of at least so many the fastest two must agree.
// Over a long round trip they are not: what keeps them apart is the window, and three tell that.
constexpr size_t kLeastShort = 6, kLeastFar = 3;
constexpr double kWhole = 0.9;

}  // namespace

TrainSeries::TrainSeries(const TrainLimits& limits)
    : limits_(limits), long_s_(kLongS + kLongTrips * limits.round_trip_s) {}

bool TrainSeries::cut_short() const {
  return !long_.empty() && long_.back().span_s < long_s_;
}

size_t TrainSeries::least_short() const {
  return limits_.round_trip_s >= kFarS ? kLeastFar : kLeastShort;
}

// In the order in which they count, the last most.
std::vector<TrainRate> TrainSeries::ranked() const {
  std::vector<TrainRate> trains = long_;
  if (cut_short()) {
    std::sort(trains.begin(), trains.end(),
              [](const TrainRate& a, const TrainRate& b) { return a.bytes_s() < b.bytes_s(); });
  }
  return trains;
}

bool TrainSeries::agree() const {
  const std::vector<TrainRate> trains = ranked();
  if (trains.size() < (cut_short() ? least_short() : 2)) return false;
  const double a = trains[trains.size() - 2].bytes_s(), b = trains.back().bytes_s();
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
    // The second long one is as the first; where they differ, or none was long, it grows.
    bytes = std::clamp(1.3 * rate * long_s_, (long_.size() == 1 ? 1 : 2) * asked, kGrowth * asked);
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
  const std::vector<TrainRate> trains = ranked();
  // Fewer short ones may say no more than how far the window had grown.
  if (trains.empty() || (cut_short() && trains.size() < least_short())) return {};
  const size_t count = std::min(agree() || cut_short() ? 2 : kKept, trains.size());
  return {trains.end() - static_cast<std::ptrdiff_t>(count), trains.end()};
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
