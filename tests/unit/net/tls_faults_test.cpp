// Links that break: cut, corrupted, black-holed; neighbours that leave or fail.
#include <gtest/gtest.h>

#include <chrono>
#include <optional>

#include "tests/unit/net/sim_messages.h"
#include "tests/unit/net/tls_cluster.h"

namespace weft::net {
namespace {

using testing::make_key;
using testing::make_message;
using testing::receive;
using testing::TlsCluster;

const std::vector<EdgeLink> kEdge = {{0, 0, 1, 3, 3}};
constexpr MessageKind kAct = MessageKind::kActivation;

TlsCluster::Adjust fast(int32_t link_timeout_ms = 4000) {
  return [=](TlsEndpointOptions& options) {
    options.link_timeout_ms = link_timeout_ms;
    options.ping_interval_ms = std::max(20, link_timeout_ms / 20);
    options.handshake_timeout_ms = 1000;
  };
}

int64_t elapsed_ms(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                               since)
      .count();
}

// Three messages in flight, the link breaks at a place that moves through them.
TEST(TlsFaults, CutAnywhereIsResentExactlyOnce) {
  const LinkGateOptions plain;
  TlsCluster cluster(2, kEdge, {}, fast(), &plain);
  constexpr size_t kSize = 100000;
  uint32_t m = 0;
  for (int64_t at : {1, 20, 500, 16000, 40000, 99990, 150000, 250000}) {
    cluster.gate(1).cut_after(at);
    const uint32_t first = m;
    for (; m < first + 3; ++m) {
      ASSERT_TRUE(cluster.at(0).send(1, make_message(make_key(kAct, 0, 0, 0, m), kSize)).ok());
    }
    for (uint32_t i = first; i < m; ++i) {
      ASSERT_TRUE(receive(cluster.at(1), make_key(kAct, 0, 0, 0, i), kSize)) << "cut at " << at;
    }
    ASSERT_TRUE(cluster.at(0).flush(5000).ok());
    for (uint32_t i = first; i < m; ++i) {
      EXPECT_FALSE(cluster.at(1).take(make_key(kAct, 0, 0, 0, i)).has_value()) << "twice";
    }
  }
  EXPECT_GE(cluster.gate(1).stats().cuts, 8);
  EXPECT_GE(cluster.at(0).stats().reconnects, 8);
  EXPECT_GT(cluster.at(0).stats().resent, 0);
}

// A receiver that holds messages over several cuts: credits are rebuilt, nothing is lost.
TEST(TlsFaults, CreditsSurviveReconnects) {
  const LinkGateOptions plain;
  TlsCluster cluster(2, kEdge, {}, fast(), &plain);
  for (uint32_t m = 0; m < 12; ++m) {
    ASSERT_TRUE(cluster.at(0).send(1, make_message(make_key(kAct, 0, 0, 0, m), 1000)).ok());
  }
  for (uint32_t m = 0; m < 12; ++m) {
    if (m % 3 == 0) cluster.gate(1).cut();
    ASSERT_TRUE(receive(cluster.at(1), make_key(kAct, 0, 0, 0, m), 1000));
    if (m % 4 == 1) cluster.gate(1).cut();
  }
  EXPECT_TRUE(cluster.at(0).flush(5000).ok());
}

TEST(TlsFaults, CorruptionIsNoticedAndRepaired) {
  const LinkGateOptions plain;
  TlsCluster cluster(2, kEdge, {}, fast(), &plain);
  for (uint32_t m = 0; m < 4; ++m) {
    cluster.gate(1).corrupt_next();
    ASSERT_TRUE(cluster.at(0).send(1, make_message(make_key(kAct, 0, 0, 0, m), 50000)).ok());
    ASSERT_TRUE(receive(cluster.at(1), make_key(kAct, 0, 0, 0, m), 50000));
  }
  // Fewer than four: two may hit one connection, when the first damaged what follows a message.
  EXPECT_GE(cluster.at(0).stats().reconnects, 1);
}

TEST(TlsFaults, ShortBlackHoleIsSurvived) {
  const LinkGateOptions plain;
  TlsCluster cluster(2, kEdge, {}, fast(3000), &plain);
  cluster.gate(1).stall(true);
  ASSERT_TRUE(cluster.at(0).send(1, make_message(make_key(kAct, 0, 0, 0, 0), 50000)).ok());
  EXPECT_EQ(cluster.at(1).wait(300).error().code, Code::kTimeout);
  cluster.gate(1).stall(false);
  EXPECT_TRUE(receive(cluster.at(1), make_key(kAct, 0, 0, 0, 0), 50000));
}

TEST(TlsFaults, BlackHoleFailsWithinTheLinkTimeout) {
  const LinkGateOptions plain;
  constexpr int32_t kTimeout = 800;
  TlsCluster cluster(2, kEdge, {}, fast(kTimeout), &plain);
  cluster.gate(1).stall(true);
  const auto since = std::chrono::steady_clock::now();
  for (int32_t stage : {0, 1}) {
    const auto status = cluster.at(stage).wait(10000);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, Code::kUnavailable);
    const std::string other =
        "stage " + std::to_string(1 - stage) + " (peer peer-" + std::to_string(1 - stage) + ")";
    EXPECT_NE(status.error().message.find(other), std::string::npos) << status.error().text();
  }
  EXPECT_GE(elapsed_ms(since), kTimeout / 2);
  EXPECT_LT(elapsed_ms(since), 3 * kTimeout);
  EXPECT_EQ(cluster.at(0).send(1, make_message(make_key(kAct, 0, 0, 0, 0), 1)).error().code,
            Code::kUnavailable)
      << "a failed endpoint stays failed";
}

