// The meter of runs against a simulated way: a rate, a round trip, delays of every kind; time is a
// number. And the same over sockets and the simulated network.
#include "net/frame/run_meter.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "net/sim/sim_network.h"
#include "tests/unit/net/sim_messages.h"
#include "tests/unit/net/tls_cluster.h"

namespace weft::net {
namespace {

using testing::make_key;
using testing::make_message;
using testing::receive;

constexpr double kWriteBytes = 16384;

// Writes go into a pipe that empties at a rate; a message is acknowledged a round trip after its
// last byte left the pipe.
struct SimulatedWay {
  double rate = 6e6, round_trip_s = 0.03;
  double buffer_s = 0.01;  // of writes that are ahead of the pipe
  double now_s = 50, free_s = 0;
  uint32_t number = 0;
  RunMeter meter;
  std::vector<std::pair<MessageKey, double>> under_way;  // and when it is acknowledged
  double queue_back_s = 0;                               // an acknowledgement waits for
  double told_s = 0;                                     // of it is known

  // Of bytes, one behind the other; the answer comes late by that much.
  void send(const std::vector<double>& messages, double late_s = 0) {
    for (const double bytes : messages) {
      const MessageKey key = make_key(MessageKind::kActivation, 0, 0, 0, number++);
      for (double left = bytes; left > 0; left -= kWriteBytes) {
        settle();
        const double part = std::min(left, kWriteBytes);
        const bool last = part == left;
        meter.writes(now_s, static_cast<uint64_t>(part), last ? std::optional(key) : std::nullopt);
        free_s = std::max(free_s, now_s) + part / rate;
        now_s = std::max(now_s, free_s - buffer_s);
      }
      under_way.emplace_back(key, free_s + round_trip_s + late_s + queue_back_s);
    }
    meter.lull();
  }
  void settle() {
    while (!under_way.empty() && under_way.front().second <= now_s) {
      meter.acknowledged(under_way.front().first, under_way.front().second, round_trip_s, told_s);
      under_way.erase(under_way.begin());
    }
  }
  void pause(double seconds) {
    now_s += seconds;
    settle();
  }
};

TEST(RunMeter, TellsTheRateOfTheWay) {
  SimulatedWay way;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(way.meter.bytes_s(way.now_s), 0) << "of fewer than three runs";
    way.send({2e6});
    way.pause(0.5);
  }
  EXPECT_NEAR(way.meter.bytes_s(way.now_s), way.rate, 1e-6 * way.rate);
  EXPECT_EQ(way.meter.runs(), 3);
  EXPECT_EQ(way.meter.bytes_s(way.now_s + RunMeter::kMemoryS + 1), 0) << "a minute ago";
}

// Whatever delays writes, acknowledgements or the pipe: it is never told more than it carries.
RC_GTEST_PROP(RunMeter, NeverTellsMoreThanTheWayCarries, ()) {
  SimulatedWay way;
  way.rate = *rc::gen::inRange(50, 40000) * 1000.0;
  way.round_trip_s = *rc::gen::inRange(0, 200) / 1e3;
  const double full = way.rate;
  for (int i = 0; i < 30; ++i) {
    std::vector<double> messages(*rc::gen::inRange<size_t>(1, 5));
    for (double& bytes : messages) bytes = full * *rc::gen::inRange(1, 800) / 1e3;
    // Others take their part of the line meanwhile.
    way.rate = full * *rc::gen::inRange(30, 101) / 100;
    way.queue_back_s = *rc::gen::inRange(0, 300) / 1e3;
    way.told_s = way.queue_back_s * *rc::gen::inRange(0, 101) / 100;
    way.send(messages, *rc::gen::inRange(0, 20) / 1e3);
    way.pause(*rc::gen::inRange(0, 400) / 1e3);
    RC_ASSERT(way.meter.bytes_s(way.now_s) <= full * (1 + 1e-9));
  }
}

// Continuous traffic and single messages with lulls, on lines of homes and of cities.
RC_GTEST_PROP(RunMeter, IsNearTheRateOfAWayOfItsOwn, ()) {
  SimulatedWay way;
  way.rate = *rc::gen::inRange(500, 25000) * 1000.0;
  way.round_trip_s = *rc::gen::inRange(1, 150) / 1e3;
  const double seconds = *rc::gen::inRange(300, 1500) / 1e3;
  const bool lulls = *rc::gen::arbitrary<bool>();
  way.queue_back_s = way.told_s = *rc::gen::inRange(0, 400) / 1e3;
  for (int i = 0; i < 6; ++i) {
    way.send(lulls ? std::vector<double>{way.rate * seconds}
                   : std::vector<double>(10, way.rate * seconds / 5));
    way.pause(way.round_trip_s + way.queue_back_s + 0.2);
  }
  RC_ASSERT(way.meter.bytes_s(way.now_s) > 0.9 * way.rate);
  RC_ASSERT(way.meter.bytes_s(way.now_s) <= way.rate * (1 + 1e-9));
}

TEST(RunMeter, OneOfFourMayHaveBeenLucky) {
  SimulatedWay way;
  for (int i = 0; i < 16; ++i) {
    way.rate = i % 4 == 0 ? 20e6 : 6e6;  // a token bucket had saved
    way.send({6e6});
    way.pause(1);
  }
  EXPECT_NEAR(way.meter.bytes_s(way.now_s), 6e6, 1);
}

TEST(RunMeter, ALineThatIsSharedMostOfTheTimeIsKnown) {
  SimulatedWay way;
  for (int i = 0; i < 16; ++i) {
    way.rate = i % 3 == 0 ? 6e6 : 2e6;
    way.send({2e6});
    way.pause(0.5);
  }
  EXPECT_NEAR(way.meter.bytes_s(way.now_s), 6e6, 1);
}

TEST(RunMeter, WhatIsShortSaysNothing) {
  SimulatedWay way;
  for (int i = 0; i < 50; ++i) {
    way.send({way.rate * 0.9 * RunMeter::kLeastS});
    way.pause(0.5);
  }
  SimulatedWay far;
  far.round_trip_s = 0.4;
  for (int i = 0; i < 50; ++i) {
    far.send({far.rate * 0.35});
    far.pause(1);
  }
  SimulatedWay late;  // a machine that wakes late
  for (int i = 0; i < 50; ++i) {
    late.send({60e3}, 0.3);
    late.pause(1);
  }
  EXPECT_EQ(way.meter.runs() + far.meter.runs() + late.meter.runs(), 0);
}

TEST(RunMeter, ALullBetweenMessagesIsNoPartOfARun) {
  SimulatedWay way;
  way.round_trip_s = 0.3;
  // The next begins before the last is acknowledged.
  for (int i = 0; i < 8; ++i) {
    way.send({way.rate * 0.4});
    way.pause(0.2);
  }
  EXPECT_NEAR(way.meter.bytes_s(way.now_s), way.rate, 0.05 * way.rate);
}

TEST(RunMeter, ALostConnectionEndsItsRuns) {
  SimulatedWay way;
  for (int i = 0; i < 5; ++i) {
    way.send({2e6});
    way.meter.on_disconnected();
    way.pause(1);
  }
  EXPECT_EQ(way.meter.runs(), 0);
  for (int i = 0; i < 3; ++i) {
    way.send({2e6});
    way.pause(1);
  }
  way.meter.on_disconnected();
  EXPECT_NEAR(way.meter.bytes_s(way.now_s), way.rate, 1) << "what was known stays";
}

// Then the message would have arrived before it was written.
TEST(RunMeter, AClockThatLiesBringsNoMoreThanOurKernelHeld) {
  SimulatedWay way;
  way.told_s = 5;
  for (int i = 0; i < 8; ++i) {
    way.send({way.rate * 0.4});
    way.pause(1);
  }
  EXPECT_GT(way.meter.runs(), 0);
  EXPECT_LE(way.meter.bytes_s(way.now_s), way.rate * 0.4 / (0.4 - 2 * way.buffer_s));
}

// Clocks of any two origins, one of them 100 ppm fast; answers behind a queue most of the time.
RC_GTEST_PROP(WayBack, TellsWhatAnAnswerWaitedFor, ()) {
  const double way_s = *rc::gen::inRange(0, 300) / 1e3;
  const double drift = *rc::gen::inRange(-100, 101) * 1e-6;
  const auto origin_us = *rc::gen::inRange<int64_t>(-1000000000000, 1000000000000);
  WayBack back;
  const auto answer = [&](double sent_s, double waited_s) {
    const auto at_us = origin_us + static_cast<int64_t>(1e6 * sent_s * (1 + drift));
    return back.note(sent_s + way_s + waited_s, at_us);
  };
  double now_s = 1000;
  RC_ASSERT(answer(now_s, 0) == 0);
  for (int i = 0; i < 300; ++i) {
    now_s += 0.5;
    const double waited_s = i % 20 == 0 ? 0 : *rc::gen::inRange(0, 400) / 1e3;
    RC_ASSERT(std::abs(answer(now_s, waited_s) - waited_s) <= 100e-6 * 70 + 2e-6);
  }
}

// Whatever one answer says, those after it are not taken for hours late, nor believed early.
RC_GTEST_PROP(WayBack, AClockThatJumpsSpoilsNothingForLong, ()) {
  WayBack back;
  const auto lie = *rc::gen::element<int64_t>(INT64_MIN, INT64_MAX, 0, 20'000'000, 52'000'000,
                                              58'000'000, 1'000'000'000'000);
  double now_s = 50;
  const auto honest = [&](double waited_s) {
    now_s += 1;
    return back.note(now_s + waited_s, static_cast<int64_t>(1e6 * now_s));
  };
  for (int i = 0; i < 5; ++i) honest(0.02);
  RC_ASSERT(back.note(now_s, lie) <= WayBack::kMostS);
  RC_ASSERT(honest(0.02) < 1e-3);
  RC_ASSERT(std::abs(honest(0.32) - 0.3) < 1e-3);
}

RC_GTEST_PROP(WayBack, AClockThatStoodStillSpoilsNothing, ()) {
  WayBack back;
  const double still_s = *rc::gen::inRange(15, 100000) / 10.0;
  double now_s = 50, lost_s = 0;
  const auto honest = [&](double waited_s) {
    now_s += 1;
    return back.note(now_s + waited_s, static_cast<int64_t>(1e6 * (now_s - lost_s)));
  };
  for (int i = 0; i < 5; ++i) honest(0.02);
  lost_s = still_s;
  RC_ASSERT(honest(0.02) < 1e-3);
  RC_ASSERT(std::abs(honest(0.32) - 0.3) < 1e-3);
}

TEST(LatelyLeast, IsOfTheLastMinute) {
  LatelyLeast trip;
  EXPECT_FALSE(trip.seconds());
  for (int s = 100; s < 160; ++s) trip.note(s, s == 110 ? 0.020 : 0.030);
  EXPECT_EQ(trip.seconds(), 0.020);
  for (int s = 160; s < 230; ++s) trip.note(s, 0.050);
  EXPECT_EQ(trip.seconds(), 0.050) << "the way has become longer";
}

TEST(PingTimes, SeveralAreUnderWayAndSomeAreNeverAnswered) {
  PingTimes pings;
  EXPECT_FALSE(pings.answered(0));
  EXPECT_FALSE(pings.answered(1)) << "not asked yet";
  EXPECT_EQ(pings.ask(10), 1u);
  EXPECT_EQ(pings.ask(11), 2u);
  EXPECT_EQ(pings.ask(12), 3u);
  EXPECT_EQ(pings.answered(2), 11) << "the first was not answered";
  EXPECT_FALSE(pings.answered(2)) << "once";
  EXPECT_FALSE(pings.answered(1));
  EXPECT_FALSE(pings.answered(UINT64_MAX));
  EXPECT_EQ(pings.answered(3), 12);
  for (size_t i = 0; i <= PingTimes::kMost; ++i) pings.ask(static_cast<double>(i));
  EXPECT_FALSE(pings.answered(4)) << "no more than so many are kept";
  EXPECT_EQ(pings.answered(5), 1);
}

// Messages with lulls in both directions; what both ends know of the way then.
void exchange(Endpoint& a, Endpoint& b, size_t bytes, uint32_t count) {
  for (uint32_t m = 0; m < count; ++m) {
    const auto there = make_key(MessageKind::kActivation, 0, 0, 0, m);
    const auto back = make_key(MessageKind::kGradient, 1, 0, 0, m);
    ASSERT_TRUE(a.send(1, make_message(there, bytes)).ok());
    ASSERT_TRUE(b.send(0, make_message(back, bytes)).ok());
    ASSERT_TRUE(receive(b, there, bytes));
    ASSERT_TRUE(receive(a, back, bytes));
    ASSERT_TRUE(a.flush(10000).ok());
    ASSERT_TRUE(b.flush(10000).ok());
  }
}

// Sockets, TLS, a proxy with the rate of a home's line: TCP's own round trip is the proxy's.
TEST(CarriedTraffic, IsToldByTheTlsEndpoint) {
  LinkGateOptions gate;
  gate.bandwidth_mbit_s = 40;
  gate.latency_ms = 10;
  testing::TlsCluster cluster(
      2, {{0, 0, 1, 2, 2}}, {}, [](TlsEndpointOptions& o) { o.ping_interval_ms = 50; }, &gate);
  EXPECT_TRUE(cluster.at(0).stats().carried.empty());
  // Some pings before there is a queue.
  EXPECT_EQ(cluster.at(0).wait(300).error().code, Code::kTimeout);
  exchange(cluster.at(0), cluster.at(1), 1500000, 4);
  for (const int32_t stage : {0, 1}) {
    const auto carried = cluster.at(stage).stats().carried;
    ASSERT_EQ(carried.size(), 1u);
    const CarriedTraffic& way = carried.at(1 - stage);
    EXPECT_GE(way.runs, 3);
    EXPECT_LT(way.bytes_s, 1.02 * 5e6);
    EXPECT_GT(way.bytes_s, 0.7 * 5e6) << "this machine may be busy";
    EXPECT_GE(way.round_trip_s, 0.020);
    EXPECT_LT(way.round_trip_s, 0.060);
  }
}

TEST(CarriedTraffic, IsToldByTheSimulatedNetwork) {
  SimOptions options;
  options.bandwidth_mbit_s = 40;
  options.latency_ms = 15;
  options.jitter_ms = 0;
  SimNetwork network(2, options);
  exchange(network.endpoint(0), network.endpoint(1), 1500000, 4);
  for (const int32_t stage : {0, 1}) {
    const CarriedTraffic way = network.endpoint(stage).stats().carried.at(1 - stage);
    EXPECT_EQ(way.runs, 4);
    EXPECT_NEAR(way.bytes_s, 5e6, 1e-3 * 5e6);
    EXPECT_NEAR(way.round_trip_s, 0.030, 1e-9);
  }
}

}  // namespace
}  // namespace weft::net
