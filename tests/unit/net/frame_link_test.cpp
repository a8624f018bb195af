// MessageOutbox and MessageInbox against each other over a wire that breaks anywhere: exactly-once
// delivery, credits, priorities, and refusal of what a correct sender never sends.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "net/frame/message_inbox.h"
#include "net/frame/message_outbox.h"
#include "tests/unit/net/sim_messages.h"

namespace weft::net {
namespace {

using testing::make_key;
using testing::make_message;
using testing::pattern;

constexpr size_t kFrame = 4096;
const std::vector<EdgeLink> kEdges = {{0, 0, 1, 2, 1}, {1, 0, 1, 3, 2}};

DecodedFrame decode(const std::vector<std::byte>& bytes) {
  const auto prefix = decode_prefix(std::span(bytes).first(kPrefixBytes));
  EXPECT_TRUE(prefix.ok());
  auto decoded = decode_frame(*prefix, bytes);
  EXPECT_TRUE(decoded.ok());
  return std::move(decoded).value();
}

MessageOutbox::NextFrame append_frame(MessageOutbox& outbox, std::vector<std::byte>& out) {
  const auto next = outbox.next_frame(out, kFrame);
  out.insert(out.end(), next.body.begin(), next.body.end());
  return next;
}

// Stage 0 sends to stage 1; the answers of stage 1 travel back in order until the wire breaks.
struct Wire {
  LinkRules rules0{0, kEdges, {1}}, rules1{1, kEdges, {0}};
  MessageOutbox outbox{rules0, 0, 1};
  MessageInbox inbox{rules1, 0, 1, 1, 1 << 20};
  std::deque<std::vector<std::byte>> forward;
  std::deque<Frame> back;
  std::map<MessageKey, Message> held;
  std::map<MessageKey, int> delivered;
  size_t released = 0, chunks = 0;

  void connect() {
    HelloFrame hello;
    inbox.describe(hello);
    outbox.on_connected(hello);
    collect();
  }
  void disconnect() {
    forward.clear();
    back.clear();
    inbox.on_disconnected();
    outbox.on_disconnected();
  }
  void collect() { released += outbox.take_released().size(); }
  bool step_send() {
    if (!outbox.has_frame()) return false;
    forward.emplace_back();
    append_frame(outbox, forward.back());
    EXPECT_LE(forward.back().size(), kFrame);
    return true;
  }
  Status step_receive() {
    if (forward.empty()) return {};
    const auto bytes = std::move(forward.front());
    forward.pop_front();
    const auto decoded = decode(bytes);
    const auto* first = std::get_if<MessageFrame>(&decoded.frame);
    WEFT_TRY(auto arrival, first ? inbox.on_message(*first, decoded.body)
                                 : chunk(std::get<ChunkFrame>(decoded.frame), decoded.body));
    if (arrival.ack) back.push_back(AckFrame{*arrival.ack, 0});
    if (arrival.consumed) back.push_back(ConsumedFrame{*arrival.ack});
    if (arrival.message) {
      ++delivered[arrival.message->key];
      const MessageKey key = arrival.message->key;
      held.emplace(key, std::move(*arrival.message));
    }
    return {};
  }
  // Every other chunk goes straight to its message, as a socket may put it there.
  Result<MessageInbox::Arrival> chunk(const ChunkFrame& frame, std::span<const std::byte> body) {
    const auto room = inbox.room(frame, body.size());
    if (room.empty() || ++chunks % 2 == 0) return inbox.on_chunk(frame, body);
    std::copy(body.begin(), body.end(), room.begin());
    return inbox.on_chunk(frame, room);
  }
  void step_take() {
    if (held.empty()) return;
    const auto it = held.begin();
    const auto expected = pattern(it->first, it->second.bytes.size());
    const auto bytes = it->second.bytes.bytes();
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected.begin(), expected.end()));
    inbox.on_taken(it->first);
    back.push_back(ConsumedFrame{it->first});
    held.erase(it);
  }
  Status step_back() {
    if (back.empty()) return {};
    const Frame frame = back.front();
    back.pop_front();
    auto status = std::holds_alternative<AckFrame>(frame)
                      ? outbox.on_ack(std::get<AckFrame>(frame).key)
                      : outbox.on_consumed(std::get<ConsumedFrame>(frame).key);
    collect();
    return status;
  }
};

