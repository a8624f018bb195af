// Mailbox: the one place where the compute thread and the I/O thread of a TlsEndpoint meet. Its
// mutex is held for map operations, never across I/O or a copy.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "net/endpoint.h"

namespace weft::net {

class Mailbox {
 public:
  // ---- compute thread ----
  Status check() const;  // the error of a failed endpoint
  std::optional<Message> take(const MessageKey& key);
  Status wait(int32_t timeout_ms);
  Status flush(int32_t timeout_ms);
  // Blocks until `links` links came up, at most timeout_ms; kTimeout otherwise.
  Status wait_linked(size_t links, int32_t timeout_ms);
  // Blocks until every connection has ended, at most timeout_ms.
  void wait_closed(int32_t timeout_ms);
  void count_queued();
  bool has_left(int32_t stage) const;
  // Drops the bytes of acknowledged messages: their storage belongs to the compute thread.
  void drop_released();

  // ---- any thread ----
  void interrupt();
  EndpointStats stats() const;

  // ---- I/O thread ----
  void deliver(Message message);
  void release(std::vector<Message> messages);
  void fail(Error error);  // the first error stays
  bool failed() const;
  void link_up(int32_t stage);
  void link_trouble(int32_t stage, std::string text);  // why a link is not up, for error texts
  void link_left(int32_t stage);                       // orderly goodbye
  void set_stale(Error error);  // what a fruitless wait reports instead of a timeout
  void connections(size_t count);
  void count_sent(uint32_t edge, int64_t bytes);
  void count_reconnect(int64_t resent);
  void count_carried(int32_t stage, const CarriedTraffic& carried);
  std::string trouble(int32_t stage) const;
  bool is_up(int32_t stage) const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<MessageKey, Message> inbox_;
  std::vector<Message> released_;
  bool arrived_ = false, interrupted_ = false;
  int64_t unacknowledged_ = 0;
  size_t connections_ = 0;
  std::optional<Error> failed_, stale_;
  std::set<int32_t> up_, left_;
  std::map<int32_t, std::string> trouble_;
  EndpointStats stats_;
};

}  // namespace weft::net
