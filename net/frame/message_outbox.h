// MessageOutbox: the sending half of one link, without sockets or time. It holds every message
// until the receiver acknowledged it, keeps each channel within its credits, chooses which frame
// goes next, and after a reconnect works out from the other side's hello what must be sent again.
//
// A message is waiting (no credit) -> ready (frames left to send) -> sent -> acknowledged (bytes
// released) -> consumed (credit back, forgotten). Belongs to the I/O thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/result.h"
#include "net/frame/frame.h"
#include "net/frame/link_rules.h"

namespace weft::net {

class MessageOutbox {
 public:
  MessageOutbox(const LinkRules& rules, int32_t from, int32_t to)
      : rules_(rules), from_(from), to_(to) {}

  // Queues a message; one whose key is already under way is dropped (and released).
  void push(Message message);

  bool has_frame() const { return !ready_.empty(); }
  // Of the most urgent message; requires has_frame().
  MessageKind next_kind() const { return ready_.begin()->second.kind; }
  struct NextFrame {
    MessageKey key;  // whose it is
    std::span<const std::byte> body;
    bool overtakes = false;  // goes ahead of a message of which a part is sent
    bool last = false;       // of its message
  };
  // The next frame of the most urgent message, at most frame_bytes long: appends its head to out;
  // its body stays where the message has it and is valid until any other call. Requires
  // has_frame().
  NextFrame next_frame(std::vector<std::byte>& out, size_t frame_bytes);

  // kCorrupt: the other side acknowledges what it cannot have received.
  Status on_ack(const MessageKey& key);
  Status on_consumed(const MessageKey& key);

  // A new connection: what the receiver holds or consumed is settled, the rest goes out again from
  // the first byte it lacks. Returns how many messages are resent.
  int64_t on_connected(const HelloFrame& hello);
  // Nothing is sent until on_connected.
  void on_disconnected();

  // Messages whose bytes are no longer needed since the last call. Their storage may belong to the
  // compute thread, so the caller passes them there to be dropped.
  std::vector<Message> take_released() { return std::exchange(released_, {}); }

 private:
  enum class State { kReady, kSent, kAcknowledged };
  // Lower goes first: kinds by urgency, then earlier micro-batches, then order of admission.
  struct Rank {
    int urgency = 0;
    uint64_t step = 0;
    uint32_t micro_batch = 0;
    uint64_t order = 0;
    auto operator<=>(const Rank&) const = default;
  };
  struct Transfer {
    Message message;
    Rank rank;
    uint64_t id = 0;           // within the connection; 0: not started
    uint64_t offset = 0;       // bytes handed to the connection
    bool started = false;      // on this connection
    bool was_started = false;  // on any
    State state = State::kReady;
  };
  struct Queue {
    int32_t in_flight = 0;
    std::deque<Message> waiting;
  };

  void admit(const Channel& channel);
  void release(Transfer& transfer);
  static int urgency(MessageKind kind);

  const LinkRules& rules_;
  const int32_t from_, to_;
  bool connected_ = false;
  uint64_t next_order_ = 0, next_transfer_ = 1;
  std::map<Channel, Queue> queues_;
  std::map<MessageKey, Transfer> in_flight_;
  std::map<Rank, MessageKey> ready_;
  std::optional<MessageKey> unfinished_;  // the last frame was of it, and not its last
  std::vector<Message> released_;
};

}  // namespace weft::net
