// Rates from arrivals, trains that grow, and desks and probers over loopback.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "net/gate/link_gate.h"
#include "net/probe/probe_desk.h"
#include "net/probe/prober.h"
#include "net/probe/train_series.h"
#include "tests/unit/net/http_fixture.h"

namespace weft::net {
namespace {

constexpr double kPiece = 16376;

TEST(Arrivals, AnEvenTrainHasItsRate) {
  ArrivalLog log;
  for (int i = 0; i < 100; ++i) log.note(1000, 5 + 0.01 * i);
  const auto rate = train_rate(log.arrivals());
  ASSERT_TRUE(rate);
  EXPECT_NEAR(rate->bytes_s(), 1e5, 1);
  EXPECT_EQ(rate->all_bytes, 1e5);
  EXPECT_NEAR(rate->span_s, 0.99, 1e-9);
}

TEST(Arrivals, AFastStartAndASlowStartDoNotCount) {
  for (const double early : {1e-9, 3.0}) {  // a token bucket's savings; a window that grows
    ArrivalLog log;
    double now = 0;
    for (int i = 0; i < 200; ++i) log.note(1000, now += i < 80 ? early * 0.01 : 0.01);
    EXPECT_NEAR(train_rate(log.arrivals())->bytes_s(), 1e5, 1e3) << early;
  }
}

TEST(Arrivals, AReaderThatWakesLateDoesNotCount) {
  ArrivalLog log;
  for (int i = 0; i < 200; ++i) log.note(1000, i > 120 && i < 150 ? 1.5 : 0.01 * i);
  EXPECT_NEAR(train_rate(log.arrivals())->bytes_s(), 1e5, 1e4);
}

TEST(Arrivals, AReaderThatSleptThroughTheTrainIsNoFastLine) {
  ArrivalLog log;
  for (int i = 0; i < 100; ++i) log.note(1000, 1 + 1e-6 * i);  // what took a second
  auto rate = train_rate(log.arrivals());
  ASSERT_TRUE(rate);
  EXPECT_GT(rate->bytes_s(), 1e8);
  bound_rate(*rate, 1.1, 0.1);
  EXPECT_NEAR(rate->bytes_s(), 1.25e5, 1);
  TrainRate honest{5e4, 0.5, 1e5, 1};
  bound_rate(honest, 1.1, 0.1);
  EXPECT_EQ(honest.seconds, 0.5);
}

TEST(Arrivals, WhatComesAtOnceTellsNoRate) {
  ArrivalLog log;
  EXPECT_FALSE(train_rate(log.arrivals()));
  for (int i = 0; i < 10; ++i) log.note(1000, 1);
  EXPECT_FALSE(train_rate(log.arrivals()));
}

TEST(Arrivals, ALogIsBoundedAndKeepsTheWholeTrain) {
  ArrivalLog log;
  const int pieces = 100'000;
  for (int i = 0; i < pieces; ++i) log.note(100, 1e-4 * i);
  const auto marks = log.arrivals();
  EXPECT_LE(marks.size(), ArrivalLog::kMax + 1);
  EXPECT_GE(marks.size(), ArrivalLog::kMax / 4);
  EXPECT_EQ(marks.front().seconds, 0);
  EXPECT_EQ(marks.back().bytes, 100.0 * pieces);
  double widest = 0;
  for (size_t i = 1; i < marks.size(); ++i) {
    widest = std::max(widest, marks[i].bytes - marks[i - 1].bytes);
  }
  EXPECT_LT(widest, 100.0 * pieces / 60);
  EXPECT_NEAR(train_rate(marks)->bytes_s(), 1e6, 1e3);
}

TEST(Arrivals, CrossTheWireAndAreCheckedThere) {
  const std::vector<Arrival> marks = {{10, 0}, {30, 0.5}, {31, 0.5}};
  const auto back = arrivals_from_json(arrivals_to_json(marks));
  ASSERT_TRUE(back.ok());
  ASSERT_EQ(back->size(), 3u);
  EXPECT_EQ((*back)[1].bytes, 30);
  EXPECT_EQ((*back)[2].seconds, 0.5);
  using nlohmann::json;
  json many = json::array();
  for (int i = 0; i < 1000; ++i) many.push_back({i, i});
  for (const json& wrong : {json(), json(3), json::array({1}), json::array({{1, 2, 3}}),
                            json::array({{1, "x"}}), json::array({{1, -1}}),
                            json::array({{5, 1}, {4, 2}}), json::array({{5, 2}, {6, 1}}), many}) {
    EXPECT_FALSE(arrivals_from_json(wrong).ok()) << wrong.dump().substr(0, 60);
  }
}

// A line with a token bucket and a round trip, and a sender whose window doubles each round trip.
// Virtual time.
struct SimulatedLine {
  double bytes_s = 1e6, round_trip_s = 0.02, saved_bytes = 0, noise = 0;
  double starved = 0;        // share of trains that a machine without time carries at half the rate
  double train_extra_s = 0;  // that each takes more
  double window = 14600, now_s = 0;
  Rng rng{7};