RC_GTEST_PROP(FrameLink, ExactlyOnceOverABreakingWire, ()) {
  Wire wire;
  wire.connect();
  std::map<MessageKey, int> sent;
  const auto count = *rc::gen::inRange(1, 30);
  int pushed = 0, breaks = 0;
  for (int i = 0; i < 20000; ++i) {
    const bool done =
        pushed == count && wire.released == static_cast<size_t>(count) && wire.held.empty();
    if (done) break;
    Rng rng(derive_seed({static_cast<uint64_t>(count), static_cast<uint64_t>(i)}));
    switch (rng.below(breaks < 20 ? 22 : 21) / 4) {
      case 0:
        if (pushed < count) {
          const auto kind = rng.below(2) ? MessageKind::kActivation : MessageKind::kNorms;
          const auto key = make_key(kind, 0, static_cast<uint32_t>(rng.below(2)), 7,
                                    static_cast<uint32_t>(pushed++));
          sent[key] = 1;
          wire.outbox.push(make_message(key, rng.below(3) * 5000));
        }
        break;
      case 1:
        wire.step_send();
        break;
      case 2:
        RC_ASSERT(wire.step_receive().ok());
        break;
      case 3:
        if (rng.below(3) == 0) wire.step_take();
        break;
      case 4:
        RC_ASSERT(wire.step_back().ok());
        break;
      default:
        if (rng.below(4) == 0) {
          ++breaks;
          wire.disconnect();
          wire.connect();
        }
    }
    // Never more held than the credits of the two edges and the plain channels allow.
    RC_ASSERT(wire.held.size() <= 2 + 3 + 2 * static_cast<size_t>(kPlainCredits));
  }
  RC_ASSERT(wire.delivered == sent);
  RC_ASSERT(wire.released == static_cast<size_t>(count));
}

TEST(FrameLink, CreditsHoldMessagesBack) {
  Wire wire;
  wire.connect();
  for (uint32_t m = 0; m < 5; ++m) {
    wire.outbox.push(make_message(make_key(MessageKind::kActivation, 0, 0, 0, m), 10));
  }
  while (wire.step_send()) {
  }
  EXPECT_EQ(wire.forward.size(), 2u);  // edge 0 has two activation credits
  while (!wire.forward.empty()) ASSERT_TRUE(wire.step_receive().ok());
  while (!wire.back.empty()) ASSERT_TRUE(wire.step_back().ok());
  EXPECT_FALSE(wire.step_send()) << "an acknowledgement alone must not free a credit";
  wire.step_take();
  while (!wire.back.empty()) ASSERT_TRUE(wire.step_back().ok());
  EXPECT_TRUE(wire.step_send());
}

TEST(FrameLink, UrgentMessagesOvertakeAtFrameBorders) {
  const std::vector<EdgeLink> both = {{0, 0, 1, 4, 4}, {1, 1, 0, 4, 4}};
  const LinkRules rules(0, both, {1});
  MessageOutbox outbox(rules, 0, 1);
  outbox.on_connected({});
  outbox.push(make_message(make_key(MessageKind::kTiedWeight, 0, 0, 4, 0), 20000));
  outbox.push(make_message(make_key(MessageKind::kActivation, 0, 0, 3, 1), 9000));
  std::vector<std::byte> out;
  const auto first = append_frame(outbox, out);
  EXPECT_EQ(first.key.kind, MessageKind::kActivation);
  EXPECT_FALSE(first.overtakes);
  outbox.push(make_message(make_key(MessageKind::kGradient, 0, 1, 3, 1), 9000));
  outbox.push(make_message(make_key(MessageKind::kGradient, 0, 1, 3, 0), 9000));
  std::vector<std::pair<MessageKind, uint32_t>> order;
  while (outbox.has_frame()) {
    const auto next = append_frame(outbox, out);
    const MessageKey key = next.key;
    EXPECT_EQ(next.overtakes, order.empty()) << "once, ahead of the activation that had begun";
    if (order.empty() || order.back() != std::pair(key.kind, key.micro_batch)) {
      order.emplace_back(key.kind, key.micro_batch);
    }
  }
  const std::vector<std::pair<MessageKind, uint32_t>> expected = {{MessageKind::kGradient, 0},
                                                                  {MessageKind::kGradient, 1},
                                                                  {MessageKind::kActivation, 1},
                                                                  {MessageKind::kTiedWeight, 0}};
  EXPECT_EQ(order, expected);
}

