#include "net/tls/congestion.h"

namespace weft::net {

std::string CongestionChoice::update(int64_t now_ms, bool paced, uint64_t retransmitted) {
  if (system_ != "bbr") return "";
  const bool lost = retransmitted != retransmitted_;
  retransmitted_ = retransmitted;
  if (lost || !paced || calm_since_ms_ == 0) calm_since_ms_ = now_ms;
  std::string wanted = now_;
  if (now_ == kCalm && (lost || !paced)) {
    wanted = system_;
    if (lost) wary_until_ms_ = now_ms + kWaryMs;
  } else if (now_ms - calm_since_ms_ >= kCalmMs && now_ms >= wary_until_ms_) {
    wanted = kCalm;
  }
  if (wanted == now_) return "";
  return now_ = wanted;
}

}  // namespace weft::net
