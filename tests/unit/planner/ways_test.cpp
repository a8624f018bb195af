// Measured and told ways together: what was told counts more, direction by direction.
#include "broker/planner/ways.h"

#include <gtest/gtest.h>

#include "broker/planner/planner.h"

namespace weft::broker {
namespace {

TEST(Ways, AToldDirectionReplacesTheMeasuredOne) {
  const PlannerWays measured{{{"a", "b", 5, 100}, {"b", "a", 6, 50}}, {}};
  const PlannerWays both = join_ways(measured, {{{"a", "b", 1, 1000}}, {}});
  const Network network({"a", "b"}, both.links, both.access);
  EXPECT_DOUBLE_EQ(network.latency_s(0, 1), 0.001);
  EXPECT_DOUBLE_EQ(network.seconds_per_byte(0, 1), 8e-9);
  EXPECT_DOUBLE_EQ(network.latency_s(1, 0), 0.006);
  EXPECT_DOUBLE_EQ(network.seconds_per_byte(1, 0), 8 / 50e6);
}

TEST(Ways, AToldLineReplacesAMeasuredOneOfOnePeerOfIt) {
  const PlannerWays measured{{}, {{"a", {"a", "b"}, 20, 200}}};
  PlannerWays told{{}, {{"home", {"b", "c"}, 10, 0}}};
  const PlannerWays both = join_ways(measured, told);
  ASSERT_EQ(both.access.size(), 2u);
  EXPECT_EQ(both.access[0].name, "home");
  EXPECT_EQ(both.access[1].up_mbit_s, 0);
  EXPECT_EQ(both.access[1].down_mbit_s, 200) << "nobody said anything of that direction";
}

TEST(Ways, AMeasuredLineCarriesWhatAToldLinkOverItDoes) {
  const PlannerWays measured{{}, {{"a", {"a", "b"}, 20, 200}, {"c", {"c"}, 0, 30}}};
  const PlannerWays told{{{"a", "c", 1, 90}, {"a", "b", 1, 5000}}, {}};
  const PlannerWays both = join_ways(measured, told);
  EXPECT_EQ(both.access[0].up_mbit_s, 90);
  EXPECT_EQ(both.access[0].down_mbit_s, 200);
  EXPECT_EQ(both.access[1].up_mbit_s, 0) << "no line, no limit";
  EXPECT_EQ(both.access[1].down_mbit_s, 90);
}

TEST(Ways, WhatIsOnlyAssumedGivesWayToAToldLink) {
  const PlannerWays measured{{},
                             {{"a", {"a", "b"}, 20, 200, true, true}, {"c", {"c"}, 9, 30, true}}};
  const PlannerWays both = join_ways(measured, {{{"a", "c", 1, 15}}, {}});
  EXPECT_EQ(both.access[0].up_mbit_s, 0);
  EXPECT_FALSE(both.access[0].up_assumed);
  EXPECT_EQ(both.access[0].down_mbit_s, 200) << "nobody said anything of that direction";
  EXPECT_TRUE(both.access[0].down_assumed);
  EXPECT_EQ(both.access[1].down_mbit_s, 30) << "seen, not assumed";
}

TEST(Ways, AssumedLinesCanBeLeftOut) {
  const MeasuredWays measured = [](const std::vector<std::string>&) {
    return PlannerWays{{}, {{"a", {"a"}, 20, 200, true, false}}};
  };
  const PlannerWays ways = without_assumed(measured)({"a"});
  EXPECT_EQ(ways.access[0].up_mbit_s, 0);
  EXPECT_EQ(ways.access[0].down_mbit_s, 200);
  EXPECT_FALSE(without_assumed({}));
}

TEST(Ways, AToldLinkBetweenGroupsHoldsForTheirPeers) {
  const PlannerWays measured{{{"a", "b", 50, 1}}, {{"a", {"a"}, 3, 3}}};
  const PlannerWays told{{{"here", "there", 2, 40}},
                         {{"here", {"a"}, 0, 0}, {"there", {"b"}, 0, 0}}};
  const PlannerWays both = join_ways(measured, told);
  const Network network({"a", "b"}, both.links, both.access);
  EXPECT_DOUBLE_EQ(network.latency_s(0, 1), 0.002);
  EXPECT_DOUBLE_EQ(network.seconds_per_byte(0, 1), 8 / 40e6);
}

TEST(Ways, WhatWasSaidOfManyAnswersForSomeOfThem) {
  int asked = 0;
  const MeasuredWays ways = remembered([&](const std::vector<std::string>& ids) {
    ++asked;
    PlannerWays said;
    for (const std::string& a : ids) {
      for (const std::string& b : ids) {
        if (a != b) said.links.push_back({a, b, 1.0 * asked, 100});
      }
    }
    said.access = {{"home", ids, 10, 20}};
    return said;
  });
  EXPECT_EQ(ways({"a", "b", "c"}).links.size(), 6u);
  const PlannerWays some = ways({"c", "a"});
  EXPECT_EQ(asked, 1);
  ASSERT_EQ(some.links.size(), 2u);
  for (const PlannerLink& link : some.links) EXPECT_TRUE(link.from != "b" && link.to != "b");
  ASSERT_EQ(some.access.size(), 1u);
  EXPECT_EQ(some.access[0].peers, (std::vector<std::string>{"a", "c"}));
  EXPECT_EQ(some.access[0].down_mbit_s, 20);
  const PlannerWays others = ways({"a", "d"});
  EXPECT_EQ(asked, 2) << "of d nothing was said yet";
  ASSERT_EQ(others.links.size(), 2u);
  EXPECT_EQ(others.links[0].latency_ms, 2);
  EXPECT_FALSE(remembered({}));
}

}  // namespace
}  // namespace weft::broker