  std::optional<TrainRate> carry(const TrainSeries::Train& train) {
    ArrivalLog log;
    double sent = 0, free_s = now_s, tokens = saved_bytes;
    const double rate = rng.uniform() < starved ? bytes_s / 2 : bytes_s;
    const double until_s = now_s + train.seconds;
    for (double round_s = now_s; sent < static_cast<double>(train.bytes) && round_s < until_s;) {
      double left = std::min(window, static_cast<double>(train.bytes) - sent);
      sent += left;
      for (free_s = std::max(free_s, round_s); left > 0; left -= kPiece) {
        const double piece = std::min(left, kPiece);
        const double paid = std::max(0.0, piece - tokens);
        tokens = std::max(0.0, tokens - piece);
        free_s += paid / rate * (1 + noise * (rng.uniform() - 0.5));
        log.note(static_cast<size_t>(piece), free_s + round_trip_s / 2);
      }
      window *= 2;
      round_s = std::max(round_s + round_trip_s, free_s - round_trip_s);
    }
    now_s = free_s + round_trip_s + train_extra_s;
    return train_rate(log.arrivals());
  }
};

struct Measured {
  double bytes_s = 0, seconds = 0;
  size_t trains = 0;
};

Measured measure(SimulatedLine line, uint64_t max_bytes = 4 << 20, double max_s = 8) {
  TrainSeries series({max_bytes, max_s, line.round_trip_s});
  Measured result;
  while (const auto train = series.next(line.now_s)) {
    EXPECT_LE(train->bytes, max_bytes);
    EXPECT_GT(train->bytes, 0u);
    series.add(*train, line.carry(*train));
    if (++result.trains > TrainSeries::kMaxTrains) break;
  }
  result.bytes_s = series.bytes_s();
  result.seconds = line.now_s;
  return result;
}

TEST(TrainSeries, FindsTheRateOfAnyLine) {
  for (const double mbit_s : {8.0, 20.0, 100.0, 200.0, 1000.0, 10000.0}) {
    for (const double trip_s : {0.0002, 0.02, 0.1, 0.2}) {
      SimulatedLine line;
      line.bytes_s = mbit_s * 125000;
      line.round_trip_s = trip_s;
      line.saved_bytes = std::clamp(line.bytes_s * 0.008, 32e3, 1e6);
      line.noise = 0.3;
      const Measured got = measure(line);
      // What a train of 4 MiB can say at all.
      const double most = (4 << 20) / std::max(trip_s, 1e-9);
      EXPECT_GT(got.bytes_s, 0.9 * std::min(line.bytes_s, most)) << mbit_s << " " << trip_s;
      EXPECT_LT(got.bytes_s, 1.1 * line.bytes_s) << mbit_s << " " << trip_s;
      EXPECT_LE(got.seconds, 8.5) << mbit_s << " " << trip_s;
      EXPECT_LE(got.trains, TrainSeries::kMaxTrains);
    }
  }
}

TEST(TrainSeries, EndsWhenTwoAgree) {
  SimulatedLine line;
  line.bytes_s = 2.5e6;
  EXPECT_LE(measure(line).trains, 5u);
}

TEST(TrainSeries, AMachineWithoutTimeIsNoSlowLine) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SimulatedLine line;
    line.bytes_s = 125e6;
    line.round_trip_s = 0.0004;
    line.starved = 0.3;
    line.rng = Rng(seed);
    EXPECT_NEAR(measure(line).bytes_s, line.bytes_s, 0.1 * line.bytes_s) << seed;
  }
}

