#include "net/tls/pacer.h"

#include <algorithm>
#include <utility>

namespace weft::net {
namespace {

constexpr double kWriteSeconds = 0.001;
constexpr int64_t kMaxWindowMs = 3000;
constexpr double kGrowing = 1.05;   // by more than this from window to window
constexpr double kProbeGain = 1.1;  // of the first probe; then doubled in excess
constexpr double kMaxProbeGain = 2;
constexpr double kSuccess = 1.04;  // of the rate: a probe found more
constexpr double kDrainGain = 0.8;
constexpr int kDrainWindows = 2;
constexpr double kSlower = 0.85;  // of the rate: less than that is no fluctuation
constexpr double kFull = 0.985;   // of the rate: what a full link acknowledges
constexpr double kMinCruise = 0.9, kMaxCruise = 1.1, kFaster = 0.01, kBack = 0.02;
constexpr int kSlowWindows = 3;

}  // namespace

bool Pacer::update(int64_t now_ms, uint64_t acknowledged, double round_trip_ms) {
  const int64_t span_ms = now_ms - since_ms_;
  const bool usable = begun_ && busy_ && acknowledged > acknowledged_ && span_ms < 10 * window_ms_;
  const double rate = usable ? 1000.0 * static_cast<double>(acknowledged - acknowledged_) /
                                   static_cast<double>(span_ms)
                             : 0;
  since_ms_ = now_ms;
  acknowledged_ = acknowledged;
  window_ms_ = std::clamp(static_cast<int64_t>(kWindowRoundTrips * round_trip_ms), kMinWindowMs,
                          kMaxWindowMs);
  begun_ = busy_ = true;
  round_trip_ms_ = round_trip_ms;
  shortest_ms_ = shortest_ms_ == 0 ? round_trip_ms : std::min(shortest_ms_, round_trip_ms);
  if (usable) measured(rate, now_ms);
  return usable;
}

void Pacer::enter(Phase phase, int64_t now_ms) {
  phase_ = phase;
  phase_since_ms_ = now_ms;
  windows_ = 0;
}

void Pacer::measured(double rate, int64_t now_ms) {
  switch (phase_) {
    case Phase::kFirst:
      return measured_first(rate, now_ms);
    case Phase::kDrain:
      if (++windows_ >= kDrainWindows) enter(Phase::kCruise, now_ms);
      return;
    case Phase::kCruise:
      return measured_cruise(rate, now_ms);
    case Phase::kProbe:
      return measured_probe(rate, now_ms);
  }
}

void Pacer::measured_cruise(double rate, int64_t now_ms) {
  if (rate_ > kMaxPacedRate) return enter(Phase::kFirst, now_ms);
  windows_ = rate < kSlower * rate_ ? windows_ + 1 : 0;
  if (windows_ >= kSlowWindows) {
    last_ = 0;
    return enter(Phase::kFirst, now_ms);
  }
  const double shortest =
      shortest_before_ms_ == 0 ? shortest_ms_ : std::min(shortest_ms_, shortest_before_ms_);
  const double own_ms = 2000.0 * static_cast<double>(write_bytes()) / rate_;
  if (round_trip_ms_ > shortest + own_ms + 2) {
    cruise_gain_ = std::max(cruise_gain_ - kBack, kMinCruise);
  } else if (rate < kFull * rate_) {
    cruise_gain_ = std::min(cruise_gain_ + kFaster, kMaxCruise);
  }
  if (now_ms - phase_since_ms_ < kProbeEveryMs) return;
  probe_gain_ = kProbeGain;
  shortest_before_ms_ = std::exchange(shortest_ms_, 0);
  enter(Phase::kProbe, now_ms);
}

void Pacer::measured_first(double rate, int64_t now_ms) {
  const bool growing = rate > kGrowing * last_;
  // Two settled windows: their mean, for a window's edge may fall between acknowledgements.
  rate_ = growing || last_ == 0 ? rate : (rate + last_) / 2;
  last_ = rate;
  windows_ = growing ? 0 : windows_ + 1;
  if (windows_ >= 2 && rate_ <= kMaxPacedRate) enter(Phase::kDrain, now_ms);
}

void Pacer::measured_probe(double rate, int64_t now_ms) {
  // The first window still holds what was sent before the probe.
  if (++windows_ < 2) return;
  if (rate > kSuccess * rate_) {
    rate_ = rate;
    probe_gain_ = std::min(1 + 2 * (probe_gain_ - 1), kMaxProbeGain);
    return enter(Phase::kProbe, now_ms);
  }
  // No more than noise: followed slowly, so that the pace does not wander.
  rate_ += std::clamp(rate - rate_, -0.02 * rate_, 0.02 * rate_) / 4;
  last_ = rate_;
  enter(Phase::kDrain, now_ms);
}

size_t Pacer::write_bytes() const {
  if (rate_ <= 0) return kFirstWrite;
  return std::clamp(static_cast<size_t>(rate_ * kWriteSeconds), kMinWrite, kMaxWrite);
}

uint64_t Pacer::pacing_rate() const {
  if (phase_ == Phase::kFirst || rate_ > kMaxPacedRate) return 0;
  const double gain = phase_ == Phase::kDrain   ? kDrainGain
                      : phase_ == Phase::kProbe ? cruise_gain_ * probe_gain_
                                                : cruise_gain_;
  return static_cast<uint64_t>(gain * rate_);
}

}  // namespace weft::net
