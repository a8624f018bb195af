// What every Endpoint promises, run against each back end.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>

#include "net/sim/sim_network.h"
#include "tests/unit/net/sim_messages.h"
#include "tests/unit/net/tls_cluster.h"

namespace weft::net {
namespace {

using testing::make_key;
using testing::make_message;
using testing::receive;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Endpoint& at(int32_t stage) = 0;
};

struct SimBackend final : Backend {
  SimBackend(int32_t stages, const std::vector<EdgeLink>& edges, const SimOptions& options)
      : network(stages, options) {
    network.set_credits(edges);
  }
  Endpoint& at(int32_t stage) override { return network.endpoint(stage); }
  SimNetwork network;
};

struct TlsBackend final : Backend {
  TlsBackend(int32_t stages, const std::vector<EdgeLink>& edges, const LinkGateOptions* gate)
      : cluster(stages, edges, all(stages), {}, gate) {}
  static std::vector<int32_t> all(int32_t stages) {
    std::vector<int32_t> list;
    for (int32_t s = 0; s < stages; ++s) list.push_back(s);
    return list;
  }
  Endpoint& at(int32_t stage) override { return cluster.at(stage); }
  testing::TlsCluster cluster;
};

struct Param {
  std::string name;
  std::function<std::unique_ptr<Backend>(int32_t, const std::vector<EdgeLink>&)> make;
};

class EndpointSuite : public ::testing::TestWithParam<Param> {
 protected:
  Endpoint& start(int32_t stages, const std::vector<EdgeLink>& edges) {
    backend_ = GetParam().make(stages, edges);
    return backend_->at(0);
  }
  Endpoint& at(int32_t stage) { return backend_->at(stage); }