// A gigabit between continents: each train costs a request and a round trip more (prober.cpp).
Measured measure_far(double trip_s, double max_s) {
  SimulatedLine line;
  line.bytes_s = 1.25e8;
  line.round_trip_s = trip_s;
  line.noise = 0.3;
  line.train_extra_s = 2 * trip_s;
  return measure(line, 4 << 20, max_s);
}

TEST(TrainSeries, FastLinesBetweenContinentsHaveARate) {
  for (const double trip_s : {0.1, 0.15, 0.25, 0.35, 0.53}) {
    const Measured got = measure_far(trip_s, time_to_measure_s(20, trip_s, 1));
    EXPECT_GT(got.bytes_s, 0.9 * std::min(1.25e8, (4 << 20) / trip_s)) << trip_s;
    EXPECT_LT(got.bytes_s, 1.1 * 1.25e8) << trip_s;
  }
}

// With the share of the time that each of two has (prober.cpp); farther lines are not tested.
TEST(TrainSeries, EachOfTwoThatAreFarHasARateAlone) {
  for (const double trip_s : {0.1, 0.15, 0.2, 0.25}) {
    const Measured got = measure_far(trip_s, 0.35 * time_to_measure_s(20, trip_s, 2));
    EXPECT_GT(got.bytes_s, 0.9 * std::min(1.25e8, (4 << 20) / trip_s)) << trip_s;
  }
  EXPECT_EQ(measure_far(0.4, 0.35 * time_to_measure_s(20, 0.4, 2)).bytes_s, 0);
}

TEST(Prober, TakesLongerOverLongWaysWithinItsOrder) {
  EXPECT_EQ(time_to_measure_s(20, 0.001, 1), 8);
  EXPECT_EQ(time_to_measure_s(20, 0.05, 2), 8);
  EXPECT_EQ(time_to_measure_s(20, 0.15, 2), 16);
  EXPECT_DOUBLE_EQ(time_to_measure_s(20, 0.3, 1), 12);
  EXPECT_EQ(time_to_measure_s(20, 0.9, 2), 20);
  EXPECT_EQ(time_to_measure_s(0.5, 0.9, 1), 0.5) << "beside somebody's work";
}

TEST(TrainSeries, WithoutTimeForATrainItSaysNothingRatherThanAWindow) {
  SimulatedLine line;
  line.bytes_s = 25e6;
  line.round_trip_s = 0.2;
  EXPECT_EQ(measure(line, 256 << 10, 0.5).bytes_s, 0);
}

TEST(TrainSeries, StaysWithinATightLimitOfTime) {
  SimulatedLine line;  // 8 Mbit/s
  line.round_trip_s = 0.001;
  const Measured got = measure(line, 256 << 10, 0.5);
  EXPECT_LE(got.seconds, 0.55);
  EXPECT_NEAR(got.bytes_s, line.bytes_s, 0.1 * line.bytes_s);
}

