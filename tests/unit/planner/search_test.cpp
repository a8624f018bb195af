#include "broker/planner/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <set>

#include "broker/planner/cluster.h"
#include "broker/planner/local_search.h"
#include "broker/planner/part.h"
#include "broker/planner/split.h"
#include "tests/unit/planner/problems.h"

namespace weft::broker {
namespace {

using testing::Exhaustive;
using testing::ProblemShape;
using testing::random_problem;

void expect_legal(const Problem& problem, const Scored& scored) {
  const Layout& layout = scored.layout;
  ASSERT_EQ(layout.peers.size(), layout.ends.size());
  int32_t begin = 0;
  std::set<int32_t> used;
  for (size_t k = 0; k < layout.ends.size(); ++k) {
    EXPECT_GT(layout.ends[k], begin);
    EXPECT_TRUE(used.insert(layout.peers[k]).second);
    begin = layout.ends[k];
  }
  EXPECT_EQ(begin, problem.chain.units);
  EXPECT_GE(scored.gap, 1);
  EXPECT_EQ(gap_within_memory(problem, layout, scored.gap), scored.gap) << "over memory";
}

void expect_within_three_percent(bool compress, bool checkpoints = false) {
  for (const bool tight : {false, true}) {
    double sum = 0, worst = 0;
    int counted = 0;
    for (uint64_t seed = 1; seed <= 24; ++seed) {
      ProblemShape shape;
      shape.peers = 3 + static_cast<int32_t>(seed % 2);
      shape.units = 6;
      shape.micro_batches = seed % 3 == 0 ? 32 : 8;
      shape.tight_memory = tight;
      shape.access = seed % 4 == 0;
      shape.compress = compress;
      shape.checkpoints = checkpoints;
      const Problem problem = random_problem(seed, shape);
      const Scored best = Exhaustive(problem).best();
      const Found found = search(problem);
      if (!std::isfinite(best.step_s)) {
        EXPECT_TRUE(found.layouts.empty());
        continue;
      }
      ASSERT_FALSE(found.layouts.empty()) << "seed " << seed << ", something fits";
      const double ratio = found.layouts.front().step_s / best.step_s;
      EXPECT_GE(ratio, 1 - 1e-9);
      sum += ratio;
      worst = std::max(worst, ratio);
      ++counted;
    }
    ASSERT_GT(counted, 12);
    ::testing::Test::RecordProperty(tight ? "tight" : "ample", std::to_string(sum / counted));
    EXPECT_LT(sum / counted, 1.03) << "worst " << worst;
    EXPECT_LT(worst, 1.25);
  }
}

TEST(Search, IsWithinThreePercentOfEverythingOnAverage) {
  expect_within_three_percent(false);
}

TEST(Search, IsWithinThreePercentWhereMessagesAreCompressed) {
  expect_within_three_percent(true);
}

TEST(Search, IsWithinThreePercentWhereCheckpointsAreStored) {
  expect_within_three_percent(false, true);
}

// Weights that lie evenly are stored in less than half a step; where links set the step, the best
// step has them on few peers.
TEST(Search, SpreadsWeightsWhereStoringThemWouldHoldStepsBack) {
  ProblemShape shape;
  shape.peers = 60;
  shape.units = 120;
  double sum = 0;
  constexpr int kSeeds = 12;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Problem problem = random_problem(seed, shape);
    problem.stages = 50;
    const Found free = search(problem);
    ASSERT_FALSE(free.layouts.empty());
    const Scored& quickest = free.layouts.front();
    const double even = problem.chain.fixed_bytes[problem.chain.at(0, shape.units)] / 50;
    problem.chain.shard_bytes = problem.chain.fixed_bytes;
    problem.store_s.assign(problem.peers(), 0.4 * quickest.step_s / even / shape.micro_batches);
    const double held = storing_seconds(problem, quickest.layout);
    ASSERT_GT(held, 1.2 * quickest.step_s) << "checkpoints must matter";
    const Found spread = search(problem);
    ASSERT_FALSE(spread.layouts.empty());
    EXPECT_LE(spread.layouts.front().step_s, 1.1 * held) << seed;
    sum += spread.layouts.front().step_s / held;
  }
  EXPECT_LT(sum / kSeeds, 0.85);
}

TEST(Search, FindsExactlyTheStagesAskedFor) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    ProblemShape shape;
    shape.units = 6;
    shape.tight_memory = seed % 2 == 0;
    shape.compress = seed % 3 == 0;
    Problem problem = random_problem(seed, shape);
    problem.stages = 1 + static_cast<int32_t>(seed % 4);
    const Scored best = Exhaustive(problem).best();
    const Found found = search(problem);
    EXPECT_EQ(found.layouts.empty(), !std::isfinite(best.step_s));
    for (const Scored& scored : found.layouts) {
      EXPECT_EQ(static_cast<int32_t>(scored.layout.ends.size()), problem.stages);
      expect_legal(problem, scored);
    }
  }
}

