#include "broker/links/link_fit.h"

#include <algorithm>
#include <cmath>

namespace weft::broker {
namespace {

// Beyond these a number says more about who sent it than about a link.
constexpr double kMaxTripS = 20, kMinRate = 100, kMaxRate = 1e12, kMaxSampleBytes = 1e12;
constexpr double kHalfLifeMs = 30 * 60000;
// How exact a sample is: a share of its time, and what a scheduler adds.
constexpr double kRelativeError = 0.05, kJitterS = 0.0005;
constexpr double kHuber = 1.345;  // 95 % efficient where errors are normal
constexpr int kRounds = 8;
constexpr double kNews = 0.05;             // less than that more is noise
constexpr int64_t kConfirmMs = 5 * 60000;  // a rate of work is confirmed that often
// What work falls behind by more than messages that start after a pause do, and a round trip by
// more than a queue of our own.
constexpr double kShort = 0.7, kQueueS = 0.005;

bool credible(double bytes, double seconds) {
  if (!std::isfinite(bytes) || !std::isfinite(seconds) || bytes <= 0 || seconds <= 0) return false;
  return bytes <= kMaxSampleBytes && bytes / seconds >= kMinRate && bytes / seconds <= kMaxRate;
}

bool credible_trip(double seconds) {
  return std::isfinite(seconds) && seconds > 0 && seconds <= kMaxTripS;
}

struct Weighted {
  double value = 0, weight = 0;
};

double weighted_median(std::vector<Weighted> items) {
  std::sort(items.begin(), items.end(),
            [](const Weighted& a, const Weighted& b) { return a.value < b.value; });
  double total = 0, sum = 0;
  for (const Weighted& item : items) total += item.weight;
  for (const Weighted& item : items) {
    sum += item.weight;
    if (2 * sum >= total) return item.value;
  }
  return items.back().value;
}

}  // namespace

std::optional<double> Shortfall::note(double value, int64_t now_ms) {
  if (reports_ == 0 || now_ms - last_ms_ > kGapMs) {
    reports_ = 0;
    since_ms_ = now_ms;
    best_ = 0;
    counted_ = 0;
  }
  ++reports_;
  last_ms_ = now_ms;
  if (now_ms - since_ms_ >= memory_ms_) {
    ++counted_;
    best_ = std::max(best_, value);
  }
  if (reports_ < kReports || counted_ < kCounted || now_ms - since_ms_ < kLastsMs)
    return std::nullopt;
  end();
  return best_;
}

bool LinkRecord::add(const ProbedLink& probe, int64_t now_ms) {
  bool any = false;
  if (credible_trip(probe.round_trip_s)) {
    trips_.push_back({now_ms, probe.round_trip_s});
    if (trips_.size() > kMaxTrips) trips_.erase(trips_.begin());
    any = true;
  }
  size_t taken = 0;
  for (const ProbeTrain& train : probe.trains) {
    if (taken == kMaxSamples / 2) break;  // one probe never outvotes the others
    if (!credible(train.bytes, train.seconds)) continue;
    add_sample({now_ms, train.bytes, train.seconds});
    ++taken;
    any = true;
  }
  if (any) probed_ms_ = now_ms;
  return any;
}

bool LinkRecord::add_traffic(const Carried& carried, int64_t now_ms, double flows) {
  // A way of which the latency alone is known would be taken for measured.
  if (empty() && (!credible_trip(carried.round_trip_s) || !credible(carried.bytes_s, 1))) {
    return false;
  }
  const bool trip = add_trip(carried.round_trip_s, now_ms);
  if (!credible(carried.bytes_s, 1)) return trip;
  const double most = carried.bytes_s * std::max(flows, 1.0);
  if (is_lower(most, now_ms)) return add_lower_rate(most, now_ms) || trip;
  slower_.end();
  return add_rate(carried.bytes_s, now_ms) || trip;
}

bool LinkRecord::falls_short(const Carried& carried, int64_t now_ms) const {
  return credible(carried.bytes_s, 1) && is_lower(carried.bytes_s, now_ms);
}

bool LinkRecord::add_trip(double seconds, int64_t now_ms) {
  if (!credible_trip(seconds)) return false;
  const auto known = latency_s();
  if (known && seconds > 2 * *known / kShort + kQueueS) return add_longer_trip(seconds, now_ms);
  longer_.end();
  if (known && seconds >= 2 * *known * (1 - kNews)) return false;
  trips_.push_back({now_ms, seconds});
  if (trips_.size() > kMaxTrips) trips_.erase(trips_.begin());
  return true;
}

bool LinkRecord::add_longer_trip(double seconds, int64_t now_ms) {
  const auto best = longer_.note(1 / seconds, now_ms);
  if (!best) return false;
  set_trip(1 / *best, now_ms);
  probed_ms_ = -1;
  return true;
}

bool LinkRecord::is_lower(double bytes_s, int64_t now_ms) const {
  if (samples_.empty() && at_least(now_ms) == 0) return false;  // what work showed once is over
  const auto known = fit();
  return known && known->seconds_per_byte > 0 && bytes_s * known->seconds_per_byte < kShort;
}

bool LinkRecord::add_lower_rate(double bytes_s, int64_t now_ms) {
  const auto best = slower_.note(bytes_s, now_ms);
  if (!best) return false;
  samples_.clear();
  carried_bytes_s_ = *best;
  carried_ms_ = now_ms;
  probed_ms_ = -1;
  return true;
}

bool LinkRecord::add_rate(double bytes_s, int64_t now_ms) {
  const double known = at_least(now_ms);
  if (std::abs(bytes_s - known) <= kNews * known) {
    if (now_ms - carried_ms_ < kConfirmMs) return false;
  } else if (bytes_s < known) {
    return false;
  } else if (!samples_.empty() && bytes_s * fit_slope(samples_.back().time_ms) <= 1 + kNews) {
    return false;
  }
  carried_bytes_s_ = bytes_s;
  carried_ms_ = now_ms;
  return true;
}

double LinkRecord::at_least(int64_t now_ms) const {
  return static_cast<double>(now_ms - carried_ms_) <= kHalfLifeMs ? carried_bytes_s_ : 0;
}

void LinkRecord::add_sample(Sample sample) {
  samples_.push_back(sample);
  if (samples_.size() > kMaxSamples) samples_.erase(samples_.begin());
}

void LinkRecord::forget_before(int64_t time_ms) {
  std::erase_if(trips_, [&](const Trip& trip) { return trip.time_ms < time_ms; });
  std::erase_if(samples_, [&](const Sample& sample) { return sample.time_ms < time_ms; });
}

std::optional<double> LinkRecord::latency_s() const {
  if (trips_.empty()) return std::nullopt;
  const auto shortest =
      std::min_element(trips_.begin(), trips_.end(),
                       [](const Trip& a, const Trip& b) { return a.seconds < b.seconds; });
  return shortest->seconds / 2;
}

std::optional<LinkFit> LinkRecord::fit() const {
  const auto latency = latency_s();
  if (!latency) return std::nullopt;
  LinkFit result{*latency, 0, trips_.back().time_ms, false};
  if (!samples_.empty()) result.time_ms = std::max(result.time_ms, samples_.back().time_ms);
  const double least = samples_.empty() ? carried_bytes_s_ : at_least(result.time_ms);
  if (least > 0) result.time_ms = std::max(result.time_ms, carried_ms_);
  result.seconds_per_byte = fit_slope(result.time_ms);
  if (least > 0 && (samples_.empty() || result.seconds_per_byte * least > 1)) {
    result.seconds_per_byte = 1 / least;
    result.carried = true;
  }
  return result;
}

double LinkRecord::fit_slope(int64_t time_ms) const {
  if (samples_.empty()) return 0;
  std::vector<Weighted> slopes;
  std::vector<double> age, spread;
  for (const Sample& sample : samples_) {
    const auto older = static_cast<double>(time_ms - sample.time_ms);
    age.push_back(std::exp2(-older / kHalfLifeMs));
    spread.push_back(kJitterS + kRelativeError * sample.seconds);
    const double exact = sample.seconds / spread.back();
    slopes.push_back({sample.seconds / sample.bytes, age.back() * exact * exact});
  }
  double slope = weighted_median(slopes);
  for (int round = 0; round < kRounds; ++round) {
    double top = 0, bottom = 0;
    for (size_t i = 0; i < samples_.size(); ++i) {
      const double off = std::abs(samples_[i].seconds - slope * samples_[i].bytes) / spread[i];
      const double weight = age[i] * std::min(1.0, kHuber / std::max(off, 1e-9));
      const double x = samples_[i].bytes / spread[i], y = samples_[i].seconds / spread[i];
      top += weight * x * y;
      bottom += weight * x * x;
    }
    slope = top / bottom;
  }
  return slope;
}

nlohmann::json LinkRecord::to_json() const {
  nlohmann::json trips = nlohmann::json::array(), samples = nlohmann::json::array();
  for (const Trip& trip : trips_) trips.push_back({trip.time_ms, trip.seconds});
  for (const Sample& s : samples_) samples.push_back({s.time_ms, s.bytes, s.seconds});
  return {{"trips", std::move(trips)},
          {"samples", std::move(samples)},
          {"probed_ms", probed_ms_},
          {"carried", {carried_ms_, carried_bytes_s_}}};
}

Result<LinkRecord> LinkRecord::from_json(const nlohmann::json& json) {
  LinkRecord record;
  try {
    record.probed_ms_ = json.at("probed_ms").get<int64_t>();
    record.carried_ms_ = json.at("carried").at(0).get<int64_t>();
    record.carried_bytes_s_ = json.at("carried").at(1).get<double>();
    for (const auto& trip : json.at("trips")) {
      record.trips_.push_back({trip.at(0).get<int64_t>(), trip.at(1).get<double>()});
    }
    for (const auto& s : json.at("samples")) {
      record.samples_.push_back(
          {s.at(0).get<int64_t>(), s.at(1).get<double>(), s.at(2).get<double>()});
    }
  } catch (const nlohmann::json::exception& error) {
    return make_error(Code::kCorrupt, std::string("not a record of a link: ") + error.what(),
                      "it will be measured again");
  }
  return record;
}

}  // namespace weft::broker
