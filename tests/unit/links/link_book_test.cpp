// The book itself: fits, who is probed when, what is believed.
#include "broker/links/link_book.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "synthetic_network.h"

namespace weft::broker {
namespace {

ProbedLink probed(double round_trip_s, double bytes_s, double noise = 0, uint64_t seed = 1) {
  ProbedLink link;
  link.round_trip_s = round_trip_s;
  Rng rng(seed);
  for (const double bytes : {65536.0, 262144.0, 1048576.0}) {
    link.trains.push_back({bytes, bytes / bytes_s * (1 + noise * (2 * rng.uniform() - 1))});
  }
  return link;
}

TEST(LinkRecord, FitsThroughNoiseAndOutliers) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    LinkRecord record;
    for (int64_t k = 0; k < 3; ++k) {
      ProbedLink link = probed(0.020 + 0.001 * double(k), 5e6, 0.05, seed * 10 + uint64_t(k));
      link.trains[seed % 3].seconds += 0.3;  // one of three stood still
      ASSERT_TRUE(record.add(link, 1000 * k));
    }
    const auto fit = record.fit();
    ASSERT_TRUE(fit);
    EXPECT_DOUBLE_EQ(fit->latency_s, 0.010) << "the shortest round trip";
    EXPECT_NEAR(fit->seconds_per_byte * 5e6, 1, 0.08) << seed;
  }
}

TEST(LinkRecord, RealMessagesRefitIt) {
  LinkRecord record;
  EXPECT_FALSE(record.add_traffic({1e6, 0}, 0)) << "the latency is not known yet";
  ASSERT_TRUE(record.add(probed(0.020, 5e6), 0));
  // Others shared the line: it carries half as much now, and as much as ever.
  EXPECT_FALSE(record.add_traffic({2.5e6, 0}, 1000));
  EXPECT_NEAR(record.fit()->seconds_per_byte * 5e6, 1, 1e-9);
  EXPECT_FALSE(record.fit()->carried);
  // Others shared it while it was probed.
  ASSERT_TRUE(record.add_traffic({9e6, 0}, 2000));
  EXPECT_NEAR(record.fit()->seconds_per_byte * 9e6, 1, 1e-9);
  EXPECT_TRUE(record.fit()->carried);
  EXPECT_FALSE(record.add_traffic({9.1e6, 0}, 2500)) << "nothing new";
  auto again = LinkRecord::from_json(nlohmann::json::parse(record.to_json().dump()));
  EXPECT_NEAR(again->fit()->seconds_per_byte * 9e6, 1, 1e-9);
  // An hour later a probe counts again.
  ASSERT_TRUE(record.add(probed(0.020, 4e6), 3600000));
  EXPECT_NEAR(record.fit()->seconds_per_byte * 4e6, 1, 0.1);
}

TEST(LinkRecord, AWayThatWasNeverProbedIsKnownByWork) {
  LinkRecord record;
  EXPECT_FALSE(record.add_traffic({0, 0.030}, 0)) << "a latency alone is no measured way";
  EXPECT_TRUE(record.empty());
  ASSERT_TRUE(record.add_traffic({6e6, 0.030}, 0));
  EXPECT_DOUBLE_EQ(record.fit()->latency_s, 0.015);
  EXPECT_NEAR(record.fit()->seconds_per_byte * 6e6, 1, 1e-9);
  EXPECT_TRUE(record.fit()->carried);
  EXPECT_LT(record.probed_ms(), 0) << "to be probed all the same";
  // Less within half an hour is a shared line; later it is what the line has become.
  EXPECT_FALSE(record.add_traffic({3e6, 0.030}, 1000));
  ASSERT_TRUE(record.add_traffic({3e6, 0.030}, 2000000));
  EXPECT_NEAR(record.fit()->seconds_per_byte * 3e6, 1, 1e-9);
  // Probes say more than work could show.
  ASSERT_TRUE(record.add(probed(0.030, 8e6), 2000001));
  EXPECT_NEAR(record.fit()->seconds_per_byte * 8e6, 1, 1e-9);
  EXPECT_FALSE(record.fit()->carried);
}

