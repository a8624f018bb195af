// Longer runs: a link that breaks all the time, a receiver that is slow, a slow line.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/os/own_process.h"
#include "tests/unit/net/sim_messages.h"
#include "tests/unit/net/tls_cluster.h"

namespace weft::net {
namespace {

using testing::make_key;
using testing::make_message;
using testing::receive;
using testing::TlsCluster;

constexpr MessageKind kAct = MessageKind::kActivation;
constexpr MessageKind kGrad = MessageKind::kGradient;

void patient(TlsEndpointOptions& options) {
  options.link_timeout_ms = 20000;
}

// Two stages exchange activations and gradients while the link breaks every 300 KB.
TEST(TlsSoak, BreakingLinkDeliversEverythingOnce) {
  LinkGateOptions gate;
  gate.seed = 11;
  gate.latency_ms = 1;
  gate.jitter_ms = 2;
  gate.break_every_bytes = 300000;
  TlsCluster cluster(2, {{0, 0, 1, 3, 3}}, {}, patient, &gate);
  constexpr uint32_t kMicroBatches = 300;
  constexpr size_t kSize = 40000;
  std::thread other([&] {
    for (uint32_t m = 0; m < kMicroBatches; ++m) {
      ASSERT_TRUE(receive(cluster.at(1), make_key(kAct, 0, 0, 0, m), kSize, 20000));
      ASSERT_TRUE(cluster.at(1).send(0, make_message(make_key(kGrad, 1, 0, 0, m), kSize)).ok());
    }
    EXPECT_TRUE(cluster.at(1).flush(20000).ok());
  });
  for (uint32_t m = 0; m < kMicroBatches; ++m) {
    EXPECT_TRUE(cluster.at(0).send(1, make_message(make_key(kAct, 0, 0, 0, m), kSize)).ok());
    if (m >= 3) {
      EXPECT_TRUE(receive(cluster.at(0), make_key(kGrad, 1, 0, 0, m - 3), kSize, 20000));
    }
  }
  for (uint32_t m = kMicroBatches - 3; m < kMicroBatches; ++m) {
    EXPECT_TRUE(receive(cluster.at(0), make_key(kGrad, 1, 0, 0, m), kSize, 20000));
  }
  other.join();
  EXPECT_GT(cluster.at(0).stats().reconnects, 10);
}

// 64 MiB queued against a receiver that takes nothing: it holds its two credits and no more, and
// the sender's queue shares the storage it was handed.
TEST(TlsSoak, SlowReaderHoldsNoMoreThanItsCredits) {
  TlsCluster cluster(2, {{0, 0, 1, 2, 2}}, {}, patient);
  constexpr size_t kSize = 4 << 20;
  const Message one = make_message(make_key(kAct, 0, 0, 0, 0), kSize);
  const int64_t before = os::peak_resident_bytes();
  for (uint32_t m = 0; m < 16; ++m) {
    Message message = one;
    message.key.micro_batch = m;
    ASSERT_TRUE(cluster.at(0).send(1, std::move(message)).ok());
  }
  EXPECT_EQ(cluster.at(0).flush(1500).error().code, Code::kTimeout);
  EXPECT_LT(os::peak_resident_bytes() - before, int64_t{4} * kSize);
  for (uint32_t m = 0; m < 16; ++m) {
    const auto key = make_key(kAct, 0, 0, 0, m);
    std::optional<Message> got;
    while (!(got = cluster.at(1).take(key))) ASSERT_TRUE(cluster.at(1).wait(5000).ok());
    EXPECT_EQ(got->bytes.size(), kSize);
  }
  EXPECT_TRUE(cluster.at(0).flush(5000).ok());
}

TEST(TlsSoak, SlowLineIsFilled) {
  LinkGateOptions gate;
  gate.bandwidth_mbit_s = 80;
  gate.latency_ms = 10;
  TlsCluster cluster(2, {{0, 0, 1, 4, 4}}, {}, patient, &gate);
  constexpr size_t kSize = 500000;
  constexpr uint32_t kCount = 40;  // 20 MB: 2 s at 80 Mbit/s
  const auto since = std::chrono::steady_clock::now();
  for (uint32_t m = 0; m < kCount; ++m) {
    ASSERT_TRUE(cluster.at(0).send(1, make_message(make_key(kAct, 0, 0, 0, m), kSize)).ok());
  }
  for (uint32_t m = 0; m < kCount; ++m) {
    ASSERT_TRUE(receive(cluster.at(1), make_key(kAct, 0, 0, 0, m), kSize));
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
  EXPECT_LT(kCount * kSize * 8e-6 / seconds, 80.0);
  EXPECT_GT(kCount * kSize * 8e-6 / seconds, 60.0) << seconds << " s";
}

}  // namespace
}  // namespace weft::net
