// WarmUp: shows a long way's congestion control what the way carries, before messages need it, and
// keeps it from forgetting. Pure: time is given.
//
// A congestion control knows of a way what it was given to carry. Messages of a pipeline are bursts
// that end before a long round trip does: bbr takes what a burst brought in one for the rate of the
// way and stretches every later message to that; cubic's window does not grow beyond them. So a
// connection over a long way that has, or will have, messages to carry is filled once: padding goes
// whenever nothing else does, until a round trip brings many times what such a message has, or no
// more than the one before. bench/transport bursts measures it.
//
// bbr keeps what it learnt, since bursts are marked as limited by their sender; but that may have
// been a share of the way, while others sent, too, and after three round trips that brought no more
// it paces by it. Bursts that end before its own search can tell it better get it set anew in the
// pause behind them (start_anew): it begins from the window there is and sends by nearly three
// times what that brings, and nothing that ends within a round trip ends this start-up. It also
// moves the moment at which bbr all but stops to see the shortest round trip out of bursts.
// Other controls take a pause for a reason to forget (RFC 2861: half the window each timeout), less
// of it while now and then something is sent: keep_warm() says when a ping is due for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "net/tls/pacer.h"

namespace weft::net {

class WarmUp {
 public:
  static constexpr double kFarMs = Pacer::kFarMs;  // of round trip: a long way
  static constexpr uint64_t kLargeBytes = 4096;    // of a message; smaller ones need no more than
                                                   // a connection begins with
  // Of a micro-batch's bytes in a round trip: its messages then take an eighth of one, and less
  // with bbr, which paces by nearly three times what it saw until it has seen a way full.
  static constexpr uint64_t kEnough = 8;
  static constexpr uint64_t kMaxBytes = 64 << 20;  // of padding
  static constexpr int64_t kMaxMs = 10000;
  // By more than this from round trip to round trip, or it ends: bbr takes three that brought no
  // more for the end of its start-up.
  static constexpr double kGrowing = 1.25;
  // A burst of less is over before bbr has searched for a rate itself (it tries a quarter more
  // every eight round trips).
  static constexpr double kShortRoundTrips = 4;
  // Of the shortest round trip: beyond, a queue stands, so what bbr takes for the way is not too
  // little, and it shall find that out.
  static constexpr double kQueued = 1.5;
  // bbr all but stops for the shortest round trip ten seconds after it began or last saw it.
  static constexpr int64_t kAnewMs = 5000;
  static constexpr int64_t kPingMs = 100;     // less than the shortest retransmission timeout
  static constexpr int64_t kPauseMs = 30000;  // without a large message: may be forgotten

  // The connection has messages of such a size to carry. acknowledged: bytes since it began;
  // round_trip_ms: smoothed. True: filling begins, once in its life.
  bool begin(int64_t now_ms, uint64_t message_bytes, uint64_t acknowledged, double round_trip_ms);
  bool begun() const { return begun_; }
  bool filling() const { return filling_; }
  void note_padding(size_t bytes) { padding_bytes_ += bytes; }  // sent
  bool due(int64_t now_ms) const { return filling_ && now_ms - since_ms_ >= window_ms_; }
  void update(int64_t now_ms, uint64_t acknowledged, double round_trip_ms);
  // While filling: so much should lie in the kernel unsent, or it runs dry between two writes.
  size_t unsent_bytes() const;

  uint64_t padding_bytes() const { return padding_bytes_; }
  double rate() const { return rate_; }  // bytes a second, of the best round trip; 0: unknown

  void note_large(int64_t now_ms);  // a large message was handed over
  void note_last(int64_t now_ms);   // after a write: nothing more is there to send
  // A burst has ended since start_anew was asked last.
  bool rests() const { return rests_; }
  // With nothing unsent: whether bbr should begin anew. round_trip_ms: smoothed; shortest_ms: of
  // the last minutes, 0 where it is unknown.
  bool start_anew(int64_t now_ms, double round_trip_ms, double shortest_ms, bool starting_up);
  // pinged_ms: when the last ping went.
  bool keep_warm(int64_t now_ms, int64_t pinged_ms, const std::string& congestion_control) const;

 private:
  bool begun_ = false, filling_ = false, far_ = false, bursts_ = false, rests_ = false;
  int64_t begun_ms_ = 0, since_ms_ = 0, window_ms_ = 0, large_ms_ = 0;
  int64_t burst_since_ms_ = 0, burst_ms_ = 0, anew_ms_ = 0;
  uint64_t acknowledged_ = 0, padding_bytes_ = 0, enough_bytes_ = 0;
  double rate_ = 0, latest_bytes_ = 0;  // of the latest window
};

}  // namespace weft::net
