#include "net/frame/message_outbox.h"

#include <algorithm>

namespace weft::net {

int MessageOutbox::urgency(MessageKind kind) {
  switch (kind) {
    case MessageKind::kNorms:
    case MessageKind::kClip:
      return 0;  // a few bytes that every stage waits for
    case MessageKind::kGradient:
      return 1;
    // What a stage needs to begin its next step goes before that step's activations, which it takes
    // only after it: by step, within one urgency.
    case MessageKind::kActivation:
    case MessageKind::kTiedGradient:
    case MessageKind::kTiedWeight:
      return 2;
    case MessageKind::kEvalActivation:
      return 3;  // its steps are counted apart
  }
  return 3;
}

void MessageOutbox::push(Message message) {
  const Channel channel = channel_of(message.key);
  queues_[channel].waiting.push_back(std::move(message));
  admit(channel);
}

void MessageOutbox::admit(const Channel& channel) {
  Queue& queue = queues_[channel];
  const int32_t credits = rules_.credits(channel, from_, to_);
  while (!queue.waiting.empty() && queue.in_flight < credits) {
    Message message = std::move(queue.waiting.front());
    queue.waiting.pop_front();
    const MessageKey key = message.key;
    if (in_flight_.contains(key)) {
      released_.push_back(std::move(message));
      continue;
    }
    Transfer transfer;
    transfer.rank = {urgency(key.kind), key.step, key.micro_batch, next_order_++};
    transfer.message = std::move(message);
    if (connected_) ready_.emplace(transfer.rank, key);
    in_flight_.emplace(key, std::move(transfer));
    ++queue.in_flight;
  }
}

MessageOutbox::NextFrame MessageOutbox::next_frame(std::vector<std::byte>& out,
                                                   size_t frame_bytes) {
  WEFT_CHECK(!ready_.empty());
  const MessageKey key = ready_.begin()->second;
  Transfer& transfer = in_flight_.at(key);
  const Message& message = transfer.message;
  const uint64_t total = message.none ? 0 : message.bytes.size();
  const size_t overhead =
      transfer.started ? kChunkOverheadBytes : message_overhead_bytes(message.sizes.size());
  WEFT_CHECK(frame_bytes > overhead);
  const size_t count = std::min(
      {uint64_t{kMaxChunkBytes}, uint64_t{frame_bytes - overhead}, total - transfer.offset});
  const auto body = message.bytes.bytes().subspan(transfer.offset, count);
  if (transfer.started) {
    encode_head(ChunkFrame{transfer.id, transfer.offset}, body, out);
  } else {
    transfer.id = next_transfer_++;
    transfer.started = transfer.was_started = true;
    encode_head(MessageFrame{transfer.id, key, message.none, message.dtype, message.sizes,
                             message.strides, total, transfer.offset},
                body, out);
  }
  transfer.offset += count;
  const bool overtakes = unfinished_.has_value() && !(*unfinished_ == key);
  unfinished_ = key;
  const bool last = transfer.offset == total;
  if (last) {
    transfer.state = State::kSent;
    ready_.erase(ready_.begin());
    unfinished_.reset();
  }
  return {key, body, overtakes, last};
}

void MessageOutbox::release(Transfer& transfer) {
  if (transfer.state == State::kAcknowledged) return;
  ready_.erase(transfer.rank);
  transfer.state = State::kAcknowledged;
  released_.push_back(std::move(transfer.message));
  transfer.message = {};
}

Status MessageOutbox::on_ack(const MessageKey& key) {
  const auto it = in_flight_.find(key);
  if (it == in_flight_.end()) return {};  // settled by a hello meanwhile
  if (it->second.state == State::kReady) {
    return make_error(Code::kCorrupt,
                      "an acknowledgement of " + key.text() + ", which is not sent in full");
  }
  release(it->second);
  return {};
}

Status MessageOutbox::on_consumed(const MessageKey& key) {
  WEFT_TRY_STATUS(on_ack(key));
  if (in_flight_.erase(key) == 1) {
    --queues_[channel_of(key)].in_flight;
    admit(channel_of(key));
  }
  return {};
}

int64_t MessageOutbox::on_connected(const HelloFrame& hello) {
  connected_ = true;
  for (const MessageKey& key : hello.held) {
    if (const auto it = in_flight_.find(key); it != in_flight_.end()) release(it->second);
  }
  std::set<Channel> freed;
  for (const MessageKey& key : hello.consumed) {
    const auto it = in_flight_.find(key);
    if (it == in_flight_.end()) continue;
    release(it->second);
    in_flight_.erase(it);
    --queues_[channel_of(key)].in_flight;
    freed.insert(channel_of(key));
  }
  std::map<MessageKey, uint64_t> partial;
  for (const PartialMessage& p : hello.partial) partial[p.key] = p.bytes;
  int64_t resent = 0;
  for (auto& [key, transfer] : in_flight_) {
    if (transfer.state == State::kAcknowledged) continue;
    resent += transfer.was_started ? 1 : 0;
    transfer.state = State::kReady;
    transfer.started = false;
    const auto it = partial.find(key);
    // A receiver cannot have more than was sent; one that says so gets the message whole.
    transfer.offset = it != partial.end() && it->second <= transfer.offset ? it->second : 0;
    ready_.emplace(transfer.rank, key);
  }
  for (const Channel& channel : freed) admit(channel);
  return resent;
}

void MessageOutbox::on_disconnected() {
  connected_ = false;
  ready_.clear();
  unfinished_.reset();
  next_transfer_ = 1;
}

}  // namespace weft::net
