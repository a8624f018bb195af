#include "net/probe/arrivals.h"

#include <algorithm>
#include <cmath>

#include "base/statistics.h"

namespace weft::net {
namespace {

constexpr double kOver = 1.25;

}  // namespace

void ArrivalLog::note(size_t bytes, double now_s) {
  if (marks_.empty()) first_s_ = now_s;
  last_.bytes += static_cast<double>(bytes);
  last_.seconds = now_s - first_s_;
  if (!marks_.empty() && last_.bytes < marks_.back().bytes + stride_) return;
  marks_.push_back(last_);
  if (marks_.size() < kMax) return;
  for (size_t i = 0; 2 * i < marks_.size(); ++i) marks_[i] = marks_[2 * i];
  marks_.resize(marks_.size() / 2);
  stride_ = (marks_.back().bytes - marks_.front().bytes) / static_cast<double>(marks_.size() - 1);
}

std::vector<Arrival> ArrivalLog::arrivals() const {
  std::vector<Arrival> all = marks_;
  if (!all.empty() && all.back().bytes < last_.bytes) all.push_back(last_);
  return all;
}

std::optional<TrainRate> train_rate(const std::vector<Arrival>& arrivals) {
  if (arrivals.size() < 3) return std::nullopt;
  const Arrival& last = arrivals.back();
  const auto later = std::find_if(arrivals.begin(), arrivals.end(), [&](const Arrival& mark) {
    return mark.bytes >= last.bytes / 2;
  });
  // A train of a few marks has no halves to speak of.
  const auto first = arrivals.end() - later < 3 ? arrivals.begin() : later;
  const auto count = static_cast<size_t>(arrivals.end() - first);
  const size_t apart = count < 6 ? count - 1 : count / 2;
  std::vector<double> slopes;
  for (size_t i = 0; i + apart < count; ++i) {
    const Arrival &a = *(first + static_cast<std::ptrdiff_t>(i)),
                  &b = *(first + static_cast<std::ptrdiff_t>(i + apart));
    if (b.bytes > a.bytes && b.seconds > a.seconds) {
      slopes.push_back((b.seconds - a.seconds) / (b.bytes - a.bytes));
    }
  }
  if (slopes.empty()) return std::nullopt;
  TrainRate rate;
  rate.bytes = last.bytes - first->bytes;
  rate.seconds = rate.bytes * median(std::move(slopes));
  rate.all_bytes = last.bytes;
  rate.span_s = last.seconds;
  return rate;
}

void bound_rate(TrainRate& rate, double asked_to_end_s, double round_trip_s) {
  const double least_s = asked_to_end_s - round_trip_s;
  if (least_s <= 0) return;
  rate.seconds = std::max(rate.seconds, rate.bytes / rate.all_bytes * least_s / kOver);
}

nlohmann::json arrivals_to_json(const std::vector<Arrival>& arrivals) {
  nlohmann::json json = nlohmann::json::array();
  for (const Arrival& mark : arrivals) json.push_back({mark.bytes, mark.seconds});
  return json;
}

Result<std::vector<Arrival>> arrivals_from_json(const nlohmann::json& json) {
  const auto wrong = [] {
    return make_error(Code::kCorrupt, "the arrivals of a train are not understood",
                      "both peers must be of the same version");
  };
  if (!json.is_array() || json.size() > ArrivalLog::kMax + 1) return wrong();
  std::vector<Arrival> arrivals;
  for (const auto& mark : json) {
    if (!mark.is_array() || mark.size() != 2 || !mark[0].is_number() || !mark[1].is_number()) {
      return wrong();
    }
    const Arrival next{mark[0].get<double>(), mark[1].get<double>()};
    const Arrival before = arrivals.empty() ? Arrival{} : arrivals.back();
    if (!std::isfinite(next.bytes) || !std::isfinite(next.seconds) || next.bytes < before.bytes ||
        next.seconds < before.seconds) {
      return wrong();
    }
    arrivals.push_back(next);
  }
  return arrivals;
}

}  // namespace weft::net
