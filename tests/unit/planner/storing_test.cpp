// Checkpoints in plans: workers do not run ahead of what is stored, so a plan that stores slowly is
// slow, however short its steps are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "broker/planner/planner.h"
#include "broker/planner/rejudge.h"
#include "tests/unit/broker/graphs.h"

namespace weft::broker {
namespace {

using testing::chain_graph;
using testing::chain_spec;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kMbit_s = 20;

// What a step takes where every one is stored over lines of kMbit_s: weight and two states of Adam.
double pace_s(const PlanReport& report, int64_t every) {
  double most = 0;
  for (const job::StagePlan& stage : report.plan.stages) {
    most = std::max(most, 3 * static_cast<double>(stage.parameter_bytes));
  }
  return std::max(report.prediction.step_s,
                  most * seconds_per_byte_at(kMbit_s) / static_cast<double>(every));
}

// Peers of unequal speed whose links are what limits a step.
struct ThinLinks {
  ThinLinks(uint64_t seed, size_t count) {
    Rng rng(seed);
    for (size_t i = 0; i < count; ++i) {
      peers.push_back({"p" + std::to_string(i), 1, uint64_t{1} << 30, 1 + 9 * rng.uniform()});
    }
    for (const PlannerPeer& from : peers) {
      for (const PlannerPeer& to : peers) {
        if (from.id != to.id) links.push_back({from.id, to.id, 1, kMbit_s});
      }
    }
  }
  std::vector<PlannerPeer> peers;
  std::vector<PlannerLink> links;
};

TEST(PlanStoring, SpreadsWeightsWhereCheckpointsWouldHoldStepsBack) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const ThinLinks world(seed, 8 + 4 * (seed % 3));
    const opdag::Graph graph = chain_graph(48, 64, 64);
    job::JobSpec spec = chain_spec(64 * 16);
    spec.pipeline.stages = static_cast<int32_t>(world.peers.size());
    const auto plan = [&](int64_t every) {
      spec.train.checkpoint_every = every;
      auto report = plan_job(graph, spec, world.peers, world.links);
      EXPECT_TRUE(report.ok());
      return std::move(report).value();
    };
    const PlanReport free = plan(0), stored = plan(1);
    ASSERT_GT(pace_s(free, 1), 1.5 * free.prediction.step_s) << "checkpoints must matter";
    EXPECT_LT(pace_s(stored, 1), 0.7 * pace_s(free, 1)) << seed;
    // So are plans that exist: a running job would not move otherwise.
    const auto seconds =
        step_seconds_of(graph, spec, {&free.plan, &stored.plan}, world.peers, world.links);
    ASSERT_TRUE(seconds.ok());
    EXPECT_NEAR((*seconds)[0], pace_s(free, 1), 0.01 * pace_s(free, 1));
    EXPECT_NEAR((*seconds)[1], pace_s(stored, 1), 0.01 * pace_s(stored, 1));
    const bool waits = pace_s(stored, 1) > stored.prediction.step_s * (1 + 1e-6);
    EXPECT_EQ(stored.plan.reason.find("steps will wait for it") != std::string::npos, waits);
  }
}

TEST(PlanStoring, SaysWhereStepsWillWaitAndWhatWouldDo) {
  const ThinLinks world(1, 2);
  const opdag::Graph graph = chain_graph(8, 4, 64);
  job::JobSpec spec = chain_spec(16);
  spec.train.checkpoint_every = 1;
  const auto often = plan_job(graph, spec, world.peers, world.links);
  ASSERT_TRUE(often.ok());
  const std::string& reason = often->plan.reason;
  ASSERT_THAT(reason, HasSubstr("unless train.checkpoint.every is "));
  const std::string told = "train.checkpoint.every is ";
  spec.train.checkpoint_every = std::stoll(reason.substr(reason.find(told) + told.size()));
  const auto enough = plan_job(graph, spec, world.peers, world.links);
  ASSERT_TRUE(enough.ok());
  EXPECT_THAT(enough->plan.reason, Not(HasSubstr("checkpoint")));
  EXPECT_EQ(enough->prediction.step_s, often->prediction.step_s);
}

}  // namespace
}  // namespace weft::broker