TEST(LinkRecord, WorkThatGoesOnConfirmsItsRate) {
  constexpr int64_t kMinute = 60000;
  for (const bool goes_on : {false, true}) {
    LinkRecord record;
    ASSERT_TRUE(record.add(probed(0.020, 5e6), 0));
    ASSERT_TRUE(record.add_traffic({9e6, 0}, 0));
    size_t stored = 0;
    for (int64_t now = 0; goes_on && now < 50 * kMinute; now += 1000) {
      stored += record.add_traffic({8.8e6, 0}, now);
    }
    EXPECT_LE(stored, 10u) << "what is known is not stored again and again";
    // Half an hour after it was first told: a probe among other flows.
    ASSERT_TRUE(record.add(probed(0.020, 5e6), 51 * kMinute));
    EXPECT_NEAR(record.fit()->seconds_per_byte * (goes_on ? 8.8e6 : 5e6), 1, 1e-9);
  }
}

TEST(LinkRecord, AShorterRoundTripOfWorkCounts) {
  LinkRecord record;
  ASSERT_TRUE(record.add(probed(0.020, 5e6), 0));
  EXPECT_FALSE(record.add_traffic({0, 0.030}, 1000)) << "that one waited";
  EXPECT_FALSE(record.add_traffic({0, 0.0199}, 1000)) << "no news";
  ASSERT_TRUE(record.add_traffic({0, 0.012}, 1000));
  EXPECT_DOUBLE_EQ(record.fit()->latency_s, 0.006);
  EXPECT_NEAR(record.fit()->seconds_per_byte * 5e6, 1, 1e-9);
}

TEST(LinkRecord, ImpossibleTrafficIsLeftOut) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (const bool known : {false, true}) {
    LinkRecord record;
    ASSERT_EQ(known && record.add(probed(0.020, 5e6), 0), known);
    const auto before = record.to_json();
    for (const double rate : {nan, inf, -inf, 0.0, -6e6, 1e30}) {
      for (const double trip : {nan, inf, 0.0, -0.010, 1e9}) {
        EXPECT_FALSE(record.add_traffic({rate, trip}, 1000)) << rate << " " << trip;
      }
    }
    EXPECT_EQ(record.to_json(), before);
  }
}

TEST(LinkRecord, ImpossibleNumbersAreLeftOut) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  LinkRecord record;
  for (const double trip : {nan, inf, 0.0, -1.0, 1e9}) {
    ProbedLink link;
    link.round_trip_s = trip;
    link.trains = {{nan, 1},  {1, nan},   {-5, 1},      {5, -1},
                   {1e30, 1}, {inf, inf}, {1e6, 1e-12}, {1, 1e9}};
    EXPECT_FALSE(record.add(link, 0));
  }
  EXPECT_TRUE(record.empty());
  ProbedLink many = probed(0.01, 1e6);
  many.trains.assign(100000, {1e6, 1});
  EXPECT_TRUE(record.add(many, 0));
  const auto json = record.to_json();
  EXPECT_LE(json.at("samples").size(), LinkRecord::kMaxSamples);
}

TEST(LinkRecord, SurvivesAsJsonAndAges) {
  LinkRecord record;
  ASSERT_TRUE(record.add(probed(0.004, 2e6), 500));
  auto again = LinkRecord::from_json(nlohmann::json::parse(record.to_json().dump()));
  ASSERT_TRUE(again.ok());
  EXPECT_DOUBLE_EQ(again->fit()->seconds_per_byte, record.fit()->seconds_per_byte);
  EXPECT_EQ(again->probed_ms(), 500);
  EXPECT_FALSE(LinkRecord::from_json(nlohmann::json::parse(R"({"trips":3})")).ok());
  again->forget_before(501);
  EXPECT_TRUE(again->empty());
}

