// Plans over more peers than can be tried in every order: more to choose from is not less.
#include <gtest/gtest.h>

#include "tests/unit/planner/worlds.h"

namespace weft::broker {
namespace {

using testing::PlannedJob;
using testing::site_of;
using testing::SiteShape;
using testing::world_of;

// Under "auto" no more than under one of the schedules, and than over one of the sites. Little
// memory is the hard case: the order of unequal peers decides what fits.
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
      EXPECT_LT(chosen, 1.12 * plain) << world.peers.size() << " peers, seed " << seed;
      EXPECT_LT(chosen, 1.12 * alone) << world.peers.size() << " peers, seed " << seed;
      schedule += chosen / plain / static_cast<double>(seeds);
      site += chosen / alone / static_cast<double>(seeds);
    }
    EXPECT_LT(schedule, 1.05) << shape.sites;
    EXPECT_LT(site, 1.05) << shape.sites;
  }
}

}  // namespace
}  // namespace weft::broker