TEST(TlsFaults, OrderlyLeaveFailsOnlyThoseWhoNeedMore) {
  TlsCluster cluster(2, kEdge, {}, fast(600));
  const auto key = make_key(kAct, 0, 0, 0, 0);
  ASSERT_TRUE(cluster.at(0).send(1, make_message(key, 10)).ok());
  ASSERT_TRUE(cluster.at(0).flush(3000).ok());
  cluster.stop(0);
  EXPECT_TRUE(receive(cluster.at(1), key, 10)) << "what arrived before the goodbye stays";
  Status status;
  const auto since = std::chrono::steady_clock::now();
  do status = cluster.at(1).wait(100);
  while (elapsed_ms(since) < 5000 && (status.ok() || status.error().code == Code::kTimeout));
  EXPECT_EQ(status.error().code, Code::kUnavailable);
  EXPECT_EQ(cluster.at(1)
                .send(0, make_message(make_key(MessageKind::kGradient, 1, 0, 0, 0), 1))
                .error()
                .code,
            Code::kUnavailable);
}

TEST(TlsFaults, FailureOfANeighbourIsToldAtOnce) {
  TlsCluster cluster(2, kEdge, {}, fast(20000));
  cluster.at(0).set_leave_reason("out of memory");
  cluster.stop(0);
  const auto status = cluster.at(1).wait(5000);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kUnavailable);
  EXPECT_NE(status.error().message.find("out of memory"), std::string::npos);
}

TEST(TlsFaults, UrgentMessageOvertakesBulkOnASlowLink) {
  LinkGateOptions slow;
  slow.bandwidth_mbit_s = 20;  // 2 MiB take 0.8 s
  TlsCluster cluster(2, kEdge, {}, fast(8000), &slow);
  const auto bulk = make_key(MessageKind::kTiedWeight, 0, 0, 0, 0);
  const auto urgent = make_key(MessageKind::kNorms, 0, 0, 0, 0);
  ASSERT_TRUE(cluster.at(0).send(1, make_message(bulk, 2 << 20)).ok());
  EXPECT_EQ(cluster.at(1).wait(50).error().code, Code::kTimeout);
  ASSERT_TRUE(cluster.at(0).send(1, make_message(urgent, 8)).ok());
  EXPECT_TRUE(receive(cluster.at(1), urgent, 8));
  EXPECT_FALSE(cluster.at(1).take(bulk).has_value()) << "bulk is still under way";
  EXPECT_TRUE(receive(cluster.at(1), bulk, 2 << 20));
}

// Stage 1 sends a gradient of so many bytes to stage 0, which takes a while, and that of a shared
// weight to stage 2.
class TiedGradient : public ::testing::Test {
 protected:
  static LinkGateOptions slow() {
    LinkGateOptions options;
    options.bandwidth_mbit_s = 20;  // a link; 1 MiB takes 0.4 s
    return options;
  }
  void send(size_t bytes) {
    ASSERT_TRUE(cluster.at(1).send(0, make_message(gradient, bytes)).ok());
    ASSERT_TRUE(cluster.at(1).send(2, make_message(tied, 1000)).ok());
    EXPECT_EQ(cluster.at(2).wait(150).error().code, Code::kTimeout);
  }
  const LinkGateOptions gate = slow();
  // No ping wakes a link meanwhile.
  TlsCluster cluster{3,
                     kEdge,
                     {0, 1, 2},
                     [](TlsEndpointOptions& options) {
                       fast(60000)(options);
                       options.ping_interval_ms = 30000;
                     },
                     &gate};
  const MessageKey gradient = make_key(MessageKind::kGradient, 1, 0, 0, 0);
  const MessageKey tied = make_key(MessageKind::kTiedGradient, 1, 0, 0, 0);
};