TEST(TrainSeries, TrainsThatTellNothingGrowAndEnd) {
  TrainSeries series({4 << 20, 8, 0.01});
  uint64_t last = 0;
  size_t asked = 0;
  for (; const auto train = series.next(0.01 * static_cast<double>(asked)); ++asked) {
    EXPECT_GE(train->bytes, last);
    last = train->bytes;
    series.add(*train, std::nullopt);
  }
  EXPECT_EQ(asked, TrainSeries::kMaxTrains);
  EXPECT_EQ(last, 4u << 20);
  EXPECT_TRUE(series.trains().empty());
}

class DeskTest : public ::testing::Test {
 protected:
  HttpResponse ask(const std::string& method, const std::string& path, const std::string& peer,
                   std::map<std::string, std::string> query = {}) {
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.query = std::move(query);
    HttpResponse got;
    got.status = 0;
    desk_.serve(request, peer, [&](HttpResponse response) { got = std::move(response); });
    return got;
  }
  HttpResponse train(const std::string& bytes, const std::string& ms) {
    return ask("GET", "/api/v1/probe/train", "a", {{"bytes", bytes}, {"ms", ms}});
  }
  std::unique_ptr<HttpUpload> upload(const std::string& peer) {
    HttpRequest request;
    request.method = "PUT";
    request.path = "/api/v1/probe/train";
    return desk_.upload(request, peer);
  }

  double now_s_ = 100;
  ProbeDesk desk_{[this] { return now_s_; }};
};

TEST_F(DeskTest, IsBusyUntilItIsOpenAndWhenItIsClosed) {
  EXPECT_EQ(ask("GET", "/api/v1/probe", "a").status, 503);
  desk_.open();
  EXPECT_EQ(ask("GET", "/api/v1/probe", "a").status, 200);
  EXPECT_TRUE(desk_.in_use());
  desk_.close();
  const HttpResponse refused = ask("GET", "/api/v1/probe", "a");
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("busy"), std::string::npos);
  EXPECT_EQ(train("1000", "1000").status, 503);
}

TEST_F(DeskTest, OneHasItsTurnAtATime) {
  desk_.open();
  EXPECT_EQ(ask("GET", "/api/v1/probe", "a").status, 200);
  EXPECT_EQ(ask("GET", "/api/v1/probe", "b").status, 503);
  EXPECT_EQ(ask("DELETE", "/api/v1/probe", "b").status, 204) << "not b's turn to end";
  EXPECT_EQ(ask("GET", "/api/v1/probe", "b").status, 503);
  EXPECT_EQ(ask("DELETE", "/api/v1/probe", "a").status, 204);
  EXPECT_FALSE(desk_.in_use());
  EXPECT_EQ(ask("GET", "/api/v1/probe", "b").status, 200);
}

TEST_F(DeskTest, ATurnEndsWithItsTime) {
  desk_.open();
  EXPECT_EQ(ask("GET", "/api/v1/probe", "a").status, 200);
  now_s_ += ProbeDesk::kIdleTurnS + 0.1;
  EXPECT_FALSE(desk_.in_use());
  EXPECT_EQ(ask("GET", "/api/v1/probe", "b").status, 200);
  for (double held = 0; held < ProbeDesk::kMaxTurnS; held += 1) {
    EXPECT_EQ(ask("GET", "/api/v1/probe", "b").status, 200);
    EXPECT_EQ(ask("GET", "/api/v1/probe", "a").status, 503) << held;
    now_s_ += 1;
  }
  EXPECT_EQ(ask("GET", "/api/v1/probe", "a").status, 200) << "b held it as long as anybody may";
}

TEST_F(DeskTest, MalformedRequestsAreAnsweredWithAnError) {
  desk_.open();
  for (const auto& [bytes, ms] : {std::pair("", "1"),
                                  {"0", "1"},
                                  {"-1", "1"},
                                  {"1x", "1"},
                                  {"1", ""},
                                  {"1", "1.5"},
                                  {"99999999999999999999999", "1"}}) {
    EXPECT_EQ(train(bytes, ms).status, 400) << bytes << " " << ms;
  }
  EXPECT_EQ(ask("POST", "/api/v1/probe", "a").status, 405);
  EXPECT_EQ(ask("DELETE", "/api/v1/probe/train", "a").status, 405);
  EXPECT_EQ(ask("GET", "/api/v1/probes", "a").status, 0) << "not the desk's";
}

