// Pacer: how much to hand to the kernel at once, from what a connection's peer acknowledges. Bytes
// inside the kernel or the network cannot be overtaken by an urgent message; bytes not yet handed
// over can. So writes are about a millisecond of the measured rate each, and a slow link is paced a
// little below its rate, which keeps the queue on our side. Pure: no socket, time is given.
//
// The rate is that of acknowledged bytes over windows in which there was always more to send: at
// first unpaced until it grows no more; later in short probes a little above the rate, larger ones
// while they succeed. After both the queue they built is drained. In between the pace follows two
// signs: a round trip that grew is a queue (slower), less acknowledged than the rate without one is
// a pace the kernel's timers do not keep (faster). A link that acknowledges clearly less than its
// rate has become slower and is measured anew.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::net {

class Pacer {
 public:
  static constexpr int64_t kMinWindowMs = 200;
  static constexpr int kWindowRoundTrips = 3;
  static constexpr int64_t kProbeEveryMs = 8000;
  // Above, a write of a millisecond is long past before it matters: not paced.
  static constexpr double kMaxPacedRate = 50e6;  // bytes a second
  static constexpr size_t kMinWrite = 4096, kFirstWrite = 16 * 1024, kMaxWrite = 256 * 1024;

  // After each write: whether there is more to send. A window with a lull measures the sender.
  void note(bool more) { busy_ = busy_ && more; }
  // When update wants to be called next.
  bool due(int64_t now_ms) const { return now_ms - since_ms_ >= window_ms_; }
  // acknowledged: bytes, by the other side's TCP since the connection began; round_trip_ms: its
  // smoothed estimate. True: the settings below may have changed.
  bool update(int64_t now_ms, uint64_t acknowledged, double round_trip_ms);

  // Largest write, bytes. The kernel should hold no more than this unsent (TCP_NOTSENT_LOWAT).
  size_t write_bytes() const;
  // Bytes a second for SO_MAX_PACING_RATE; 0: unlimited.
  uint64_t pacing_rate() const;
  double rate() const { return rate_; }  // measured, bytes a second; 0: unknown

 private:
  enum class Phase { kFirst, kDrain, kCruise, kProbe };
  void enter(Phase phase, int64_t now_ms);
  void measured(double rate, int64_t now_ms);
  void measured_cruise(double rate, int64_t now_ms);
  void measured_first(double rate, int64_t now_ms);
  void measured_probe(double rate, int64_t now_ms);

  Phase phase_ = Phase::kFirst;
  double rate_ = 0, last_ = 0, probe_gain_ = 1, cruise_gain_ = 1;
  double round_trip_ms_ = 0;                         // the latest
  double shortest_ms_ = 0, shortest_before_ms_ = 0;  // since the last probe, and before it
  int windows_ = 0;  // of this phase; slow ones in a row while cruising
  bool begun_ = false, busy_ = true;
  int64_t since_ms_ = 0, phase_since_ms_ = 0, window_ms_ = kMinWindowMs;
  uint64_t acknowledged_ = 0;
};

}  // namespace weft::net
