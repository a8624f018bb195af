// MessageInbox: the receiving half of one link, without sockets or time. It puts messages together
// from frames, refuses what the plan does not allow or what exceeds a credit, recognises
// duplicates, and knows what to tell the other side after a reconnect.
//
// Memory: at most `credits` messages a channel are held, assembled or half-arrived, each at most
// max_message_bytes; storage of a message under assembly is touched only as its bytes arrive.
// Belongs to the I/O thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "net/frame/buffer_pool.h"
#include "net/frame/frame.h"
#include "net/frame/link_rules.h"

namespace weft::net {

class MessageInbox {
 public:
  struct Arrival {
    std::optional<Message> message;  // whole, for the compute thread
    std::optional<MessageKey> ack;   // to be answered with an ack frame
    bool consumed = false;           // and with a consumed frame: a duplicate taken long ago
  };

  MessageInbox(const LinkRules& rules, int32_t from, int32_t to, uint32_t epoch,
               uint64_t max_message_bytes, BufferPool pool = BufferPool())
      : rules_(rules),
        from_(from),
        to_(to),
        epoch_(epoch),
        max_message_bytes_(max_message_bytes),
        pool_(std::move(pool)) {}

  // Errors: the other side broke the protocol; the connection is to be closed.
  Result<Arrival> on_message(const MessageFrame& frame, std::span<const std::byte> body);
  Result<Arrival> on_chunk(const ChunkFrame& frame, std::span<const std::byte> body);
  // Where the body of a chunk may be put before on_chunk is called with it, which saves a copy:
  // the next bytes of its message. Empty: nowhere; on_chunk says why. Valid until any other call.
  std::span<std::byte> room(const ChunkFrame& frame, size_t bytes);

  // The compute thread took the message.
  void on_taken(const MessageKey& key);
  // Half-arrived messages are kept; the sender goes on with them, or starts them again.
  void on_disconnected();
  void describe(HelloFrame& hello) const;

 private:
  struct Assembly {
    Message message;
    std::byte* data = nullptr;
    uint64_t total = 0, filled = 0;
    bool duplicate = false;  // bytes are counted and dropped
  };
  struct Lane {
    int32_t open = 0;  // held + under assembly + partial
    std::deque<MessageKey> consumed;
  };

  Status check(const MessageFrame& frame) const;
  Status open(const MessageFrame& frame, Assembly& assembly);
  Status resume(const MessageFrame& frame, Assembly& assembly);
  Result<Arrival> append(uint64_t transfer, Assembly& assembly, std::span<const std::byte> body);
  Arrival finish(uint64_t transfer, Assembly& assembly);

  const LinkRules& rules_;
  const int32_t from_, to_;
  const uint32_t epoch_;
  const uint64_t max_message_bytes_;
  BufferPool pool_;
  std::map<uint64_t, Assembly> assemblies_;  // by transfer
  std::map<MessageKey, Assembly> partial_;   // of earlier connections
  std::set<MessageKey> assembling_, held_, consumed_;
  std::map<Channel, Lane> lanes_;
};

}  // namespace weft::net
