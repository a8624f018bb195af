// Links between peers, from the core's view: probes go out, answers come in, rows survive.
#include "broker/link_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "link_world.h"

namespace weft::broker {
namespace {

using ::testing::HasSubstr;

// A line of homes, one peer each.
void add_homes(SyntheticNetwork& network, int count) {
  for (int i = 0; i < count; ++i) network.add_site({.x_ms = 5.0 * i, .up_mbit_s = 30}, 1);
}

TEST(LinkKeeper, IdlePeersMeasureEachOther) {
  SyntheticNetwork network(1);
  for (int i = 0; i < 4; ++i) network.add_site({.x_ms = 8.0 * i, .up_mbit_s = 40}, 1);
  LinkWorld world(network);
  world.run_s(60);
  EXPECT_EQ(world.core().links().directions(), 12u);
  for (const LinkEstimate& link : world.core().links().view(world.ids()).links) {
    EXPECT_TRUE(link.measured);
    EXPECT_NEAR(link.bandwidth_mbit_s / network.mbit_s(link.from, link.to), 1, 0.2);
  }
  const std::string metrics = world.core().probe().text(world.core().state());
  EXPECT_THAT(metrics, HasSubstr("weft_links_known 12"));
  EXPECT_THAT(metrics, HasSubstr("weft_probe_results_total{outcome=\"measured\"}"));
  EXPECT_THAT(metrics, HasSubstr("weft_probes_sent_total"));
}

// Lists and plans know whoever the state does: not from the next look at the peers on.
TEST(LinkKeeper, WhoSaidHelloAMomentAgoCounts) {
  SyntheticNetwork network(1);
  network.add_site({}, 3, true);
  LinkWorld world(network);
  world.core().tick();
  EXPECT_EQ(world.core().links().view(world.ids()).links.size(), 0u);
  world.beat();
  EXPECT_EQ(world.core().links().view(world.ids()).links.size(), 6u);
}

TEST(LinkKeeper, SwitchedOffItAsksForNothing) {
  SyntheticNetwork network(1);
  network.add_site({}, 3);
  CoreOptions options;
  options.probe_links = false;
  LinkWorld world(network, options);
  world.run_s(20);
  EXPECT_EQ(world.probes(), 0u);
  EXPECT_EQ(world.core().links().directions(), 0u);
}

TEST(LinkKeeper, ARestartForgetsNothingAndAsksForLittle) {
  SyntheticNetwork network(2);
  add_homes(network, 5);
  LinkWorld world(network);
  world.run_s(120);
  const size_t known = world.core().links().directions();
  ASSERT_EQ(known, 20u);
  world.restart();
  EXPECT_EQ(world.core().links().directions(), known) << "before any peer has said a word";
  const size_t before = world.single_probes();
  world.run_s(20);
  EXPECT_EQ(world.single_probes(), before) << "lines are tested anew, pairs are not";
}

TEST(LinkKeeper, AnAnswerToTheBrokerBeforeIsNoAnswerToThisOne) {
  SyntheticNetwork network(3);
  network.add_site({}, 1);
  network.add_site({.x_ms = 9}, 1);
  LinkWorld world(network);
  world.hold_answers(true);
  world.run_s(3);
  ASSERT_EQ(world.probes(), 1u);
  world.restart();
  world.hold_answers(false);  // what is held is sent now
  EXPECT_EQ(world.core().links().directions(), 0u);
}

TEST(LinkKeeper, RowsOfRemovedPeersGoThoseOfGoneOnesStay) {
  SyntheticNetwork network(4);
  add_homes(network, 3);
  LinkWorld world(network);
  world.run_s(60);
  ASSERT_EQ(world.store().links()->size(), 6u);
  const std::string first = world.ids()[0], second = world.ids()[1];
  ASSERT_TRUE(world.core().command(RemovePeer{first}).ok());
  EXPECT_EQ(world.store().links()->size(), 2u);
  world.core().apply(PeerLeaving{second, "the day ends"});
  world.run_s(5);
  EXPECT_EQ(world.core().links().directions(), 2u);
  world.restart();
  EXPECT_EQ(world.core().links().directions(), 2u);
}

TEST(LinkKeeper, OldRowsAndThoseOfTheFutureAreNotRead) {
  SyntheticNetwork network(5);
  network.add_site({}, 1);
  network.add_site({.x_ms = 9}, 1);
  LinkWorld world(network);
  world.run_s(20);
  ASSERT_EQ(world.core().links().directions(), 2u);
  auto rows = world.store().links().value();
  const int64_t now = world.core().now_ms();
  rows[0].time_ms = now - LinkOptions{}.max_age_ms - 1;
  rows[1].time_ms = now + 60000;
  for (const LinkRow& row : rows) ASSERT_TRUE(world.store().put_link(row).ok());
  world.restart();
  EXPECT_EQ(world.core().links().directions(), 0u);
  EXPECT_EQ(world.store().links()->size(), 1u) << "the old one is gone from the store";
}

// Whatever a peer answers: neither the book nor the store changes.
TEST(LinkKeeper, HostileReportsChangeNothing) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  using Spoil = std::function<void(proto::ProbeReport&)>;
  const std::vector<std::pair<const char*, Spoil>> lies = {
      {"no number", [&](auto& r) { r.mutable_links(0)->set_round_trip_s(nan); }},
      {"endless", [&](auto& r) { r.mutable_links(0)->mutable_trains(0)->set_bytes(inf); }},
      {"negative", [&](auto& r) { r.mutable_links(0)->mutable_trains(0)->set_seconds(-1); }},
      {"huge", [&](auto& r) { r.mutable_links(0)->set_alone_bytes_s(1e300); }},
      {"another task", [&](auto& r) { r.set_task(r.task() + 1); }},
      {"no task", [&](auto& r) { r.set_task(0); }},
      {"another target", [&](auto& r) { r.mutable_links(0)->set_target("p-nobody"); }},
      {"itself", [&](auto& r) { r.mutable_links(0)->set_target(""); }},
      {"no such end", [&](auto& r) { r.set_outcome("splendid"); }},
      {"too many trains",
       [&](auto& r) {
         for (int i = 0; i < 100; ++i) *r.mutable_links(0)->add_trains() = r.links(0).trains(0);
       }},
      {"too many links",
       [&](auto& r) {
         for (int i = 0; i < 3; ++i) *r.add_links() = r.links(0);
       }},
      {"nothing", [&](auto& r) { r.clear_links(); }},
  };
  for (const auto& [what, spoil] : lies) {
    SyntheticNetwork network(6);
    network.add_site({}, 1);
    network.add_site({.x_ms = 9}, 1);
    LinkWorld world(network);
    world.spoil_answers(spoil);
    world.run_s(5);
    EXPECT_GE(world.probes(), 1u) << what;
    EXPECT_EQ(world.core().links().directions(), 0u) << what;
    EXPECT_TRUE(world.store().links()->empty()) << what;
  }
}

TEST(LinkKeeper, OnlyWhoWasAskedIsBelieved) {
  SyntheticNetwork network(7);
  for (int i = 0; i < 3; ++i) network.add_site({.x_ms = 5.0 * i}, 1);
  LinkWorld world(network);
  world.answer_as([&](const std::string& asked) {
    for (const std::string& id : world.ids()) {
      if (id != asked) return id;
    }
    return asked;
  });
  world.run_s(5);
  EXPECT_GE(world.probes(), 1u);
  EXPECT_EQ(world.core().links().directions(), 0u);
}

}  // namespace
}  // namespace weft::broker
