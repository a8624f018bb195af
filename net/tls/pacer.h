// Pacer: how much to hand to the kernel at once, from what a connection's peer acknowledges. Bytes
// inside the kernel or the network cannot be overtaken by an urgent message; bytes not yet handed
// over can. So writes are about a millisecond of the measured rate each (a few on a slow link, more
// while nothing wants to overtake), and a slow link is paced a little below its rate, which keeps
// the queue on our side. Pure: no socket, time is given.
//
// The rate is that of acknowledged bytes over windows in which there was always more to send: at
// first unpaced, until a queue stands in the way for a whole window or the rate grows no more;
// later in short probes a little above the rate, larger ones while they succeed, rarer ones while
// they fail. What a window once brought is tried first: others may have shared the way since. A
// queue is what the round trip exceeds the shortest by. One that was built is drained for as long
// as its length asks. In between the pace follows two signs: a short queue (slower),
// less acknowledged than the rate without one, which is a pace the kernel's timers do not keep
// (faster). A link that acknowledges clearly less than its rate has become slower and is measured
// anew; a queue that draining does not shorten is none: the way has become longer.
//
// Bursts that end before a window does are judged by what each brought from its first byte to its
// last (RunMeter): now and then one goes a little faster than the rate, and what it brought more is
// the rate from then on; clearly less, as often as windows may, and the rate is forgotten, as it is
// where bursts are too short even for that. Then nothing is paced until windows tell a rate: the
// kernel alone does what it can.
//
// On long ways the kernel cannot be left alone: bbr takes a sender that hands over little at a time
// for one without enough to say, never ends its start-up, and holds two round trips of queue.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::net {

class Pacer {
 public:
  static constexpr int64_t kMinWindowMs = 200;
  static constexpr int kWindowRoundTrips = 3;
  static constexpr int64_t kMinProbeEveryMs = 1000, kMaxProbeEveryMs = 8000;
  // Above, a write of a millisecond is long past before it matters: not paced. On a long way it
  // is the queue that matters, up to what timers keep.
  static constexpr double kMaxPacedRate = 50e6, kMaxFarPacedRate = 250e6;  // bytes a second
  static constexpr double kFarMs = 5;                                      // of round trip
  static constexpr size_t kMinWrite = 4096, kFirstWrite = 16 * 1024, kMaxWrite = 512 * 1024;
  static constexpr int64_t kUrgentMemoryMs = 3000;

  // After each write: whether there is more to send. A window with a lull measures the sender, and
  // so does one that begins in a lull.
  void note(bool more) {
    more_ = more;
    sending_ = sending_ || more;
    busy_ = busy_ && more;
  }
  // A message went ahead of one that was under way. True: write_bytes() is less than it was.
  bool note_urgent(int64_t now_ms);
  // When update wants to be called next.
  bool due(int64_t now_ms) const { return now_ms - since_ms_ >= window_ms_; }
  // acknowledged: bytes, by the other side's TCP since the connection began, out of order ones
  // included; round_trip_ms: its smoothed estimate. True: the settings below may have changed.
  bool update(int64_t now_ms, uint64_t acknowledged, double round_trip_ms);

  // A run of messages without a lull, written from since_ms on, brought so many bytes a second.
  // True: as above.
  bool carried(int64_t since_ms, int64_t now_ms, double rate);

  // Largest write, bytes. The kernel should hold no more than this unsent (TCP_NOTSENT_LOWAT).
  size_t write_bytes() const;
  // Bytes a second for SO_MAX_PACING_RATE; 0: unlimited.
  uint64_t pacing_rate() const;
  double rate() const { return rate_; }  // measured, bytes a second; 0: unknown

 private:
  enum class Phase { kFirst, kDrain, kCruise, kProbe };
  void enter(Phase phase, int64_t now_ms);
  // A queue may stand, or is being drained.
  bool queued() const { return phase_ == Phase::kFirst || phase_ == Phase::kDrain; }
  void measure_anew(int64_t now_ms);
  void begin_probe(int64_t now_ms);
  void drain(int64_t now_ms, double unseen_ms);
  double base_ms() const;  // round trip without a queue
  double queue_ms() const { return round_trip_ms_ - base_ms(); }
  double tolerance_ms() const;  // of queue: our own write, and noise
  bool paced() const;
  void measured(double rate, int64_t now_ms);
  void measured_cruise(double rate, int64_t now_ms);
  void measured_first(double rate, int64_t now_ms);
  void measured_probe(double rate, int64_t now_ms);

  Phase phase_ = Phase::kFirst;
  double rate_ = 0, last_ = 0, probe_gain_ = 1, cruise_gain_ = 1;
  double best_ = 0;                // of a window; nearer to the rate with each probe that fails
  double usual_ = 0;               // rate of recent windows while cruising
  double queue_before_ms_ = 0;     // at the end of the window before
  int drains_ = 0;                 // in a row
  bool drained_ = false;           // in the window before
  double burst_gain_ = 1;          // of bursts that end before a window does
  int64_t burst_gain_ms_ = 0;      // since when
  int slow_runs_ = 0;              // in a row
  int64_t queued_ms_ = 0;          // when queued() began last
  int64_t drained_ms_ = 0;         // and ended
  int64_t drained_before_ms_ = 0;  // the time before
  bool sending_ = false;           // in this window there was more to send at some time
  int unjudged_ = 0;               // such windows since anything was measured
  int64_t probe_every_ms_ = kMinProbeEveryMs;
  int probes_ = 0, due_windows_ = 0;  // windows in which a probe was due and not made
  double round_trip_ms_ = 0;          // the latest
  double shortest_ms_ = 0, shortest_before_ms_ = 0;  // since the last probe, and before it
  int windows_ = 0;  // of this phase; slow ones in a row while cruising
  bool begun_ = false, busy_ = false, more_ = false;
  bool urgent_ = false;  // something was, lately
  int64_t urgent_ms_ = 0;
  int64_t since_ms_ = 0, phase_since_ms_ = 0, probed_ms_ = 0, window_ms_ = kMinWindowMs;
  uint64_t acknowledged_ = 0;
};

}  // namespace weft::net