// What holds of a part holds of the whole.
RC_GTEST_PROP(SearchProperty, PartsAreScoredAsTheWholeIs, ()) {
  ProblemShape shape;
  shape.peers = *rc::gen::inRange(2, 12);
  shape.units = *rc::gen::inRange(3, 40);
  shape.micro_batches = *rc::gen::element(1, 4, 16);
  shape.tight_memory = *rc::gen::arbitrary<bool>();
  shape.access = *rc::gen::arbitrary<bool>();
  shape.compress = *rc::gen::arbitrary<bool>();
  shape.checkpoints = *rc::gen::arbitrary<bool>();
  Problem problem = random_problem(*rc::gen::arbitrary<uint64_t>(), shape);
  problem.chain.ties.push_back({0, shape.units - 1, 1e5});
  std::vector<int32_t> peers(problem.peers());
  std::iota(peers.begin(), peers.end(), 0);
  Rng rng(*rc::gen::arbitrary<uint64_t>());
  rng.shuffle(peers);
  peers.resize(1 + rng.below(peers.size()));
  const std::vector<int32_t> cuts = thin_cuts(problem, 2 + static_cast<int32_t>(rng.below(40)));
  RC_ASSERT(cuts.front() == 0 && cuts.back() == shape.units);
  RC_ASSERT(std::is_sorted(cuts.begin(), cuts.end()));
  RC_ASSERT(std::adjacent_find(cuts.begin(), cuts.end()) == cuts.end());
  const Problem part = among_cuts(among_peers(problem, peers), cuts);
  Layout layout;
  for (size_t cut = 1; cut < cuts.size() && layout.peers.size() < peers.size(); ++cut) {
    if (rng.below(2) == 0) continue;
    layout.peers.push_back(static_cast<int32_t>(layout.peers.size()));
    layout.ends.push_back(static_cast<int32_t>(cut));
  }
  if (layout.peers.empty()) {
    layout.peers = {0};
    layout.ends = {0};
  }
  layout.ends.back() = part.chain.units;
  Layout whole = layout;
  for (int32_t& peer : whole.peers) peer = peers[static_cast<size_t>(peer)];
  for (int32_t& end : whole.ends) end = cuts[static_cast<size_t>(end)];
  const Scored a = score_layout(part, layout), b = score_layout(problem, whole);
  RC_ASSERT(a.step_s == b.step_s);
  RC_ASSERT(a.gap == b.gap);
  RC_ASSERT(estimate_layout(part, layout) == estimate_layout(problem, whole));
}

TEST(LocalSearch, WandersNoFurtherThanItSaysAndAlwaysTheSameWay) {
  ProblemShape shape;
  shape.peers = 8;
  shape.units = 40;
  const Problem problem = random_problem(5, shape);
  const Layout start{{0, 1, 2}, {10, 20, 40}};
  double before = estimate_layout(problem, start);
  for (const size_t trials : {1, 50, 2000, 20000}) {
    const Layout found = wander(problem, start, trials, 7);
    EXPECT_EQ(found, wander(problem, start, trials, 7));
    const double step_s = estimate_layout(problem, found);
    EXPECT_LE(step_s, before) << "more trials begin as fewer do";
    before = step_s;
  }
  EXPECT_LT(before, 0.999 * estimate_layout(problem, improve(problem, start, 20000)));
}