// A stage begins no step before it has the shared weights of the step before.
TEST(FrameLink, ASharedWeightGoesBeforeTheNextStepsActivations) {
  const std::vector<EdgeLink> both = {{0, 0, 1, 4, 4}};
  const LinkRules rules(0, both, {1});
  MessageOutbox outbox(rules, 0, 1);
  outbox.on_connected({});
  for (const auto& [kind, step, micro_batch] : {std::tuple{MessageKind::kEvalActivation, 0u, 0u},
                                                {MessageKind::kActivation, 8u, 0u},
                                                {MessageKind::kActivation, 8u, 1u},
                                                {MessageKind::kTiedWeight, 7u, 0u},
                                                {MessageKind::kTiedGradient, 7u, 0u},
                                                {MessageKind::kActivation, 7u, 3u}}) {
    outbox.push(make_message(make_key(kind, 0, 0, step, micro_batch), 9000));
  }
  std::vector<std::byte> out;
  std::vector<MessageKind> order;
  while (outbox.has_frame()) {
    const auto next = append_frame(outbox, out);
    if (next.last) order.push_back(next.key.kind);
  }
  const std::vector<MessageKind> expected = {
      MessageKind::kTiedWeight, MessageKind::kTiedGradient, MessageKind::kActivation,
      MessageKind::kActivation, MessageKind::kActivation,   MessageKind::kEvalActivation};
  EXPECT_EQ(order, expected);
}

TEST(FrameLink, SendingAKeyTwiceIsHarmless) {
  Wire wire;
  wire.connect();
  const auto key = make_key(MessageKind::kActivation, 0, 0, 0, 0);
  for (int i = 0; i < 4; ++i) wire.outbox.push(make_message(key, 6000));
  for (int i = 0; i < 200; ++i) {
    wire.step_send();
    ASSERT_TRUE(wire.step_receive().ok());
    if (i % 7 == 0) wire.step_take();
    ASSERT_TRUE(wire.step_back().ok());
  }
  wire.collect();
  EXPECT_EQ(wire.delivered.at(key), 1);
  EXPECT_EQ(wire.released, 4u);
}

class HostileSender : public ::testing::Test {
 protected:
  MessageFrame frame(MessageKey key, uint64_t total, uint64_t transfer = 1) {
    return {transfer, key, false, DType::kUint8, {4}, {1}, total, 0};
  }
  Code refuse(const MessageFrame& f) {
    auto result = inbox.on_message(f, std::vector<std::byte>(std::min<uint64_t>(f.total_bytes, 4)));
    EXPECT_FALSE(result.ok());
    return result.ok() ? Code::kInternal : result.error().code;
  }
  MessageKey key = make_key(MessageKind::kActivation, 0, 0, 0, 0);
  LinkRules rules{1, kEdges, {0}};
  MessageInbox inbox{rules, 0, 1, 1, 1 << 20};
};

TEST_F(HostileSender, OldEpoch) {
  key.epoch = 0;
  EXPECT_EQ(refuse(frame(key, 4)), Code::kDenied);
}
TEST_F(HostileSender, EdgeOfOthers) {
  key.edge = 9;
  EXPECT_EQ(refuse(frame(key, 4)), Code::kDenied);
}
TEST_F(HostileSender, EdgeInTheWrongDirection) {
  key.kind = MessageKind::kGradient;
  EXPECT_EQ(refuse(frame(key, 4)), Code::kDenied);
}
TEST_F(HostileSender, AnotherStagesName) {
  key.from = 2;
  EXPECT_EQ(refuse(frame(key, 4)), Code::kDenied);
}
TEST_F(HostileSender, TooLarge) {
  EXPECT_EQ(refuse(frame(key, (1 << 20) + 1)), Code::kTooLarge);
}