std::vector<LinkPeer> peers(std::initializer_list<const char*> names) {
  std::vector<LinkPeer> result;
  for (const char* name : names) {
    result.push_back({name, std::string("at-") + name, true, false, true, ""});
  }
  return result;
}

ProbeResult answer(const ProbeTask& task) {
  ProbeResult result;
  result.task = task.id;
  for (const std::string& target : task.targets) {
    ProbedLink link = probed(0.02, 5e6);
    link.target = target;
    result.links.push_back(link);
  }
  return result;
}

TEST(LinkBook, OnlyTheAnswerOfWhoWasAskedCounts) {
  LinkBook book;
  book.set_peers(peers({"a", "b", "c"}));
  const auto tasks = book.next(0);
  ASSERT_EQ(tasks.size(), 1u) << "a peer takes part in one probe at a time";
  const ProbeTask& task = tasks[0];
  EXPECT_TRUE(book.add("c", answer(task), 10).empty()) << "another peer";
  ProbeResult invented = answer(task);
  invented.task += 7;
  EXPECT_TRUE(book.add(task.prober, invented, 10).empty()) << "a task nobody gave";
  ProbeResult other = answer(task);
  other.links[0].target = "c";
  EXPECT_TRUE(book.add(task.prober, other, 10).empty()) << "a target nobody named";
  EXPECT_TRUE(book.add(task.prober, answer(task), 10).empty()) << "the task ended with that";
  EXPECT_EQ(book.find({task.prober, task.targets[0]}), nullptr);
}

TEST(LinkBook, FewPeersThatHaveNotMetAreMeasuredOneByOne) {
  LinkBook book;
  book.set_peers(peers({"a", "b", "c", "d"}));
  int64_t now = 0;
  for (int probe = 0; probe < 12; ++probe, now += 2000) {
    const auto tasks = book.next(now);
    ASSERT_EQ(tasks.size(), 1u) << "two might share a line that nobody knows of yet";
    EXPECT_TRUE(book.next(now + 1000).empty());
    EXPECT_EQ(book.add(tasks[0].prober, answer(tasks[0]), now + 1500).size(), 1u);
  }
  for (const char* from : {"a", "b", "c", "d"}) {
    for (const char* to : {"a", "b", "c", "d"}) {
      EXPECT_EQ(book.find({from, to}) == nullptr, std::string(from) == to) << from << to;
    }
  }
}

TEST(LinkBook, WorkTellsOfWaysBetweenPeersThatAreHere) {
  LinkOptions silent;
  silent.max_running = 0;
  LinkBook book(silent);
  book.set_peers(peers({"a", "b", "c"}));
  EXPECT_TRUE(book.next(0).empty()) << "nobody is asked";
  EXPECT_FALSE(book.awaited(peers({"a", "b"})));
  EXPECT_FALSE(book.add_traffic({"a", "a"}, {5e6, 0.02}, 0));
  EXPECT_FALSE(book.add_traffic({"a", "nobody"}, {5e6, 0.02}, 0));
  EXPECT_FALSE(book.add_traffic({"a", "b"}, {std::nan(""), 0.02}, 0));
  EXPECT_EQ(book.directions(), 0u);
  ASSERT_TRUE(book.add_traffic({"a", "b"}, {5e6, 0.02}, 0));
  const LinkEstimate link = book.view({"a", "b"}).links.at(0);
  EXPECT_TRUE(link.measured && link.carried);
  EXPECT_NEAR(link.bandwidth_mbit_s, 40, 1e-6);
  LinkBook again(silent);
  again.set_peers(peers({"a", "b"}));
  again.restore({"a", "b"}, book.row({"a", "b"}));
  EXPECT_TRUE(again.view({"a", "b"}).links.at(0).carried);
}