TEST_F(DeskTest, ATrainItSendsIsBoundedInBytesAndTime) {
  desk_.open();
  char room[1 << 16];
  const auto sent = [&](const HttpResponse& response, double seconds_per_piece) {
    uint64_t total = 0;
    while (const size_t bytes = response.source(room)) {
      total += bytes;
      now_s_ += seconds_per_piece;
    }
    return total;
  };
  EXPECT_EQ(sent(train("100000", "1000"), 0), 100'000u);
  EXPECT_EQ(sent(train("999999999999", "1000"), 0), ProbeDesk::kMaxTrainBytes);
  EXPECT_LE(sent(train("999999999999", "1000"), 0.1), 12 * sizeof room);
  EXPECT_LE(sent(train("999999999999", "999999999"), 0.1),
            static_cast<uint64_t>(10 * ProbeDesk::kMaxTrainS + 2) * sizeof room);
  const HttpResponse cut = train("999999999999", "1000");
  EXPECT_GT(cut.source(room), 0u);
  desk_.close();
  EXPECT_EQ(cut.source(room), 0u) << "work has begun";
}

TEST_F(DeskTest, ATrainItGetsIsBoundedInBytesAndTime) {
  EXPECT_FALSE(upload("a")->take(0)) << "closed";
  desk_.open();
  auto large = upload("a");
  uint64_t total = 0;
  while (large->take(1 << 20)) total += 1 << 20;
  EXPECT_EQ(total, ProbeDesk::kMaxTrainBytes);
  auto slow = upload("a");
  const double start = now_s_;
  while (slow->take(1)) now_s_ += 0.5;
  EXPECT_LE(now_s_, start + ProbeDesk::kMaxTrainS + 1);
  auto cut = upload("a");
  EXPECT_TRUE(cut->take(1000));
  EXPECT_FALSE(upload("b")->take(0)) << "it is a's turn";
  desk_.close();
  EXPECT_FALSE(cut->take(1000));
  EXPECT_EQ(cut->end().status, 503);
}

// Desks on loopback, each behind a gate.
class ProberTest : public ::testing::Test {
 protected:
  struct Peer {
    ProbeDesk desk;
    std::unique_ptr<HttpServer> server;
    std::unique_ptr<LinkGate> gate;
  };

  Peer& peer(const std::string& name, LinkGateOptions gate = {}) {
    auto peer = std::make_unique<Peer>();
    Peer* self = peer.get();
    HttpServerOptions options = cluster_.server_options(name, "peer");
    options.upload = [self](const HttpRequest& request) {
      return self->desk.upload(request, request.remote_address);
    };
    self->desk.open();
    self->server =
        HttpServer::start(options, [self](const HttpRequest& request, const HttpReply& reply) {
          ASSERT_TRUE(self->desk.serve(request, request.remote_address, reply));
        }).value();
    gate.target_port = self->server->port();
    self->gate = LinkGate::start(gate).value();
    order_.targets.push_back({name, cluster_.client_options(self->gate->port())});
    order_.targets.back().client.expect_subject = name;
    order_.targets.back().client.timeout_ms = 5000;
    peers_.push_back(std::move(peer));
    return *self;
  }

  Cluster cluster_{"prober"};
  ProbeOrder order_{{}, false, 1 << 20, 4000};
  std::vector<std::unique_ptr<Peer>> peers_;
};

TEST_F(ProberTest, MeasuresALineInBothDirections) {
  LinkGateOptions line;
  line.latency_ms = 10;
  line.bandwidth_mbit_s = 40;
  Peer& target = peer("p-1", line);
  for (const bool receive : {false, true}) {
    order_.receive = receive;
    const ProbeFinding found = Prober(order_).run();
    ASSERT_EQ(found.outcome, ProbeFinding::Outcome::kMeasured) << found.why;
    ASSERT_EQ(found.ways.size(), 1u);
    EXPECT_EQ(found.ways[0].peer, "p-1");
    EXPECT_GE(found.ways[0].round_trip_s, 0.020);
    EXPECT_LT(found.ways[0].round_trip_s, 0.035);
    ASSERT_FALSE(found.ways[0].trains.empty());
    for (const TrainRate& train : found.ways[0].trains) {
      EXPECT_NEAR(train.bytes_s() * 8e-6, 40, 6) << receive;
    }
    EXPECT_FALSE(target.desk.in_use()) << "it left";
  }
}

TEST_F(ProberTest, TwoWaysOfTheirOwnCarryAsMuchAtOnce) {
  LinkGateOptions line;
  line.bandwidth_mbit_s = 20;
  peer("p-1", line);
  peer("p-2", line);
  const ProbeFinding found = Prober(order_).run();
  ASSERT_EQ(found.outcome, ProbeFinding::Outcome::kMeasured) << found.why;
  ASSERT_EQ(found.ways.size(), 2u);
  for (const ProbedWay& way : found.ways) {
    EXPECT_NEAR(way.alone_bytes_s * 8e-6, 20, 3);
    EXPECT_NEAR(way.together_bytes_s * 8e-6, 20, 4);
  }
}

TEST_F(ProberTest, ABusyPeerSaysSoAtOnceAndGetsNoBytes) {
  Peer& target = peer("p-1");
  target.desk.close();
  const ProbeFinding found = Prober(order_).run();
  EXPECT_EQ(found.outcome, ProbeFinding::Outcome::kBusy);
  EXPECT_EQ(found.peer, "p-1");
  EXPECT_LT(target.gate->stats().bytes_forward, 16000);
}

TEST_F(ProberTest, APeerThatBeginsToWorkEndsTheTrain) {
  LinkGateOptions line;
  line.bandwidth_mbit_s = 8;
  for (const bool receive : {false, true}) {
    order_.targets.clear();
    order_.receive = receive;
    Peer& target = peer("p-1", line);
    Prober prober(order_);
    auto found = std::async(std::launch::async, [&] { return prober.run(); });
    while (target.gate->stats().bytes_forward + target.gate->stats().bytes_back < 100'000) {
      std::this_thread::yield();
    }
    target.desk.close();
    EXPECT_EQ(found.get().outcome, ProbeFinding::Outcome::kBusy) << receive;
  }
}

TEST_F(ProberTest, WhoCannotBeReachedIsNamed) {
  peer("p-1");
  peer("p-2").server->stop();
  const ProbeFinding found = Prober(order_).run();
  EXPECT_EQ(found.outcome, ProbeFinding::Outcome::kUnreachable);
  EXPECT_EQ(found.peer, "p-2");
  EXPECT_FALSE(found.why.empty());
}

TEST_F(ProberTest, SomebodyElseAtThePortIsNotMeasured) {
  peer("p-1");
  order_.targets[0].client.expect_subject = "p-9";
  EXPECT_EQ(Prober(order_).run().outcome, ProbeFinding::Outcome::kUnreachable);
}

TEST_F(ProberTest, IsGivenUpAtOnceWhateverItWaitsFor) {
  Peer& target = peer("p-1");
  Prober prober(order_);
  target.gate->stall(true);
  auto found = std::async(std::launch::async, [&] { return prober.run(); });
  while (target.gate->stats().connections == 0) std::this_thread::yield();
  prober.interrupt();
  EXPECT_EQ(found.get().outcome, ProbeFinding::Outcome::kGivenUp);
}

}  // namespace
}  // namespace weft::net
