#include "net/frame/message_inbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace weft::net {
namespace {

// Taken keys remembered a channel, at least; a correct sender repeats only its last `credits`.
constexpr size_t kMinConsumedKeys = 256;
// Transfers of duplicates that may be under way at once.
constexpr size_t kMaxDuplicates = 1024;
constexpr size_t kMaxHelloKeys = kMaxHelloBytes / 34;

size_t consumed_limit(int32_t credits) {
  return std::max(kMinConsumedKeys, 2 * static_cast<size_t>(credits));
}

}  // namespace

Status MessageInbox::check(const MessageFrame& frame) const {
  const MessageKey& key = frame.key;
  if (key.epoch != epoch_) {
    return make_error(Code::kDenied, fmt::format("{} belongs to plan epoch {}, this is epoch {}",
                                                 key.text(), key.epoch, epoch_));
  }
  if (key.from != from_ || rules_.credits(channel_of(key), from_, to_) == 0) {
    return make_error(Code::kDenied, fmt::format("{} has no edge from stage {} to stage {}",
                                                 key.text(), from_, to_));
  }
  if (frame.total_bytes > max_message_bytes_) {
    return make_error(Code::kTooLarge, fmt::format("{} has {} bytes, the limit is {}", key.text(),
                                                   frame.total_bytes, max_message_bytes_));
  }
  if (assemblies_.contains(frame.transfer) || assembling_.contains(key)) {
    return make_error(Code::kCorrupt, key.text() + " is started twice");
  }
  return {};
}

Status MessageInbox::open(const MessageFrame& frame, Assembly& assembly) {
  const MessageKey& key = frame.key;
  if (frame.offset != 0) {
    return make_error(Code::kCorrupt,
                      fmt::format("{} goes on at {}, but did not start", key.text(), frame.offset));
  }
  Lane& lane = lanes_[channel_of(key)];
  const int32_t credits = rules_.credits(channel_of(key), from_, to_);
  if (lane.open >= credits) {
    return make_error(Code::kTooLarge,
                      fmt::format("{} exceeds the {} messages its channel may have in flight",
                                  key.text(), credits));
  }
  auto storage = pool_.take(assembly.total);
  if (!storage) {
    return make_error(Code::kTooLarge,
                      fmt::format("no memory for {} of {} bytes", key.text(), assembly.total));
  }
  assembly.data = storage.get();
  assembly.message.bytes = Buffer(storage, storage.get(), assembly.total);
  ++lane.open;
  return {};
}

Status MessageInbox::resume(const MessageFrame& frame, Assembly& assembly) {
  Assembly& earlier = partial_.at(frame.key);
  if (frame.total_bytes != earlier.total || (frame.offset != 0 && frame.offset != earlier.filled)) {
    return make_error(Code::kCorrupt, frame.key.text() + " goes on as another message");
  }
  assembly.data = earlier.data;
  assembly.message.bytes = earlier.message.bytes;
  assembly.filled = frame.offset;
  partial_.erase(frame.key);
  return {};
}

Result<MessageInbox::Arrival> MessageInbox::on_message(const MessageFrame& frame,
                                                       std::span<const std::byte> body) {
  WEFT_TRY_STATUS(check(frame));
  const MessageKey& key = frame.key;
  Assembly assembly;
  assembly.total = frame.total_bytes;
  assembly.message = {key, frame.none, frame.dtype, frame.sizes, frame.strides, {}};
  assembly.duplicate = held_.contains(key) || consumed_.contains(key);
  if (assembly.duplicate) {
    if (assemblies_.size() >= kMaxDuplicates) {
      return make_error(Code::kTooLarge, "too many repeated messages at once");
    }
    assembly.filled = frame.offset;
  } else {
    WEFT_TRY_STATUS(partial_.contains(key) ? resume(frame, assembly) : open(frame, assembly));
    assembling_.insert(key);
  }
  const auto it = assemblies_.emplace(frame.transfer, std::move(assembly)).first;
  return append(it->first, it->second, body);
}

