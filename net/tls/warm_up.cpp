#include "net/tls/warm_up.h"

#include <algorithm>

namespace weft::net {
namespace {

constexpr int64_t kMinWindowMs = 10, kMaxWindowMs = 1000;
// Of what a round trip brought: the next may bring twice as much, so this is sent in an eighth.
constexpr double kUnsentShare = 0.25;
constexpr size_t kMinUnsent = 64 * 1024, kMaxUnsent = 1024 * 1024;

int64_t window_of(double round_trip_ms) {
  return std::clamp(static_cast<int64_t>(round_trip_ms) + 1, kMinWindowMs, kMaxWindowMs);
}

}  // namespace

bool WarmUp::begin(int64_t now_ms, uint64_t message_bytes, uint64_t acknowledged,
                   double round_trip_ms) {
  if (begun_) return false;
  begun_ = true;
  far_ = filling_ = round_trip_ms >= kFarMs;
  begun_ms_ = since_ms_ = large_ms_ = now_ms;
  acknowledged_ = acknowledged;
  enough_bytes_ = kEnough * std::min(message_bytes, kMaxBytes);
  window_ms_ = window_of(round_trip_ms);
  return filling_;
}

void WarmUp::update(int64_t now_ms, uint64_t acknowledged, double round_trip_ms) {
  if (!filling_ || now_ms <= since_ms_) return;
  latest_bytes_ = static_cast<double>(acknowledged - std::min(acknowledged_, acknowledged));
  const double rate = 1000 * latest_bytes_ / static_cast<double>(now_ms - since_ms_);
  const bool grows = rate > kGrowing * rate_;
  rate_ = std::max(rate_, rate);
  since_ms_ = now_ms;
  acknowledged_ = acknowledged;
  window_ms_ = window_of(round_trip_ms);
  filling_ = grows && latest_bytes_ < static_cast<double>(enough_bytes_) &&
             padding_bytes_ < kMaxBytes && now_ms - begun_ms_ < kMaxMs;
}

void WarmUp::note_large(int64_t now_ms) {
  large_ms_ = now_ms;
  if (!bursts_) burst_since_ms_ = now_ms;
  bursts_ = true;
}

void WarmUp::note_last(int64_t now_ms) {
  if (!bursts_) return;
  bursts_ = false;
  rests_ = far_;
  burst_ms_ = now_ms - burst_since_ms_;
}

bool WarmUp::start_anew(int64_t now_ms, double round_trip_ms, double shortest_ms,
                        bool starting_up) {
  rests_ = false;
  const double own_ms = shortest_ms > 0 ? shortest_ms : round_trip_ms;
  if (static_cast<double>(burst_ms_) >= kShortRoundTrips * own_ms) return false;
  if (round_trip_ms > kQueued * own_ms) return false;
  if (starting_up && now_ms - anew_ms_ < kAnewMs) return false;
  anew_ms_ = now_ms;
  return true;
}

size_t WarmUp::unsent_bytes() const {
  return std::clamp(static_cast<size_t>(kUnsentShare * latest_bytes_), kMinUnsent, kMaxUnsent);
}

bool WarmUp::keep_warm(int64_t now_ms, int64_t pinged_ms,
                       const std::string& congestion_control) const {
  return far_ && congestion_control != "bbr" && now_ms - pinged_ms >= kPingMs &&
         now_ms - large_ms_ < kPauseMs;
}

}  // namespace weft::net
