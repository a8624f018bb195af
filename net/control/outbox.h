// The sending half of reliable delivery to one receiver: messages get consecutive ids, go out in
// order with a bounded number in flight, and go out again from the first unacknowledged one until
// acknowledged or out of time. Pure: time is an argument. Thread-compatible.
//
// M: proto::PeerMessage or proto::BrokerMessage. Each transmission names in `previous` the message
// that is still unacknowledged before it, so that a receiver that missed that one waits for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

namespace weft::net {

inline constexpr size_t kOutboxMessages = 4096;
inline constexpr size_t kOutboxBytes = size_t{64} << 20;
inline constexpr size_t kOutboxInFlight = 64;
inline constexpr int64_t kResendFirst_ms = 500;
inline constexpr int64_t kResendMax_ms = 5000;

template <typename M>
class Outbox {
 public:
  explicit Outbox(uint64_t session) : session_(session) {}

  bool empty() const { return items_.empty(); }
  size_t size() const { return items_.size(); }

  // False, and nothing happens, when it is full.
  bool push(M message, int64_t now_ms, int64_t ttl_ms) {
    const size_t bytes = message.ByteSizeLong();
    if (items_.size() >= kOutboxMessages || bytes_ + bytes > kOutboxBytes) return false;
    message.set_id(next_id_++);
    message.set_session(session_);
    items_.push_back({std::move(message), now_ms + ttl_ms, bytes});
    bytes_ += bytes;
    return true;
  }

  // Acknowledges id and, since the receiver handles in order, everything before it.
  void acknowledge(uint64_t session, uint64_t id, int64_t now_ms) {
    if (session != session_) return;  // of a start before ours
    while (!items_.empty() && items_.front().message.id() <= id) {
      erase(0);
      resend_ms_ = kResendFirst_ms;
      resend_at_ms_ = now_ms + resend_ms_;
    }
  }

  // The receiver has a new connection: what was in flight on the old one may be lost.
  void link_renewed() {
    sent_ = 0;
    resend_ms_ = kResendFirst_ms;
  }

  // Sends what is due through transmit(const M&) -> bool; false: not possible now. Returns how many
  // messages ran out of time.
  template <typename Transmit>
  size_t pump(int64_t now_ms, Transmit transmit) {
    const size_t expired = expire(now_ms);
    if (sent_ > 0 && now_ms >= resend_at_ms_) {
      sent_ = 0;
      resend_ms_ = std::min(resend_ms_ * 2, kResendMax_ms);
    }
    while (sent_ < std::min(items_.size(), kOutboxInFlight)) {
      M& message = items_[sent_].message;
      message.set_previous(sent_ == 0 ? 0 : items_[sent_ - 1].message.id());
      if (!transmit(std::as_const(message))) break;
      if (sent_++ == 0) resend_at_ms_ = now_ms + resend_ms_;
    }
    return expired;
  }

 private:
  struct Item {
    M message;
    int64_t deadline_ms = 0;
    size_t bytes = 0;
  };

  void erase(size_t i) {
    bytes_ -= items_[i].bytes;
    items_.erase(items_.begin() + std::ptrdiff_t(i));
    if (i < sent_) --sent_;
  }

  size_t expire(int64_t now_ms) {
    size_t count = 0;
    for (size_t i = 0; i < items_.size();) {
      if (items_[i].deadline_ms > now_ms) {
        ++i;
      } else {
        erase(i);
        ++count;
      }
    }
    return count;
  }

  uint64_t session_, next_id_ = 1;
  std::deque<Item> items_;
  size_t bytes_ = 0;
  size_t sent_ = 0;  // of items_, from the front, in this round of sending
  int64_t resend_ms_ = kResendFirst_ms;
  int64_t resend_at_ms_ = 0;
};

}  // namespace weft::net