 private:
  std::unique_ptr<Backend> backend_;
};

constexpr MessageKind kAct = MessageKind::kActivation;
constexpr MessageKind kGrad = MessageKind::kGradient;

TEST_P(EndpointSuite, DeliversByKeyInAnyOrderOfTaking) {
  start(2, {{0, 0, 1, 8, 8}});
  for (uint32_t m = 0; m < 8; ++m) {
    ASSERT_TRUE(at(0).send(1, make_message(make_key(kAct, 0, 0, 0, m), 100 + m)).ok());
  }
  for (uint32_t m = 8; m-- > 0;) {
    EXPECT_TRUE(receive(at(1), make_key(kAct, 0, 0, 0, m), 100 + m));
  }
  EXPECT_FALSE(at(1).take(make_key(kAct, 0, 0, 0, 0)).has_value()) << "taken once";
}

TEST_P(EndpointSuite, KeepsShapeStridesAndType) {
  start(2, {{0, 0, 1, 1, 1}});
  const auto key = make_key(kAct, 0, 0, 3, 1);
  Message message = make_message(key, 48);
  message.dtype = DType::kBFloat16;
  message.sizes = {2, 3, 4};
  message.strides = {1, 8, 2};
  ASSERT_TRUE(at(0).send(1, message).ok());
  std::optional<Message> got;
  while (!(got = at(1).take(key))) ASSERT_TRUE(at(1).wait(5000).ok());
  EXPECT_EQ(got->sizes, message.sizes);
  EXPECT_EQ(got->strides, message.strides);
  EXPECT_EQ(got->dtype, DType::kBFloat16);
  EXPECT_EQ(got->key, key);
  EXPECT_FALSE(got->none);
}

TEST_P(EndpointSuite, CarriesNoneAndEmptyTensors) {
  start(2, {{0, 0, 1, 2, 2}});
  Message none;
  none.key = make_key(kGrad, 1, 0, 0, 0);
  none.none = true;
  ASSERT_TRUE(at(1).send(0, none).ok());
  ASSERT_TRUE(at(1).send(0, make_message(make_key(kGrad, 1, 0, 0, 1), 0)).ok());
  std::optional<Message> got;
  while (!(got = at(0).take(none.key))) ASSERT_TRUE(at(0).wait(5000).ok());
  EXPECT_TRUE(got->none);
  EXPECT_TRUE(receive(at(0), make_key(kGrad, 1, 0, 0, 1), 0));
}

TEST_P(EndpointSuite, LargeMessagesBothWaysAtOnce) {
  start(2, {{0, 0, 1, 2, 2}});
  constexpr size_t kSize = (1 << 20) + 17;
  const auto forward = make_key(kAct, 0, 0, 0, 0);
  const auto back = make_key(kGrad, 1, 0, 0, 0);
  ASSERT_TRUE(at(0).send(1, make_message(forward, kSize)).ok());
  ASSERT_TRUE(at(1).send(0, make_message(back, kSize)).ok());
  EXPECT_TRUE(receive(at(1), forward, kSize));
  EXPECT_TRUE(receive(at(0), back, kSize));
  EXPECT_GE(at(0).stats().bytes_sent.at(0), static_cast<int64_t>(kSize));
}

TEST_P(EndpointSuite, ManyEdgesAndStages) {
  std::vector<EdgeLink> edges;
  for (int32_t a = 0; a < 4; ++a) {
    for (int32_t b = a + 1; b < 4; ++b) {
      for (int i = 0; i < 3; ++i) {
        edges.push_back({static_cast<uint32_t>(edges.size()), a, b, 2, 2});
      }
    }
  }
  start(4, edges);
  for (uint32_t m = 0; m < 4; ++m) {
    for (const EdgeLink& e : edges) {
      ASSERT_TRUE(
          at(e.from).send(e.to, make_message(make_key(kAct, e.from, e.edge, 0, m), 3000)).ok());
      ASSERT_TRUE(
          at(e.to).send(e.from, make_message(make_key(kGrad, e.to, e.edge, 0, m), 500)).ok());
    }
  }
  for (uint32_t m = 0; m < 4; ++m) {
    for (const EdgeLink& e : edges) {
      EXPECT_TRUE(receive(at(e.to), make_key(kAct, e.from, e.edge, 0, m), 3000));
      EXPECT_TRUE(receive(at(e.from), make_key(kGrad, e.to, e.edge, 0, m), 500));
    }
  }
  for (int32_t s = 0; s < 4; ++s) EXPECT_TRUE(at(s).flush(5000).ok());
}

TEST_P(EndpointSuite, CreditsBoundWhatIsUnderWay) {
  start(2, {{0, 0, 1, 2, 2}});
  for (uint32_t m = 0; m < 6; ++m) {
    ASSERT_TRUE(at(0).send(1, make_message(make_key(kAct, 0, 0, 0, m), 64)).ok());
  }
  EXPECT_EQ(at(0).flush(200).error().code, Code::kTimeout) << "nobody takes anything";
  EXPECT_FALSE(at(1).take(make_key(kAct, 0, 0, 0, 2)).has_value()) << "beyond two credits";
  for (uint32_t m = 0; m < 6; ++m) EXPECT_TRUE(receive(at(1), make_key(kAct, 0, 0, 0, m), 64));
  EXPECT_TRUE(at(0).flush(5000).ok());
}

TEST_P(EndpointSuite, TheSameKeyTwiceArrivesOnce) {
  start(2, {{0, 0, 1, 4, 4}});
  const auto key = make_key(kAct, 0, 0, 0, 0);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(at(0).send(1, make_message(key, 5000)).ok());
  EXPECT_TRUE(receive(at(1), key, 5000));
  const auto last = make_key(kAct, 0, 0, 0, 1);
  ASSERT_TRUE(at(0).send(1, make_message(last, 10)).ok());
  EXPECT_TRUE(receive(at(1), last, 10));
  EXPECT_FALSE(at(1).take(key).has_value());
}

TEST_P(EndpointSuite, BytesAreHeldUntilAcknowledged) {
  start(2, {{0, 0, 1, 1, 1}});
  auto storage = std::make_shared<std::vector<std::byte>>(5000);
  Message message = make_message(make_key(kAct, 0, 0, 0, 0), 5000);
  message.bytes = Buffer(storage, storage->data(), storage->size());
  ASSERT_TRUE(at(0).send(1, std::move(message)).ok());
  EXPECT_GT(storage.use_count(), 1);
  std::optional<Message> got;
  while (!(got = at(1).take(make_key(kAct, 0, 0, 0, 0)))) ASSERT_TRUE(at(1).wait(5000).ok());
  ASSERT_TRUE(at(0).flush(5000).ok());
  got.reset();
  EXPECT_EQ(storage.use_count(), 1);
}

TEST_P(EndpointSuite, WaitTimesOutAndIsInterrupted) {
  start(2, {{0, 0, 1, 1, 1}});
  EXPECT_EQ(at(0).wait(20).error().code, Code::kTimeout);
  at(0).interrupt();
  EXPECT_EQ(at(0).wait(5000).error().code, Code::kCancelled);
  EXPECT_EQ(at(0).wait(20).error().code, Code::kTimeout) << "one interrupt, one return";
}

TEST_P(EndpointSuite, RefusesStrangersAndForeignNames) {
  start(2, {{0, 0, 1, 1, 1}});
  EXPECT_EQ(at(0).send(7, make_message(make_key(kAct, 0, 0, 0, 0), 1)).error().code,
            Code::kNotFound);
  EXPECT_FALSE(at(0).send(1, make_message(make_key(kAct, 1, 0, 0, 0), 1)).ok());
}

TEST_P(EndpointSuite, ControlMessagesNeedNoEdge) {
  start(3, {{0, 0, 1, 1, 1}, {1, 1, 2, 1, 1}});
  for (uint64_t step = 0; step < 10; ++step) {
    const auto norms = make_key(MessageKind::kNorms, 0, 0, step, 0);
    const auto clip = make_key(MessageKind::kClip, 2, 0, step, 0);
    ASSERT_TRUE(at(0).send(2, make_message(norms, 8)).ok());
    ASSERT_TRUE(at(2).send(0, make_message(clip, 8)).ok());
    EXPECT_TRUE(receive(at(2), norms, 8));
    EXPECT_TRUE(receive(at(0), clip, 8));
  }
}

const LinkGateOptions kBadLink = [] {
  LinkGateOptions options;
  options.seed = 5;
  options.latency_ms = 2;
  options.jitter_ms = 3;
  options.break_every_bytes = 400000;
  return options;
}();

std::vector<Param> backends() {
  const auto sim = [](SimOptions options) {
    return [options](int32_t stages, const std::vector<EdgeLink>& edges) {
      return std::unique_ptr<Backend>(std::make_unique<SimBackend>(stages, edges, options));
    };
  };
  const auto tls = [](const LinkGateOptions* gate) {
    return [gate](int32_t stages, const std::vector<EdgeLink>& edges) {
      return std::unique_ptr<Backend>(std::make_unique<TlsBackend>(stages, edges, gate));
    };
  };
  return {{"sim", sim({})},
          {"sim_bad", sim({3, 20, 60, 8, 0.2, 0.3})},
          {"tls", tls(nullptr)},
          {"tls_bad", tls(&kBadLink)}};
}

INSTANTIATE_TEST_SUITE_P(Backends, EndpointSuite, ::testing::ValuesIn(backends()),
                         [](const auto& info) { return info.param.name; });

TEST(SimNetwork, OneSeedOneOrder) {
  const auto run = [](uint64_t seed) {
    SimNetwork network(2, {seed, 1, 50, 0, 0.1, 0.2});
    for (uint32_t m = 0; m < 20; ++m) {
      EXPECT_TRUE(network.endpoint(0).send(1, make_message(make_key(kAct, 0, 0, 0, m), 8)).ok());
    }
    std::vector<uint32_t> order;
    while (network.deliver_next()) {
      for (uint32_t m = 0; m < 20; ++m) {
        if (network.endpoint(1).take(make_key(kAct, 0, 0, 0, m))) order.push_back(m);
      }
    }
    return std::pair(order, network.now_ms());
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1).first, run(2).first);
  EXPECT_EQ(run(1).first.size(), 20u);
}

TEST(SimNetwork, BandwidthTakesVirtualTime) {
  SimNetwork network(2, {0, 10, 0, 8, 0, 0});  // 8 Mbit/s = 1000 bytes a millisecond
  ASSERT_TRUE(network.endpoint(0).send(1, make_message(make_key(kAct, 0, 0, 0, 0), 100000)).ok());
  EXPECT_TRUE(receive(network.endpoint(1), make_key(kAct, 0, 0, 0, 0), 100000));
  EXPECT_NEAR(network.now_ms(), 110, 1);
}

}  // namespace
}  // namespace weft::net