TEST_F(HostileSender, MoreThanItsCredits) {
  for (uint32_t m = 0; m < 2; ++m) {
    key.micro_batch = m;
    ASSERT_TRUE(inbox.on_message(frame(key, 100, m), std::vector<std::byte>(4)).ok());
  }
  key.micro_batch = 2;
  EXPECT_EQ(refuse(frame(key, 100, 2)), Code::kTooLarge);
}

TEST_F(HostileSender, ChunksThatDoNotFit) {
  const std::vector<std::byte> four(4);
  ASSERT_TRUE(inbox.on_message(frame(key, 10), four).ok());
  EXPECT_FALSE(inbox.on_chunk({2, 4}, four).ok()) << "unknown transfer";
  EXPECT_FALSE(inbox.on_chunk({1, 8}, four).ok()) << "gap";
  EXPECT_FALSE(inbox.on_chunk({1, 4}, {}).ok()) << "empty";
  EXPECT_FALSE(inbox.on_chunk({1, 4}, std::vector<std::byte>(7)).ok()) << "beyond the end";
  EXPECT_FALSE(inbox.on_message(frame(key, 10), four).ok()) << "started twice";
}

TEST_F(HostileSender, GetsNoRoomForWhatWouldBeRefused) {
  const std::vector<std::byte> four(4);
  ASSERT_TRUE(inbox.on_message(frame(key, 10), four).ok());
  EXPECT_EQ(inbox.room({1, 4}, 6).size(), 6u);
  EXPECT_TRUE(inbox.room({2, 4}, 4).empty()) << "unknown transfer";
  EXPECT_TRUE(inbox.room({1, 8}, 2).empty()) << "gap";
  EXPECT_TRUE(inbox.room({1, 0}, 4).empty()) << "again";
  EXPECT_TRUE(inbox.room({1, 4}, 7).empty()) << "beyond the end";
  ASSERT_TRUE(inbox.on_chunk({1, 4}, std::vector<std::byte>(6)).ok());
  EXPECT_TRUE(inbox.room({1, 10}, 0).empty()) << "whole";
  ASSERT_TRUE(inbox.on_message(frame(key, 10, 5), four).ok());
  EXPECT_TRUE(inbox.room({5, 4}, 6).empty()) << "a duplicate's bytes are dropped";
}

TEST_F(HostileSender, GoingOnWithWhatIsNotThere) {
  auto late = frame(key, 100);
  late.offset = 10;
  EXPECT_EQ(refuse(late), Code::kCorrupt);
  ASSERT_TRUE(inbox.on_message(frame(key, 100), std::vector<std::byte>(4)).ok());
  inbox.on_disconnected();
  EXPECT_EQ(refuse(late), Code::kCorrupt) << "4 bytes are here, not 10";
  late.offset = 4;
  late.total_bytes = 99;
  EXPECT_EQ(refuse(late), Code::kCorrupt) << "another size";
  late.total_bytes = 100;
  EXPECT_TRUE(inbox.on_message(late, std::vector<std::byte>(4)).ok());
}

// A message longer than the link ever lives still gets through.
TEST(FrameLink, LongMessageProgressesOverManyBreaks) {
  Wire wire;
  const auto key = make_key(MessageKind::kActivation, 0, 0, 0, 0);
  wire.outbox.push(make_message(key, 100000));
  int connections = 0;
  for (; wire.delivered.empty() && connections < 100; ++connections) {
    wire.connect();
    wire.step_send();
    wire.step_send();
    ASSERT_TRUE(wire.step_receive().ok());
    ASSERT_TRUE(wire.step_receive().ok());
    wire.disconnect();
  }
  EXPECT_LT(connections, 20);
  wire.step_take();
  EXPECT_EQ(wire.delivered.at(key), 1);
}

TEST_F(HostileSender, AcknowledgementOfSomethingUnsent) {
  const LinkRules own(0, kEdges, {1});
  MessageOutbox outbox(own, 0, 1);
  outbox.on_connected({});
  outbox.push(make_message(key, 10));
  EXPECT_EQ(outbox.on_ack(key).error().code, Code::kCorrupt);
  key.step = 99;
  EXPECT_TRUE(outbox.on_ack(key).ok()) << "unknown keys are settled ones";
}

}  // namespace
}  // namespace weft::net
