// RunMeter: at what rate one link carried its messages, from when their bytes were written and when
// they were acknowledged. Pure: time is given, seconds of one clock. One thread.
//
// A run is what was written without a lull, from the first byte to the end of a message; a long one
// is cut at the end of a message. Its bytes over the time from before its first write to the
// acknowledgement of its last message, less the shortest round trip and less what the
// acknowledgement waited for on its way back, are a rate that the way has AT LEAST: a late wake-up,
// a slow receiver, the start of TCP's window, other flows on the line all make it less. Two things
// make it more: what a token bucket had saved, so a run counts from a tenth of a second on; and a
// round trip that was never seen without a queue, so it counts from a round trip on. Few bytes say
// more of the delays, and none of the rate: a run has 64 KiB at least.
// The upper quartile of the last runs is told: one in four may have been lucky, and
// three in four may have shared the line.
//
// Not the pacer's rate: that is known of windows of 200 ms and more in which there always was more
// to send, and a stage that computes between its messages has none; and it follows slowly, since a
// pace must not wander. Nor the kernel's: where a middlebox ends TCP, it tells of the way to that
// box, while an acknowledgement of a message comes from the stage that has it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "net/message.h"

namespace weft::net {

class RunMeter {
 public:
  static constexpr double kLeastS = 0.1;  // of a run that counts, without the round trip
  static constexpr uint64_t kLeastBytes = 64 << 10;
  static constexpr double kCutS = 0.5;
  static constexpr double kMemoryS = 60;  // a run counts that long
  static constexpr size_t kLeastRuns = 3, kMaxRuns = 16;

  // Before so many bytes of messages are written; ends: the message whose last byte is among them.
  void writes(double now_s, uint64_t bytes, const std::optional<MessageKey>& ends);
  // What there was is written.
  void lull();
  // Whether a run ends with that message: others say nothing.
  bool awaits(const MessageKey& key) const;
  struct Run {
    double since_s = 0, bytes_s = 0;
  };
  // shortest_s: round trip; 0: unknown. waited_s: WayBack's. The run that ended with it, if it
  // counts.
  std::optional<Run> acknowledged(const MessageKey& key, double now_s, double shortest_s,
                                  double waited_s);
  void on_disconnected();

  // Bytes a second; 0: of the last minute too few runs count.
  double bytes_s(double now_s) const;
  int64_t runs() const { return runs_; }  // that counted since the beginning

 private:
  struct Written {
    double since_s = 0, written_s = 0;    // the latter of the end of the last message
    uint64_t bytes = 0, whole_bytes = 0;  // the latter up to the end of the last message
    MessageKey last;
  };
  struct Carried {
    double time_s = 0, bytes_s = 0;
  };
  void end_run();

  std::optional<Written> open_;
  std::deque<Written> written_;  // not acknowledged; bounded by credits
  std::deque<Carried> carried_;
  int64_t runs_ = 0;
};

// When pings went that wait for their pongs: on a long way several do, and not all are answered.
class PingTimes {
 public:
  static constexpr size_t kMost = 64;
  uint64_t ask(double now_s);  // the number of the ping that goes now
  // When it went; of older ones nothing is expected any more. nullopt: nobody waits for it.
  std::optional<double> answered(uint64_t number);

 private:
  uint64_t asked_ = 0;
  std::deque<double> times_;  // of the pings up to asked_
};

// The least of the last half minute to minute.
class LatelyLeast {
 public:
  static constexpr double kHalfS = 30;
  void note(double now_s, double seconds);
  std::optional<double> seconds() const;

 private:
  double since_s_ = 0;
  std::optional<double> now_, before_;
};

// What an answer waited for on its way back, behind what the other side sends: it says at what time
// of the other side's clock it began. The two clocks have no common origin, and may drift apart by
// some milliseconds a minute; the fastest answer of late is taken for one that did not wait. One
// that seems to have waited longer than kMostS is taken for a sign that the clock jumped, or stood
// still, or lies: nothing before it counts, and it did not wait.
class WayBack {
 public:
  static constexpr double kMostS = 1;
  // Seconds; at_us: of the other side's clock.
  double note(double now_s, int64_t at_us);

 private:
  LatelyLeast least_;
};

}  // namespace weft::net
