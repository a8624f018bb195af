#include "net/tls/pacer.h"

#include <algorithm>
#include <utility>

namespace weft::net {
namespace {

constexpr double kWriteSeconds = 0.001;
// A slow link bears longer writes rather than the headers of short ones: so long where something
// urgent may come, and where nothing did.
constexpr double kUrgentWriteSeconds = 0.005, kBulkWriteSeconds = 0.016;
constexpr int64_t kMaxWindowMs = 3000;
constexpr int kProbePlaces = 3;     // of a burst, in turn
constexpr double kGrowing = 1.05;   // by more than this from window to window
constexpr double kProbeGain = 1.1;  // of the first probe; then doubled in excess
constexpr double kMaxProbeGain = 2;
constexpr double kSuccess = 1.04;  // of the rate: a probe found more
constexpr double kShared = 0.96;   // of the rate: a probe found less
constexpr double kDrainGain = 0.5;
constexpr int64_t kMinDrainMs = 20, kMaxDrainMs = 1000;
constexpr int kMaxDrains = 3;     // in a row, before what remains is taken for the way itself
constexpr double kSlower = 0.85;  // of the rate: less than that is no fluctuation
constexpr double kFull = 0.985;   // of the rate: what a full link acknowledges
constexpr double kMinCruise = 0.9, kMaxCruise = 1.1, kFaster = 0.01, kBack = 0.02;
constexpr int kSlowWindows = 3;
constexpr int kForgotten = 30;                      // windows in which nothing was measured
constexpr int kOverdue = 8;                         // windows, and none of them could be a probe
constexpr double kNoiseMs = 2, kNoiseShare = 0.03;  // of a round trip
constexpr double kStandingMs = 8, kStandingShare = 0.15;  // a queue beyond doubt
constexpr double kShortWindowRoundTrips = 1.5;            // where the answer is clear soon

}  // namespace

double Pacer::base_ms() const {
  return shortest_before_ms_ == 0 ? shortest_ms_ : std::min(shortest_ms_, shortest_before_ms_);
}

double Pacer::tolerance_ms() const {
  const double own_ms = rate_ > 0 ? 1000.0 * static_cast<double>(write_bytes()) / rate_ : 0;
  return own_ms + std::max(kNoiseMs, kNoiseShare * base_ms());
}

bool Pacer::paced() const {
  return rate_ <= (base_ms() >= kFarMs ? kMaxFarPacedRate : kMaxPacedRate);
}

bool Pacer::update(int64_t now_ms, uint64_t acknowledged, double round_trip_ms) {
  const int64_t span_ms = now_ms - since_ms_;
  const bool usable = begun_ && busy_ && acknowledged > acknowledged_ && span_ms < 10 * window_ms_;
  const double rate = usable ? 1000.0 * static_cast<double>(acknowledged - acknowledged_) /
                                   static_cast<double>(span_ms)
                             : 0;
  since_ms_ = now_ms;
  acknowledged_ = acknowledged;
  begun_ = true;
  busy_ = more_;
  const bool sent = std::exchange(sending_, more_);
  urgent_ = urgent_ && now_ms - urgent_ms_ < kUrgentMemoryMs;
  round_trip_ms_ = round_trip_ms;
  shortest_ms_ = shortest_ms_ == 0 ? round_trip_ms : std::min(shortest_ms_, round_trip_ms);
  window_ms_ = 0;
  // Who shared the way in the last burst may be gone in the next.
  if (!usable) probe_every_ms_ = kMinProbeEveryMs;
  const bool interrupted = !usable && (phase_ == Phase::kDrain || phase_ == Phase::kProbe);
  bool forgotten = false;
  if (usable) {
    unjudged_ = 0;
    measured(rate, now_ms);
  } else if (phase_ == Phase::kCruise && sent && ++unjudged_ > kForgotten) {
    forgotten = true;
    measure_anew(now_ms);
  }
  if (interrupted)
    enter(Phase::kCruise, now_ms);  // a lull drains, and leaves nothing to probe with
  queue_before_ms_ = usable ? queue_ms() : 0;
  if (window_ms_ == 0) {
    const bool short_one = phase_ != Phase::kCruise || drained_;
    window_ms_ = std::clamp(
        static_cast<int64_t>((short_one ? kShortWindowRoundTrips : kWindowRoundTrips) * base_ms()),
        kMinWindowMs, kMaxWindowMs);
  }
  return usable || interrupted || forgotten;
}

bool Pacer::carried(int64_t since_ms, int64_t now_ms, double rate) {
  // What was written before a gain says nothing about it.
  if (phase_ == Phase::kFirst || since_ms < burst_gain_ms_) return false;
  unjudged_ = 0;
  // One that began behind a queue, or while one was drained, says little of the line.
  const bool fair =
      since_ms < queued_ms_ ? since_ms >= drained_before_ms_ : !queued() && since_ms >= drained_ms_;
  if (fair) slow_runs_ = rate < kSlower * rate_ ? slow_runs_ + 1 : 0;
  if (slow_runs_ >= kSlowWindows) {
    measure_anew(now_ms);
    return true;
  }
  if (rate > kSuccess * rate_) {
    rate = std::min(rate, kMaxProbeGain * rate_);  // no pace was more
    last_ = rate_ = rate;
    best_ = std::max(best_, rate);
    burst_gain_ = std::clamp(1 + 2 * (burst_gain_ - 1), kProbeGain, kMaxProbeGain);
  } else if (phase_ != Phase::kCruise) {
    return false;
  } else if (burst_gain_ > 1) {
    burst_gain_ = 1;
  } else if (now_ms - probed_ms_ >= probe_every_ms_ + kOverdue * window_ms_) {
    burst_gain_ = kProbeGain;
  } else {
    return false;
  }
  probed_ms_ = burst_gain_ms_ = now_ms;
  return true;
}

bool Pacer::note_urgent(int64_t now_ms) {
  urgent_ms_ = now_ms;
  return !std::exchange(urgent_, true);
}

void Pacer::measure_anew(int64_t now_ms) {
  last_ = 0;
  unjudged_ = slow_runs_ = 0;
  burst_gain_ = 1;
  enter(Phase::kFirst, now_ms);
}

void Pacer::enter(Phase phase, int64_t now_ms) {
  const bool before = queued();
  phase_ = phase;
  if (queued() && !before) {
    queued_ms_ = now_ms;
    drained_before_ms_ = drained_ms_;
  }
  if (!queued() && before) drained_ms_ = now_ms;
  phase_since_ms_ = now_ms;
  windows_ = 0;
}

// For as long as the queue takes to run out while less comes than goes. unseen_ms: of queue, built
// since what the round trip tells of.
void Pacer::drain(int64_t now_ms, double unseen_ms) {
  ++drains_;
  enter(Phase::kDrain, now_ms);
  const double queue = std::max(queue_ms(), 0.0) + unseen_ms;
  window_ms_ = std::clamp(static_cast<int64_t>(queue / (1 - kDrainGain)), kMinDrainMs, kMaxDrainMs);
}

void Pacer::measured(double rate, int64_t now_ms) {
  best_ = std::max(best_, rate);
  switch (phase_) {
    case Phase::kFirst:
      return measured_first(rate, now_ms);
    case Phase::kDrain:
      usual_ = rate_;
      drained_ = true;
      return enter(Phase::kCruise, now_ms);
    case Phase::kCruise:
      return measured_cruise(rate, now_ms);
    case Phase::kProbe:
      return measured_probe(rate, now_ms);
  }
}

void Pacer::measured_cruise(double rate, int64_t now_ms) {
  if (!paced()) return enter(Phase::kFirst, now_ms);
  windows_ = rate < kSlower * rate_ ? windows_ + 1 : 0;
  if (windows_ >= kSlowWindows) return measure_anew(now_ms);
  // A burst that is long enough for windows: they judge its gain.
  if (burst_gain_ > 1) {
    probe_gain_ = std::exchange(burst_gain_, 1);
    return begin_probe(now_ms);
  }
  const bool drained = std::exchange(drained_, false);
  const double queue = queue_ms();
  if (queue > std::max(kStandingMs, kStandingShare * base_ms()) + tolerance_ms()) {
    if (drains_ < kMaxDrains) return drain(now_ms, 0);
    shortest_before_ms_ = 0;
    shortest_ms_ = round_trip_ms_;
  }
  drains_ = 0;
  usual_ += (rate - usual_) / 4;
  if (drained) {
    // What the round trip tells of may be older than the drain.
  } else if (queue > tolerance_ms()) {
    cruise_gain_ = std::max(cruise_gain_ - kBack, kMinCruise);
  } else if (queue < tolerance_ms() / 2 && usual_ < kFull * rate_) {
    cruise_gain_ = std::min(cruise_gain_ + kFaster, kMaxCruise);
  }
  // Neither a lull nor a drain puts it off: there may be one in every burst.
  if (now_ms - probed_ms_ < probe_every_ms_) return;
  // Not always at the same place of a burst, where others may send each time.
  if (++due_windows_ <= probes_ % kProbePlaces) return;
  due_windows_ = 0;
  ++probes_;
  probe_gain_ = std::clamp(best_ / rate_, kProbeGain, kMaxProbeGain);
  begin_probe(now_ms);
}

void Pacer::begin_probe(int64_t now_ms) {
  shortest_before_ms_ = std::exchange(shortest_ms_, round_trip_ms_);
  enter(Phase::kProbe, now_ms);
}

void Pacer::measured_first(double rate, int64_t now_ms) {
  const bool growing = rate > kGrowing * last_;
  const double standing = std::max(kStandingMs, kStandingShare * base_ms());
  // A queue at both ends of a window: the link was never idle, and this is its rate.
  const bool full = queue_before_ms_ > standing && queue_ms() > standing;
  // Two settled windows: their mean, for a window's edge may fall between acknowledgements.
  rate_ = full || growing || last_ == 0 ? rate : (rate + last_) / 2;
  last_ = rate;
  windows_ = growing ? 0 : windows_ + 1;
  if ((windows_ < 2 && !full) || !paced()) return;
  probe_every_ms_ = full ? 2 * kMinProbeEveryMs : kMinProbeEveryMs;
  probed_ms_ = now_ms;
  cruise_gain_ = 1;
  drain(now_ms, 0);
}

void Pacer::measured_probe(double rate, int64_t now_ms) {
  const bool queued = queue_ms() > tolerance_ms();
  const double probed_ms = static_cast<double>(now_ms - phase_since_ms_);
  const double unseen_ms = (cruise_gain_ * probe_gain_ - 1) * std::min(base_ms(), probed_ms);
  // The first window still holds what was sent before the probe; a queue answers sooner.
  if (++windows_ < 2 && !queued) return;
  probed_ms_ = now_ms;
  if (rate > kSuccess * rate_) {
    last_ = rate_ = rate;
    probe_gain_ = std::min(1 + 2 * (probe_gain_ - 1), kMaxProbeGain);
    probe_every_ms_ = kMinProbeEveryMs;
    return queued ? drain(now_ms, unseen_ms) : enter(Phase::kProbe, now_ms);
  }
  // Less than before it: others shared the way meanwhile, and nothing is learnt.
  if (rate < kShared * rate_) {
    probe_every_ms_ = kMinProbeEveryMs;
    return drain(now_ms, unseen_ms);
  }
  // A full link's rate; else no more than noise, followed slowly so that the pace does not wander.
  const double found = std::clamp(rate - rate_, -0.02 * rate_, 0.02 * rate_);
  rate_ += queued && found > 0 ? found : found / 4;
  last_ = rate_;
  best_ = (best_ + rate_) / 2;
  probe_every_ms_ = std::min(4 * probe_every_ms_, kMaxProbeEveryMs);
  drain(now_ms, unseen_ms);
}

size_t Pacer::write_bytes() const {
  if (rate_ <= 0) return kFirstWrite;
  const double seconds = urgent_ ? kUrgentWriteSeconds : kBulkWriteSeconds;
  const size_t most = urgent_ ? 2 * kMinWrite : kFirstWrite;
  const size_t least = std::clamp(static_cast<size_t>(rate_ * seconds), kMinWrite, most);
  const size_t bytes = std::clamp(static_cast<size_t>(rate_ * kWriteSeconds), least, kMaxWrite);
  // Not settled: bursts over a long way leave one window in which next to nothing came back.
  return phase_ == Phase::kFirst ? std::max(bytes, kFirstWrite) : bytes;
}

uint64_t Pacer::pacing_rate() const {
  if (phase_ == Phase::kFirst || !paced()) return 0;
  const double gain = phase_ == Phase::kDrain   ? kDrainGain
                      : phase_ == Phase::kProbe ? cruise_gain_ * probe_gain_
                                                : cruise_gain_ * burst_gain_;
  return static_cast<uint64_t>(gain * rate_);
}

}  // namespace weft::net
