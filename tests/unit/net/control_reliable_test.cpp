// Outbox against Inbox over a link that drops, repeats and breaks, in virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/rng.h"
#include "net/control/inbox.h"
#include "net/control/outbox.h"
#include "net/proto/control.pb.h"

namespace weft::net {
namespace {

using Message = proto::PeerMessage;

Message numbered(int n) {
  Message message;
  message.mutable_leaving()->set_reason(std::to_string(n));
  return message;
}

TEST(OutboxTest, RepeatsFromTheFirstUnacknowledgedWithGrowingPauses) {
  Outbox<Message> out(7);
  std::vector<std::pair<int64_t, uint64_t>> sent;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(out.push(numbered(i), 0, 60000));
  for (int64_t now = 0; now <= 4000; now += 100) {
    if (now == 600) out.acknowledge(7, 1, now);
    out.pump(now, [&](const Message& m) {
      sent.emplace_back(now, m.id());
      return true;
    });
  }
  const std::vector<std::pair<int64_t, uint64_t>> expected = {
      {0, 1},   {0, 2},    {0, 3},    {500, 1},  {500, 2},
      {500, 3}, {1100, 2}, {1100, 3}, {2100, 2}, {2100, 3}};
  EXPECT_EQ(sent, (expected));
}

TEST(OutboxTest, IgnoresAcknowledgementsOfAnotherSession) {
  Outbox<Message> out(7);
  ASSERT_TRUE(out.push(numbered(0), 0, 1000));
  out.acknowledge(8, 1, 0);
  EXPECT_FALSE(out.empty());
  out.acknowledge(7, 1, 0);
  EXPECT_TRUE(out.empty());
}

TEST(OutboxTest, DropsWhatRanOutOfTimeAndLetsTheRestPass) {
  Outbox<Message> out(7);
  ASSERT_TRUE(out.push(numbered(0), 0, 100));
  ASSERT_TRUE(out.push(numbered(1), 0, 10000));
  EXPECT_EQ(out.pump(200,
                     [](const Message& m) {
                       EXPECT_EQ(m.id(), 2u);
                       EXPECT_EQ(m.previous(), 0u);
                       return true;
                     }),
            1u);
  EXPECT_EQ(out.size(), 1u);
}

TEST(OutboxTest, IsBounded) {
  Outbox<Message> out(7);
  for (size_t i = 0; i < kOutboxMessages; ++i) ASSERT_TRUE(out.push(numbered(0), 0, 1000));
  EXPECT_FALSE(out.push(numbered(0), 0, 1000));
  size_t in_flight = 0;
  out.pump(0, [&](const Message&) { return ++in_flight > 0; });
  EXPECT_EQ(in_flight, kOutboxInFlight);
}

TEST(InboxTest, HandlesEachOnceInOrderAndForgetsOldSessions) {
  Inbox in;
  EXPECT_EQ(in.check(1, 1, 0), Admission::kNew);
  EXPECT_EQ(in.check(1, 1, 0), Admission::kDuplicate);
  EXPECT_EQ(in.check(1, 3, 2), Admission::kEarly);
  EXPECT_EQ(in.check(1, 2, 0), Admission::kNew);
  EXPECT_EQ(in.check(1, 3, 2), Admission::kNew);
  EXPECT_EQ(in.check(2, 1, 0), Admission::kNew);  // the sender started again
  EXPECT_EQ(in.check(1, 2, 0), Admission::kDuplicate);
  for (uint64_t session = 3; session < 1000; ++session) in.check(session, 1, 0);
  EXPECT_EQ(in.check(999, 1, 0), Admission::kDuplicate);
}

RC_GTEST_PROP(ReliableTest, EveryMessageArrivesOnceAndInOrder, (uint64_t seed)) {
  Rng rng(seed);
  Outbox<Message> out(42);
  Inbox in;
  const int count = int(1 + rng.below(200));
  int pushed = 0;
  std::vector<std::string> handled;
  std::vector<Message> wire;
  for (int64_t now = 0; now < 10'000'000 && (pushed < count || !out.empty()); now += 100) {
    const bool healed = now > 200'000;  // from then on nothing is lost any more
    while (pushed < count && rng.below(3) > 0) out.push(numbered(pushed++), now, 1'000'000'000);
    if (rng.below(20) == 0) {
      wire.clear();
      out.link_renewed();
    }
    out.pump(now, [&](const Message& m) {
      if (!healed && rng.below(10) == 0) return false;
      if (healed || rng.below(4) > 0) wire.push_back(m);
      if (rng.below(8) == 0) wire.push_back(m);
      return true;
    });
    for (const Message& m : wire) {
      const Admission admission = in.check(m.session(), m.id(), m.previous());
      if (admission == Admission::kNew) handled.push_back(m.leaving().reason());
      if (admission != Admission::kEarly && (healed || rng.below(3) > 0)) {
        out.acknowledge(m.session(), m.id(), now);
      }
    }
    wire.clear();
  }
  RC_ASSERT(out.empty());
  RC_ASSERT(int(handled.size()) == count);
  for (int i = 0; i < count; ++i) RC_ASSERT(handled[size_t(i)] == std::to_string(i));
}

}  // namespace
}  // namespace weft::net
