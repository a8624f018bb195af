// Plans over more peers than can be tried in every order: more to choose from is not less.
#include <gtest/gtest.h>

#include "tests/unit/planner/worlds.h"

namespace weft::broker {
namespace {

using testing::PlannedJob;
using testing::site_of;
using testing::SiteShape;
using testing::world_of;

// Under "auto" hardly more than under 1F1B, and than over one of the sites. Little memory is the
// hard case: the order of unequal peers decides what fits.
TEST(PlanManyPeers, IsAsGoodAsASiteOrAScheduleAlone) {
  PlannedJob job;
  for (const SiteShape& shape : {SiteShape{4, 12, 3}, {8, 16, 3}}) {
    const uint64_t seeds = shape.each > 12 ? 1 : 2;
    double schedule = 0, site = 0;
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
      const PlannerWorld world = world_of(seed, shape);
      const double chosen = job.step_s(world, job::PipelineSchedule::kAuto);
      const double plain = job.step_s(world, job::PipelineSchedule::k1F1B);
      double alone = HUGE_VAL;
      for (int32_t k = 0; k < shape.sites; ++k) {
        alone = std::min(alone, job.step_s(site_of(world, k), job::PipelineSchedule::k1F1B));
      }
      ASSERT_TRUE(std::isfinite(plain) && std::isfinite(alone));
      EXPECT_LT(chosen, 1.12 * plain) << world.peers.size() << " peers, seed " << seed;
      EXPECT_LT(chosen, 1.12 * alone) << world.peers.size() << " peers, seed " << seed;
      schedule += chosen / plain / static_cast<double>(seeds);
      site += chosen / alone / static_cast<double>(seeds);
    }
    EXPECT_LT(schedule, 1.05) << shape.sites;
    EXPECT_LT(site, 1.05) << shape.sites;
  }
}

TEST(PlanManyPeers, WithoutAnyRoomIsExplained) {
  PlannedJob job;
  PlannerWorld world = world_of(1, {2, 7, 8});
  for (PlannerPeer& peer : world.peers) peer.free_memory_bytes = 1;
  for (const bool compress : {false, true}) {
    PlannerOptions options;
    if (compress) options.compression = testing::random_compression(3);
    const auto report = plan_job(job.graph, job.spec, world.peers, world.links, options);
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.error().code, Code::kUnavailable);
  }
}

// More fast peers than are looked at hold nothing.
TEST(PlanManyPeers, StagesAskedForFindThePeersThatCanHoldThem) {
  PlannedJob job;
  PlannerWorld world = world_of(1, {4, 40, 24});
  for (size_t i = 0; i < world.peers.size(); ++i) {
    if (i % 4 == 0) {
      world.peers[i].gflops *= 0.1;
    } else {
      world.peers[i].memory_bytes = 1 << 20;
    }
  }
  job.spec.pipeline.stages = 36;  // of 40 that can
  const auto report = plan_job(job.graph, job.spec, world.peers, world.links);
  ASSERT_TRUE(report.ok()) << report.error().text();
  EXPECT_EQ(report->plan.stages.size(), 36u);
}

}  // namespace
}  // namespace weft::broker