// Its owner needs it last, and over an uplink that links share it would hold up the gradients of
// the pipeline.
TEST_F(TiedGradient, WaitsForGradientsOnOtherLinks) {
  send(1 << 20);
  EXPECT_TRUE(receive(cluster.at(0), gradient, 1 << 20));
  EXPECT_TRUE(receive(cluster.at(2), tied, 1000));
}

TEST_F(TiedGradient, GoesWhereTheLinkItWaitsForBreaks) {
  send(4 << 20);  // 1.7 s
  cluster.gate(1).cut();
  cluster.gate(1).stall(true);  // stage 0 dials again in vain
  EXPECT_TRUE(receive(cluster.at(2), tied, 1000));
  EXPECT_FALSE(cluster.at(0).take(gradient).has_value());
  cluster.gate(1).stall(false);
  EXPECT_TRUE(receive(cluster.at(0), gradient, 4 << 20));
}

// A bulk message that takes many link timeouts: gradients and norms overtake it, and the heartbeats
// get through, or the link would be given up.
TEST(TlsFaults, BulkHoldsUpNeitherGradientsNorHeartbeats) {
  LinkGateOptions slow;
  slow.bandwidth_mbit_s = 8;  // 3 MiB take 3 s
  TlsCluster cluster(2, kEdge, {}, fast(1000), &slow);
  const auto bulk = make_key(MessageKind::kTiedWeight, 1, 0, 0, 0);
  constexpr size_t kBulk = 3 << 20;
  ASSERT_TRUE(cluster.at(1).send(0, make_message(bulk, kBulk)).ok());
  EXPECT_EQ(cluster.at(0).wait(50).error().code, Code::kTimeout);
  for (uint32_t m = 0; m < 10; ++m) {
    const auto gradient = make_key(MessageKind::kGradient, 1, 0, 0, m);
    const auto norms = make_key(MessageKind::kNorms, 1, 0, m, 0);
    ASSERT_TRUE(cluster.at(1).send(0, make_message(gradient, 20000)).ok());
    ASSERT_TRUE(cluster.at(1).send(0, make_message(norms, 8)).ok());
    ASSERT_TRUE(receive(cluster.at(0), gradient, 20000)) << m;
    ASSERT_TRUE(receive(cluster.at(0), norms, 8)) << m;
    ASSERT_FALSE(cluster.at(0).take(bulk).has_value()) << "overtaken by gradient " << m;
  }
  EXPECT_TRUE(receive(cluster.at(0), bulk, kBulk));
  for (int32_t stage : {0, 1}) EXPECT_EQ(cluster.at(stage).stats().reconnects, 0);
}

// Sending never blocks the compute thread: not when the socket takes nothing, not without credit.
TEST(TlsFaults, SendReturnsWhileTheSocketIsStuck) {
  const LinkGateOptions plain;
  TlsCluster cluster(2, kEdge, {}, fast(8000), &plain);
  constexpr size_t kSize = 1 << 20;
  const Message one = make_message(make_key(kAct, 0, 0, 0, 0), kSize);
  cluster.gate(1).stall(true);
  const auto since = std::chrono::steady_clock::now();
  for (uint32_t m = 0; m < 40; ++m) {
    Message message = one;
    message.key.micro_batch = m;
    ASSERT_TRUE(cluster.at(0).send(1, std::move(message)).ok());
  }
  EXPECT_LT(elapsed_ms(since), 1000) << "40 MiB at nobody's pace";
  EXPECT_EQ(cluster.at(0).flush(50).error().code, Code::kTimeout);
  cluster.gate(1).stall(false);
  for (uint32_t m = 0; m < 40; ++m) {
    const auto key = make_key(kAct, 0, 0, 0, m);
    std::optional<Message> got;
    while (!(got = cluster.at(1).take(key))) ASSERT_TRUE(cluster.at(1).wait(5000).ok());
    EXPECT_EQ(got->bytes.size(), kSize);
  }
  EXPECT_TRUE(cluster.at(0).flush(5000).ok());
}

}  // namespace
}  // namespace weft::net