RC_GTEST_PROP(SearchProperty, IsNeverWorseThanTheBestPeerOrSiteAndNeverOverMemory, ()) {
  ProblemShape shape;
  shape.peers = *rc::gen::inRange(1, 30);
  shape.units = *rc::gen::inRange(1, 30);
  shape.micro_batches = *rc::gen::element(1, 4, 16, 64);
  shape.tight_memory = *rc::gen::arbitrary<bool>();
  shape.access = *rc::gen::arbitrary<bool>();
  shape.compress = *rc::gen::arbitrary<bool>();
  Problem problem = random_problem(*rc::gen::arbitrary<uint64_t>(), shape);
  problem.schedule.kind =
      *rc::gen::element(job::PipelineSchedule::kGPipe, job::PipelineSchedule::k1F1B);
  SearchOptions quick;
  quick.operations = 3e6;
  const Found found = search(problem, quick);
  for (const Scored& scored : found.layouts) expect_legal(problem, scored);
  for (int32_t peer = 0; peer < shape.peers; ++peer) {
    const Scored alone = score_layout(problem, Layout{{peer}, {shape.units}});
    if (!std::isfinite(alone.step_s)) continue;
    RC_ASSERT(!found.layouts.empty());
    RC_ASSERT(found.layouts.front().step_s <= alone.step_s * (1 + 1e-12));
  }
  if (found.single_peer) {
    RC_ASSERT(found.single_site.has_value());
    RC_ASSERT(found.single_site->step_s <= found.single_peer->step_s * (1 + 1e-12));
  }
  if (found.single_site) {
    RC_ASSERT(found.layouts.front().step_s <= found.single_site->step_s * (1 + 1e-12));
  }
  RC_ASSERT(problem.compressor.status().ok());
  const Found again = search(problem, quick);
  RC_ASSERT(again.layouts.size() == found.layouts.size());
  for (size_t i = 0; i < found.layouts.size(); ++i) {
    RC_ASSERT(again.layouts[i].layout == found.layouts[i].layout);
    RC_ASSERT(again.layouts[i].step_s == found.layouts[i].step_s);
  }
}

// The bottleneck of the split is the least there is for the order, whatever is skipped.
TEST(Split, FindsTheLeastBottleneckOfAnOrder) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    ProblemShape shape;
    shape.units = 5 + static_cast<int32_t>(seed % 3);
    const Problem problem = random_problem(seed, shape);
    const std::vector<int32_t> order = {0, 1, 2, 3};
    const auto bottleneck = [&](const Layout& layout) {
      double worst = 0;
      int32_t begin = 0;
      for (size_t k = 0; k < layout.ends.size(); ++k) {
        worst = std::max(worst, problem.work(layout.peers[k], begin, layout.ends[k]));
        begin = layout.ends[k];
        if (k + 1 == layout.ends.size()) break;
        const auto a = static_cast<size_t>(layout.peers[k]);
        const auto b = static_cast<size_t>(layout.peers[k + 1]);
        worst = std::max(worst, problem.chain.forward_bytes[static_cast<size_t>(begin)] *
                                    std::max(problem.network.seconds_per_byte(a, b),
                                             problem.network.seconds_per_byte(b, a)));
      }
      return worst;
    };
    double least = std::numeric_limits<double>::infinity();
    for (uint32_t subset = 1; subset < 16; ++subset) {
      Layout layout;
      for (int32_t peer = 0; peer < 4; ++peer) {
        if (subset >> peer & 1) layout.peers.push_back(peer);
      }
      layout.ends.assign(layout.peers.size(), 0);
      const std::function<void(size_t, int32_t)> cut = [&](size_t k, int32_t begin) {
        if (k + 1 == layout.ends.size()) {
          layout.ends[k] = shape.units;
          least = std::min(least, bottleneck(layout));
          return;
        }
        for (int32_t end = begin + 1; end < shape.units; ++end) {
          layout.ends[k] = end;
          cut(k + 1, end);
        }
      };
      cut(0, 0);
    }
    const auto layouts = split_order(problem, CutCosts(problem), order, {});
    ASSERT_FALSE(layouts.empty());
    EXPECT_LE(bottleneck(layouts.front()), least * 1.0011) << "seed " << seed;
  }
}

TEST(Split, ManyPeersGetTheLeastBottleneckToo) {
  ProblemShape shape;
  shape.peers = 90;
  shape.units = 40;
  const Problem problem = random_problem(7, shape);
  std::vector<int32_t> order(90), few(40);
  std::iota(order.begin(), order.end(), 0);
  std::iota(few.begin(), few.end(), 0);
  const auto all = split_order(problem, CutCosts(problem), order, {});
  const auto some = split_order(problem, CutCosts(problem), few, {});
  ASSERT_FALSE(all.empty());
  ASSERT_FALSE(some.empty());
  for (const Layout& layout : all) expect_legal(problem, score_layout(problem, layout));
  EXPECT_LE(slowest_stage(problem, all.front()), slowest_stage(problem, some.front()) * 1.01);
}

TEST(LocalSearch, OnlyEverImproves) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    ProblemShape shape;
    shape.peers = 8;
    shape.units = 20;
    const Problem problem = random_problem(seed, shape);
    const Layout start{{3, 1, 6}, {4, 11, 20}};
    const Layout better = improve(problem, start, 4000);
    EXPECT_LE(estimate_layout(problem, better), estimate_layout(problem, start));
    EXPECT_EQ(improve(problem, start, 0), start);
  }
}

}  // namespace
}  // namespace weft::broker
