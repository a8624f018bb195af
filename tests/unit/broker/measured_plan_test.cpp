// Plans made from what peers measured of their links, beside plans made from the truth.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/statistics.h"
#include "broker/planner/rejudge.h"
#include "graphs.h"
#include "link_world.h"

namespace weft::broker {
namespace {

using ::testing::HasSubstr;

struct Truth {
  std::vector<PlannerPeer> peers;
  PlannerWays ways;
};

// Sites of one to three peers behind lines from home to campus, on a plane of some thousand
// kilometres; what lies between two sites limits now and then.
Truth random_world(SyntheticNetwork& network, Rng& rng) {
  Truth truth;
  const auto between = [&](double low, double high) {
    return low * std::pow(high / low, rng.uniform());
  };
  const size_t sites = 3 + rng.below(4);
  for (size_t i = 0; i < sites; ++i) {
    network.add_site({.x_ms = 20 * rng.uniform(),
                      .y_ms = 20 * rng.uniform(),
                      .height_ms = between(0.5, 6),
                      .up_mbit_s = between(8, 200),
                      .down_mbit_s = between(50, 500)},
                     1 + rng.below(3), rng.below(2) == 0);
  }
  for (size_t a = 0; a < sites; ++a) {
    for (size_t b = 0; b < sites; ++b) {
      if (a != b && rng.below(6) == 0) network.set_pair(a, b, between(5, 50));
    }
  }
  std::map<size_t, PlannerAccess> lines;
  for (const LinkPeer& a : network.peers()) {
    PlannerPeer peer;
    peer.id = a.id;
    peer.gflops = between(0.1, 2);
    truth.peers.push_back(peer);
    const size_t site = network.site_of(a.id);
    const SyntheticSite& facts = network.site(site);
    PlannerAccess& line = lines[site];
    line.name = "site-" + std::to_string(site);
    line.up_mbit_s = facts.up_mbit_s;
    line.down_mbit_s = facts.down_mbit_s;
    line.peers.push_back(a.id);
    for (const LinkPeer& b : network.peers()) {
      if (a.id == b.id) continue;
      truth.ways.links.push_back(
          {a.id, b.id, network.latency_ms(a.id, b.id), network.pair_mbit_s(a.id, b.id)});
    }
  }
  for (auto& [site, line] : lines) truth.ways.access.push_back(std::move(line));
  return truth;
}

TEST(MeasuredPlan, IsNearThePlanFromTheTruth) {
  const opdag::Graph graph = testing::chain_graph(12, 4, 512);
  Submission submission;
  submission.spec = testing::chain_spec(64);
  std::vector<double> ratios, errors;
  size_t several = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SyntheticNetwork network(seed);
    Rng rng(seed);
    const Truth truth = random_world(network, rng);
    CoreOptions options;
    options.known.peers = truth.peers;
    options.known.site_of.resize(truth.peers.size());
    LinkWorld world(network, options);
    world.run_s(240);
    const auto measured = world.core().dry_run(submission, {graph, graph});
    ASSERT_TRUE(measured.ok()) << measured.error().text();
    PlannerOptions of_truth;
    of_truth.access = truth.ways.access;
    const auto best = make_plan(graph, submission.spec, truth.peers, truth.ways.links, of_truth);
    ASSERT_TRUE(best.ok()) << best.error().text();
    const auto seconds = step_seconds_of(graph, submission.spec, {&*measured, &*best}, truth.peers,
                                         truth.ways.links, of_truth);
    ASSERT_TRUE(seconds.ok());
    several += best->stages.size() > 1;
    ratios.push_back(seconds->at(0) / seconds->at(1));
    errors.push_back(std::abs(measured->step_s / seconds->at(0) - 1));
    EXPECT_LT(ratios.back(), 1.25)
        << "seed " << seed << ": " << measured->reason << "\nbut " << best->reason;
    EXPECT_LT(errors.back(), 0.25) << "seed " << seed << ": " << measured->reason;
  }
  EXPECT_GE(several, 30u) << "where one peer is best, links do not matter";
  EXPECT_LT(median(ratios), 1.02);
  EXPECT_LT(median(errors), 0.05);
  RecordProperty("worst", std::to_string(*std::max_element(ratios.begin(), ratios.end())));
}

}  // namespace
}  // namespace weft::broker