TEST(LinkBook, FailuresAreTriedAgainLaterAndFromTheOtherEnd) {
  LinkBook book;
  book.set_peers(peers({"a", "b"}));
  ProbeTask task = book.next(0).at(0);
  ProbeResult nobody;
  nobody.task = task.id;
  nobody.outcome = ProbeResult::Outcome::kUnreachable;
  book.add(task.prober, nobody, 100);
  const ProbeTask reverse = book.next(1000).at(0);
  EXPECT_EQ(reverse.prober, task.targets[0]) << "the other direction is not concerned";
  book.add(reverse.prober, answer(reverse), 1100);
  EXPECT_TRUE(book.next(20000).empty()) << "too early";
  const ProbeTask turned = book.next(61000).at(0);
  EXPECT_EQ(turned.prober, task.targets[0]);
  EXPECT_TRUE(turned.receive) << "the same direction, dialled from the other end";
  book.add(turned.prober, answer(turned), 61500);
  EXPECT_NE(book.find({task.prober, task.targets[0]}), nullptr);
}

TEST(LinkBook, SilenceEndsATask) {
  LinkOptions options;
  LinkBook book(options);
  book.set_peers(peers({"a", "b"}));
  const ProbeTask task = book.next(0).at(0);
  EXPECT_TRUE(book.next(options.task_ms - 1).empty());
  ASSERT_EQ(book.next(options.task_ms + 1000).size(), 1u);
  EXPECT_TRUE(book.add(task.prober, answer(task), options.task_ms + 1500).empty()) << "too late";
}

TEST(LinkBook, WhatAPlanDependsOnComesFirst) {
  SyntheticNetwork network(5);
  for (int i = 0; i < 30; ++i) {
    network.add_site({.x_ms = double(i), .height_ms = 3, .up_mbit_s = 50, .down_mbit_s = 100}, 1);
  }
  LinkBook book;
  int64_t now = 0;
  network.measure(book, now);
  const LinkKey way{network.peers()[20].id, network.peers()[11].id};
  ASSERT_EQ(book.find(way), nullptr) << "inferred so far";
  book.depend_on({way});
  const auto tasks = book.next(now);
  ASSERT_FALSE(tasks.empty());
  EXPECT_EQ(tasks[0].prober, way.first);
  EXPECT_EQ(tasks[0].targets, std::vector<std::string>{way.second});
}

TEST(LinkBook, OldLinksAreMeasuredAgainAndForgottenIfTheyCannotBe) {
  LinkBook book;
  auto both = peers({"a", "b"});
  book.set_peers(both);
  int64_t now = 0;
  for (int i = 0; i < 2; ++i, now += 1000) {
    const ProbeTask task = book.next(now).at(0);
    book.add(task.prober, answer(task), now + 300);
  }
  EXPECT_TRUE(book.next(now).empty());
  EXPECT_EQ(book.next(book.options().refresh_ms + 2000).size(), 1u);
  both[0].idle = both[1].idle = false;
  book.set_peers(both);
  EXPECT_EQ(book.view({"a", "b"}).links.size(), 2u);
  book.next(2 * book.options().max_age_ms);
  EXPECT_TRUE(book.view({"a", "b"}).links.empty());
}

TEST(LinkBook, RowsSurviveARestart) {
  SyntheticNetwork network(6);
  for (int i = 0; i < 5; ++i) network.add_site({.x_ms = 9.0 * i, .up_mbit_s = 20}, 2);
  LinkBook book, again;
  int64_t now = 0;
  network.measure(book, now);
  again.set_peers(network.peers());
  std::vector<std::string> ids;
  for (const auto& a : network.peers()) {
    ids.push_back(a.id);
    for (const auto& b : network.peers()) {
      const LinkKey way{a.id, b.id};
      if (book.find(way) != nullptr) again.restore(way, book.row(way));
    }
  }
  size_t tasks = 0;
  for (const ProbeTask& task : again.next(now)) tasks += task.targets.size() == 1;
  EXPECT_LE(tasks, 2u) << "landmarks may be others now; nothing else is measured again";
  EXPECT_GE(again.view(ids).links.size(), 80u);
  again.restore({"a", "b"}, nlohmann::json("nonsense"));
}

