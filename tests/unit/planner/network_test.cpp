#include "broker/planner/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "broker/planner/cluster.h"

namespace weft::broker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Network, FillsHolesAndSaysSo) {
  const std::vector<std::string> ids = {"a", "b", "c", "d"};
  const Network network(ids, {{"a", "b", 10, 100}, {"b", "a", 20, 50}, {"b", "c", 5, 8}}, {});
  EXPECT_DOUBLE_EQ(network.latency_s(0, 1), 0.010);
  EXPECT_DOUBLE_EQ(network.seconds_per_byte(0, 1), 8 / 100e6);
  EXPECT_DOUBLE_EQ(network.latency_s(1, 0), 0.020);
  EXPECT_DOUBLE_EQ(network.seconds_per_byte(2, 1), 8 / 8e6) << "as the way there";
  EXPECT_TRUE(network.assumed(2, 1));
  EXPECT_FALSE(network.assumed(1, 2));
  EXPECT_DOUBLE_EQ(network.seconds_per_byte(0, 3), 8 / 8e6) << "as the slowest";
  EXPECT_DOUBLE_EQ(network.latency_s(0, 3), 0.020) << "as the farthest";
  EXPECT_TRUE(network.known(2));
  EXPECT_FALSE(network.known(3));
  ASSERT_EQ(network.notes().size(), 1u);
  EXPECT_THAT(network.notes()[0], HasSubstr("4 of 6 pairs"));
}

TEST(Network, ALinkMayNameGroupsOfPeersAndTheLastOneCounts) {
  const std::vector<std::string> ids = {"a", "b", "c", "d"};
  const Network network(
      ids,
      {{"near", "near", 1, 1000},
       {"near", "far", 10, 100},
       {"far", "near", 20, 50},
       {"a", "c", 5, 200},
       {"nobody", "near", 1, 1}},
      {{"near", {"a", "b", "z"}, 0, 0}, {"far", {"c"}, 80, 0}, {"none", {"z"}, 1, 1}});
  EXPECT_DOUBLE_EQ(network.latency_s(0, 1), 0.001);
  EXPECT_DOUBLE_EQ(network.latency_s(0, 2), 0.005) << "told of the two alone";
  EXPECT_DOUBLE_EQ(network.latency_s(1, 2), 0.010);
  EXPECT_DOUBLE_EQ(network.pair_seconds_per_byte(2, 1), 8 / 50e6);
  EXPECT_DOUBLE_EQ(network.seconds_per_byte(2, 1), 8 / 50e6);
  EXPECT_FALSE(network.known(3));
  EXPECT_EQ(network.lines(), 4u) << "a group without peers has no lines";
}

TEST(Network, SaysWhereLinesAreAssumed) {
  const std::vector<std::string> ids = {"a", "b", "c"};
  const std::vector<PlannerLink> links = {{"a", "b", 1, 20}, {"a", "c", 1, 20}, {"b", "c", 1, 20}};
  const auto notes_with = [&](const PlannerAccess& line) {
    return Network(ids, links, {line, {"b", {"b"}, 20, 0}}).notes();
  };
  EXPECT_THAT(notes_with({"a", {"a"}, 20, 0, true}), ElementsAre(HasSubstr("of 1 site:")));
  EXPECT_TRUE(notes_with({"a", {"a"}, 20, 0}).empty());
}

TEST(Network, LeavesOutNumbersThatMeanNothing) {
  const std::vector<std::string> ids = {"a", "b"};
  const Network network(ids, {{"a", "b", -1, 10}, {"b", "a", 1, std::nan("")}, {"a", "z", 1, 1}},
                        {});
  EXPECT_FALSE(network.measured());
  EXPECT_EQ(network.seconds_per_byte(0, 1), 0);
  ASSERT_EQ(network.notes().size(), 1u);
  EXPECT_THAT(network.notes()[0], HasSubstr("2 links with a negative or missing number"));
}

TEST(Network, NestedLinesCountOnlyTowardsOutside) {
  Network network(4);
  network.add_access("host", {0, 1}, 3, 4);
  network.add_access("site", {0, 1, 2}, 5, 2);
  const auto lines = [&](size_t from, size_t to) {
    std::vector<int32_t> found;
    network.lines_of(from, to, found);
    std::vector<std::string> names;
    for (const int32_t line : found) names.push_back(network.line_name(static_cast<size_t>(line)));
    return names;
  };
  EXPECT_THAT(lines(0, 1), ElementsAre());
  EXPECT_THAT(lines(0, 2), ElementsAre("the uplink of host"));
  EXPECT_THAT(lines(3, 1), ElementsAre("the downlink of host", "the downlink of site"));
  EXPECT_EQ(network.seconds_per_byte(0, 1), 0);
  EXPECT_EQ(network.seconds_per_byte(0, 3), 5);
  EXPECT_EQ(network.seconds_per_byte(3, 0), 4);
  network.set(3, 0, 0.1, 9);
  EXPECT_EQ(network.seconds_per_byte(3, 0), 9) << "the slowest of all";
}

// Six sites of eight with very different links inside, slow links between: finding 1 of methods 4,
// where modularity fails.
TEST(Sites, KeepTheirOwnScale) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    const double inside_mbit_s[] = {200000, 10000, 1000, 1000, 200, 200};
    std::vector<size_t> site(48);
    for (size_t i = 0; i < site.size(); ++i) site[i] = i % 6;
    Network network(48);
    for (size_t a = 0; a < 48; ++a) {
      for (size_t b = 0; b < 48; ++b) {
        const double mbit_s = site[a] == site[b] ? inside_mbit_s[site[a]] : 8 + 92 * rng.uniform();
        if (a != b) network.set(a, b, 0, seconds_per_byte_at(mbit_s));
      }
    }
    const auto found = sites(cluster(network, 1e6));
    ASSERT_EQ(found.size(), 6u) << "seed " << seed;
    for (const auto& members : found) {
      ASSERT_EQ(members.size(), 8u);
      for (const int32_t peer : members) {
        EXPECT_EQ(site[static_cast<size_t>(peer)], site[static_cast<size_t>(members[0])]);
      }
    }
  }
}

TEST(Sites, AreOneWhereNothingStandsApart) {
  EXPECT_EQ(sites(cluster(Network(5), 1e6)).size(), 1u);
  EXPECT_EQ(sites(cluster(Network(1), 1e6)).size(), 1u);
  EXPECT_TRUE(sites(cluster(Network(0), 1e6)).empty());
}

TEST(PathOrder, VisitsEveryPeerAndKeepsSitesTogether) {
  Network network(6);
  for (size_t a = 0; a < 6; ++a) {
    for (size_t b = 0; b < 6; ++b) {
      if (a != b) network.set(a, b, 0, seconds_per_byte_at(a % 2 == b % 2 ? 1000 : 10));
    }
  }
  auto order = path_order(cluster(network, 1e6), network, 1e6);
  ASSERT_EQ(order.size(), 6u);
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(order[i] % 2, order[0] % 2);
    EXPECT_EQ(order[i + 3] % 2, order[3] % 2);
  }
  std::sort(order.begin(), order.end());
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4, 5));
}

}  // namespace
}  // namespace weft::broker
