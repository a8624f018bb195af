// CongestionChoice: which congestion control a connection's socket has. Pure: time is given.
//
// Within one machine nothing queues or is lost but by our own hand, and a control that paces (bbr)
// only costs: cubic carries twice as much. Between machines the system's own stands. Where that is
// bbr and the pacer keeps the connection below the rate it measured, bbr's own search is a loss
// without a gain: every ten seconds it all but stops for two hundred milliseconds and a round trip,
// to see the way without a queue. So a paced connection that lost nothing for a while has cubic
// until it loses something: loss at random is what cubic cannot bear and bbr can.
#pragma once

#include <cstdint>
#include <string>

namespace weft::net {

class CongestionChoice {
 public:
  static constexpr int64_t kCalmMs = 1500;   // without a loss, before cubic
  static constexpr int64_t kWaryMs = 60000;  // after a loss, before cubic again
  static constexpr const char* kCalm = "cubic";

  // What to ask for when the connection begins; "": the system's own.
  static std::string at_first(bool one_machine) { return one_machine ? kCalm : ""; }

  // granted: what the socket has.
  void begin(std::string granted) { system_ = now_ = std::move(granted); }
  // Now and then. paced: the pacer limits the connection; retransmitted: segments since it began.
  // Returns the control to change to, "" for none.
  std::string update(int64_t now_ms, bool paced, uint64_t retransmitted);
  const std::string& current() const { return now_; }

 private:
  std::string system_, now_;
  uint64_t retransmitted_ = 0;
  int64_t calm_since_ms_ = 0, wary_until_ms_ = 0;
};

}  // namespace weft::net