// A peer that works is in no probe; one that shares its line is, a hundredth of the time.
TEST(LinkBook, ProbesDisturbAWorkingPeerAtMostTheStatedShare) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SyntheticNetwork network(seed);
    network.add_site({.height_ms = 4, .up_mbit_s = 20, .down_mbit_s = 100}, 4, true);
    for (int i = 1; i < 8; ++i) {
      network.add_site({.x_ms = 7.0 * i, .height_ms = 4, .up_mbit_s = 50, .down_mbit_s = 200}, 1);
    }
    network.peers()[0].idle = false;
    network.peers()[0].busy = true;
    LinkOptions options;
    options.refresh_ms = 60000;  // as eager as it gets
    LinkBook book(options);
    Rng rng(seed);
    int64_t disturbed_ms = 0, now = 0;
    size_t probes = 0;
    constexpr int64_t kHours = 4 * 3600000;
    while (now < kHours) {
      book.set_peers(network.peers());
      for (const ProbeTask& task : book.next(now)) {
        EXPECT_NE(task.prober, network.peers()[0].id);
        const int64_t took = 50 + static_cast<int64_t>(rng.below(900));
        bool shares = network.site_of(task.prober) == 0;
        for (const std::string& target : task.targets) {
          EXPECT_NE(target, network.peers()[0].id);
          shares = shares || network.site_of(target) == 0;
        }
        if (shares) {
          EXPECT_LE(task.max_bytes, options.busy_max_bytes);
          disturbed_ms += took;
          ++probes;
        }
        book.add(task.prober, network.answer(task), now + took);
      }
      now += 1000;
    }
    EXPECT_GT(probes, 20u);
    EXPECT_LE(double(disturbed_ms), 0.0101 * double(now) + 1000) << seed;
  }
}

// A job waits for whichever of its lines is disturbed: what all of them together are, is the share.
TEST(LinkBook, ProbesDisturbTheLinesOfAJobOneAtATimeAndAtMostTheStatedShare) {
  SyntheticNetwork network(3);
  for (int i = 0; i < 6; ++i) network.add_site({.x_ms = 7.0 * i, .up_mbit_s = 20}, 2, true);
  for (size_t i = 0; i < 12; i += 2) {
    LinkPeer& worker = network.peers()[i];
    worker.idle = false;
    worker.busy = true;
    worker.job = i < 8 ? "large" : "small";
  }
  LinkOptions options;
  options.refresh_ms = 60000;  // as eager as it gets
  LinkBook book(options);
  std::map<std::string, int64_t> disturbed_ms;
  std::map<std::string, int64_t> free_ms;
  int64_t now = 0;
  for (; now < 4 * 3600000; now += 1000) {
    book.set_peers(network.peers());
    for (const ProbeTask& task : book.next(now)) {
      std::set<std::string> jobs;
      for (const LinkPeer& peer : network.peers()) {
        const size_t site = network.site_of(peer.id);
        const bool there = site == network.site_of(task.prober) ||
                           std::any_of(task.targets.begin(), task.targets.end(),
                                       [&](const auto& id) { return network.site_of(id) == site; });
        if (there && peer.busy) jobs.insert(peer.job);
      }
      for (const std::string& job : jobs) {
        EXPECT_GE(now, free_ms[job]) << "two lines of " << job << " at once";
        disturbed_ms[job] += 700;
        free_ms[job] = now + 700;
      }
      book.add(task.prober, network.answer(task), now + 700);
    }
  }
  for (const char* job : {"large", "small"}) {
    EXPECT_GT(disturbed_ms[job], 0.003 * double(now)) << job << " is in nobody's way";
    EXPECT_LE(disturbed_ms[job], 0.0101 * double(now) + 1000) << job;
  }
}

}  // namespace
}  // namespace weft::broker
