// The book itself: who is probed when, what is believed.
#include "broker/links/link_book.h"

#include <gtest/gtest.h>

#include <cmath>

#include "probed.h"
#include "synthetic_network.h"

namespace weft::broker {
namespace {

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
  EXPECT_TRUE(book.add_traffic({"a", "a"}, {5e6, 0.02}, 0).empty());
  EXPECT_TRUE(book.add_traffic({"a", "nobody"}, {5e6, 0.02}, 0).empty());
  EXPECT_TRUE(book.add_traffic({"a", "b"}, {std::nan(""), 0.02}, 0).empty());
  EXPECT_EQ(book.directions(), 0u);
  ASSERT_EQ(book.add_traffic({"a", "b"}, {5e6, 0.02}, 0).size(), 1u);
  const LinkEstimate link = book.view({"a", "b"}).links.at(0);
  EXPECT_TRUE(link.measured && link.carried);
  EXPECT_NEAR(link.bandwidth_mbit_s, 40, 1e-6);
  LinkBook again(silent);
  again.set_peers(peers({"a", "b"}));
  again.restore({"a", "b"}, book.row({"a", "b"}));
  EXPECT_TRUE(again.view({"a", "b"}).links.at(0).carried);
}

// Ways of work between two sites, each carrying so much, told of every ten seconds for five
// minutes.
void work_between(LinkBook& book, const std::vector<LinkKey>& ways, double bytes_s, int64_t& now) {
  for (int i = 0; i < 30; ++i, now += 10000) {
    for (const LinkKey& way : ways) book.add_traffic(way, {bytes_s, 0.030}, now);
  }
}

TEST(LinkBook, WhatWorkSharesIsNoShortfall) {
  LinkOptions silent;
  silent.max_running = 0;
  const std::vector<LinkKey> local = {{"a0", "a1"}, {"a1", "a0"}, {"b0", "b1"}, {"b1", "b0"}};
  const LinkKey one{"a0", "b0"}, two{"a1", "b1"};
  for (const bool shares : {false, true}) {
    LinkBook book(silent);
    book.set_peers(peers({"a0", "a1", "b0", "b1"}));
    int64_t now = 0;
    for (const LinkKey& way : local) book.add_traffic(way, {1e8, 0.0002}, now);
    work_between(book, {one, two}, 6e6, now);
    // Both at once have half each: of one line of the site. One alone: its way has become slower.
    if (shares) {
      work_between(book, {one, two}, 3.1e6, now);
    } else {
      now += 120000;  // the other ended
      work_between(book, {one}, 3.1e6, now);
    }
    const double said = 1 / book.find(one)->fit->seconds_per_byte;
    EXPECT_NEAR(said, shares ? 6e6 : 3.1e6, 1) << shares;
    // With so little each there is less for both, but as much as they have together.
    work_between(book, {one, two}, 1e6, now);
    EXPECT_NEAR(1 / book.find(one)->fit->seconds_per_byte, 2e6, 1) << shares;
  }
}

TEST(LinkBook, AWayThatFellBehindIsProbedAgainAsSoonAsItsPeersAreIdle) {
  LinkBook book;
  auto both = peers({"a", "b"});
  book.set_peers(both);
  int64_t now = 1000 * 3600000LL;
  for (int i = 0; i < 2; ++i, now += 1000) {
    const ProbeTask task = book.next(now).at(0);
    book.add(task.prober, answer(task), now + 300);
  }
  book.depend_on({{"a", "b"}, {"b", "a"}});
  const double before = 1 / book.find({"a", "b"})->fit->seconds_per_byte;
  both[0].idle = both[1].idle = false;
  book.set_peers(both);
  const double trip_s = 2 * book.find({"b", "a"})->fit->latency_s;
  for (int i = 0; i < 30; ++i, now += 10000) {
    book.add_traffic({"a", "b"}, {before / 3, trip_s + 0.100}, now);
  }
  EXPECT_NEAR(1 / book.find({"a", "b"})->fit->seconds_per_byte, before / 3, 1);
  // A round trip is that of both directions.
  EXPECT_NEAR(book.find({"b", "a"})->fit->latency_s, trip_s / 2 + 0.050, 1e-9);
  EXPECT_NEAR(book.view({"a", "b"}).links.at(0).latency_ms, 500 * trip_s + 50, 1e-6);
  EXPECT_TRUE(book.next(now).empty());
  both[0].idle = both[1].idle = true;
  book.set_peers(both);
  now += 1000;
  const auto tasks = book.next(now);
  ASSERT_EQ(tasks.size(), 1u);
  book.add(tasks[0].prober, answer(tasks[0]), now + 300);
  EXPECT_NEAR(1 / book.find({"a", "b"})->fit->seconds_per_byte, before, 1e-3 * before);
}

TEST(LinkBook, ALineCarriesNoMoreThanAllWaysOverItDo) {
  SyntheticNetwork network(8, 0);
  network.add_site({.x_ms = 0, .height_ms = 2, .up_mbit_s = 40, .down_mbit_s = 200}, 2);
  for (int i = 1; i < 6; ++i) network.add_site({.x_ms = 9.0 * i, .up_mbit_s = 500}, 1);
  LinkBook book;
  int64_t now = 0;
  network.measure(book, now);
  std::vector<std::string> home, others;
  for (const LinkPeer& peer : network.peers()) {
    (network.site_of(peer.id) == 0 ? home : others).push_back(peer.id);
  }
  ASSERT_TRUE(book.line(home[0]));
  ASSERT_NEAR(book.line(home[0])->shared_up_mbit_s, 40, 4);
  std::vector<LinkKey> ways;
  for (const std::string& from : home) {
    for (const std::string& to : others) ways.emplace_back(from, to);
  }
  // All of them at a tenth of what the line is taken for: 4 Mbit/s in all.
  work_between(book, ways, 4e6 / 8 / double(ways.size()), now);
  EXPECT_NEAR(book.line(home[0])->shared_up_mbit_s, 4, 0.5);
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

// Round trips alone, as over a way so long that no train ends in time.
TEST(LinkBook, ALineThatCannotBeTestedIsTriedMoreAndMoreSeldom) {
  SyntheticNetwork network(3);
  for (int i = 0; i < 4; ++i) {
    network.add_site({.x_ms = 20.0 * i, .height_ms = 3, .up_mbit_s = 50, .down_mbit_s = 100}, 1);
  }
  LinkBook book;
  size_t tests = 0;
  for (int64_t now = 0; now < 600000; now += 1000) {
    book.set_peers(network.peers());
    for (const ProbeTask& task : book.next(now)) {
      ProbeResult result = network.answer(task);
      if (task.targets.size() == 2) {
        ++tests;
        for (ProbedLink& link : result.links) link.alone_bytes_s = link.together_bytes_s = 0;
      }
      EXPECT_FALSE(book.add(task.prober, result, now + 500).empty()) << "it is believed";
    }
  }
  // Eight lines, each after 0, 1, 3 and 7 minutes.
  EXPECT_GE(tests, 8u);
  EXPECT_LE(tests, 8u * 4);
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
  LinkKey way;
  for (const LinkPeer& to : network.peers()) {
    way = {network.peers()[20].id, to.id};
    if (way.first != way.second && book.find(way) == nullptr) break;
  }
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