Result<MessageInbox::Arrival> MessageInbox::on_chunk(const ChunkFrame& frame,
                                                     std::span<const std::byte> body) {
  const auto it = assemblies_.find(frame.transfer);
  if (it == assemblies_.end()) {
    return make_error(Code::kCorrupt,
                      fmt::format("a chunk of unknown transfer {}", frame.transfer));
  }
  if (frame.offset != it->second.filled || body.empty()) {
    return make_error(Code::kCorrupt,
                      fmt::format("a chunk of {} at {} where {} is due",
                                  it->second.message.key.text(), frame.offset, it->second.filled));
  }
  return append(it->first, it->second, body);
}

std::span<std::byte> MessageInbox::room(const ChunkFrame& frame, size_t bytes) {
  const auto it = assemblies_.find(frame.transfer);
  if (it == assemblies_.end()) return {};
  const Assembly& assembly = it->second;
  if (!assembly.data || frame.offset != assembly.filled ||
      bytes > assembly.total - assembly.filled) {
    return {};
  }
  return {assembly.data + assembly.filled, bytes};
}

Result<MessageInbox::Arrival> MessageInbox::append(uint64_t transfer, Assembly& assembly,
                                                   std::span<const std::byte> body) {
  if (body.size() > assembly.total - assembly.filled) {
    return make_error(Code::kCorrupt, assembly.message.key.text() + " has more bytes than it says");
  }
  std::byte* const to = assembly.data ? assembly.data + assembly.filled : nullptr;
  if (to && !body.empty() && body.data() != to) std::memcpy(to, body.data(), body.size());
  assembly.filled += body.size();
  if (assembly.filled < assembly.total) return Arrival{};
  return finish(transfer, assembly);
}

MessageInbox::Arrival MessageInbox::finish(uint64_t transfer, Assembly& assembly) {
  const MessageKey key = assembly.message.key;
  Arrival arrival;
  arrival.ack = key;
  if (assembly.duplicate) {
    arrival.consumed = consumed_.contains(key);
  } else {
    assembling_.erase(key);
    held_.insert(key);
    arrival.message = std::move(assembly.message);
  }
  assemblies_.erase(transfer);
  return arrival;
}

void MessageInbox::on_taken(const MessageKey& key) {
  if (held_.erase(key) == 0) return;
  Lane& lane = lanes_[channel_of(key)];
  --lane.open;
  consumed_.insert(key);
  lane.consumed.push_back(key);
  if (lane.consumed.size() > consumed_limit(rules_.credits(channel_of(key), from_, to_))) {
    consumed_.erase(lane.consumed.front());
    lane.consumed.pop_front();
  }
}

void MessageInbox::on_disconnected() {
  for (auto& [transfer, assembly] : assemblies_) {
    const MessageKey key = assembly.message.key;
    if (!assembly.duplicate) partial_.emplace(key, std::move(assembly));
  }
  assembling_.clear();
  assemblies_.clear();
}

void MessageInbox::describe(HelloFrame& hello) const {
  // A key left out for lack of room is only sent again and then recognised.
  for (const MessageKey& key : held_) {
    if (hello.held.size() < kMaxHelloKeys / 4) hello.held.push_back(key);
  }
  for (const auto& [key, assembly] : partial_) {
    if (hello.partial.size() < kMaxHelloKeys / 4) hello.partial.push_back({key, assembly.filled});
  }
  for (const auto& [channel, lane] : lanes_) {
    const auto credits = static_cast<size_t>(rules_.credits(channel, from_, to_));
    const size_t count = std::min(credits, lane.consumed.size());
    for (size_t i = lane.consumed.size() - count; i < lane.consumed.size(); ++i) {
      if (hello.consumed.size() < kMaxHelloKeys / 2) hello.consumed.push_back(lane.consumed[i]);
    }
  }
}

}  // namespace weft::net
