// What steps really take, and when that is no longer what was planned.
#include "broker/coordinator/drift.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "broker/coordinator/correction.h"
#include "broker/coordinator/migration.h"

namespace weft::broker {
namespace {

using ::testing::HasSubstr;

job::Plan two_stages(double step_s, double first_s, double second_s) {
  job::Plan plan;
  plan.partition = {2, {0, 1}};
  plan.stages.resize(2);
  plan.stages[0].replicas = {"a"};
  plan.stages[1].replicas = {"b"};
  plan.stages[0].compute_s = first_s;
  plan.stages[1].compute_s = second_s;
  plan.step_s = step_s;
  return plan;
}

class DriftTest : public ::testing::Test {
 protected:
  void steps(int64_t from, int64_t count, double step_s, double first_s, double second_s) {
    for (int64_t step = from; step < from + count; ++step) {
      watch_.add(1, step, 0, second_s);
      watch_.add(0, step, step_s, first_s);
    }
  }
  DriftWatch watch_;
  job::Plan plan_ = two_stages(1, 0.4, 0.5);
};

TEST_F(DriftTest, WhatGoesAsPlannedDoesNotDrift) {
  watch_.begin(2, 0, 0);
  steps(1, 40, 1.1, 0.44, 0.5);
  EXPECT_FALSE(drift_of(watch_, plan_));
  EXPECT_EQ(model_error(watch_, plan_), 1);
}

TEST_F(DriftTest, TheFirstStepsAndThoseBehindACheckpointDoNotCount) {
  watch_.begin(2, 100, 10);
  steps(101, 2, 50, 50, 50);
  for (int64_t step = 103; step < 150; ++step) {
    const bool behind = (step - 1) % 10 == 0;
    steps(step, 1, behind ? 30 : 1, behind ? 30 : 0.4, 0.5);
    EXPECT_EQ(watch_.step_s().value_or(1), 1) << step;
  }
  EXPECT_FALSE(drift_of(watch_, plan_));
}

TEST_F(DriftTest, AFewOutliersMoveNothingAWindowOfThemDoes) {
  watch_.begin(2, 0, 0);
  steps(1, 20, 1, 0.4, 0.5);
  steps(21, 3, 9, 3, 5);
  EXPECT_FALSE(drift_of(watch_, plan_));
  steps(24, 5, 9, 0.4, 5);
  EXPECT_THAT(drift_of(watch_, plan_).value_or(""), HasSubstr("a step takes 9 s"));
  EXPECT_FALSE(stage_drift(watch_, plan_, 0));
  EXPECT_NEAR(stage_drift(watch_, plan_, 1).value_or(0), 10, 1e-9);
  EXPECT_EQ(*watch_.best_step_s(), 1);
}

TEST_F(DriftTest, AStageThatIsFasterThanPlannedDriftsToo) {
  watch_.begin(2, 0, 0);
  steps(1, 20, 0.9, 0.4, 0.1);
  EXPECT_THAT(drift_of(watch_, plan_).value_or(""), HasSubstr("stage 1 computes 0.2 times"));
}

TEST_F(DriftTest, WithoutAPredictionOnlyTheBestOfThePlanCounts) {
  plan_ = two_stages(0, 0, 0);
  watch_.begin(2, 0, 0);
  steps(1, 20, 5, 2, 2);
  EXPECT_FALSE(drift_of(watch_, plan_));
  steps(21, 20, 10, 4, 2);
  EXPECT_TRUE(drift_of(watch_, plan_));
}

// A model that is wrong of every peer says nothing against one of them.
TEST_F(DriftTest, WhatIsWrongOfAllStagesIsTheModels) {
  watch_.begin(2, 0, 0);
  steps(1, 20, 3, 1.2, 1.5);
  EXPECT_NEAR(model_error(watch_, plan_), 3, 1e-9);
  steps(21, 20, 15, 1.2, 15);  // one of them falls behind: the model is as wrong as before
  EXPECT_NEAR(model_error(watch_, plan_), 3, 1e-9);
}

// A first stage of little but an embedding: what its passes cost is no speed of its peer.
TEST_F(DriftTest, AStageWithNextToNothingToDoTellsNothing) {
  plan_ = two_stages(1, 0.002, 0.5);
  watch_.begin(2, 0, 0);
  steps(1, 40, 1, 0.007, 0.5);
  EXPECT_FALSE(drift_of(watch_, plan_));
  EXPECT_FALSE(stage_drift(watch_, plan_, 0));
  EXPECT_EQ(model_error(watch_, plan_), 1);
  // Unless it takes long enough to matter.
  watch_.begin(2, 0, 0);
  steps(1, 40, 1, 0.1, 0.5);
  EXPECT_NEAR(stage_drift(watch_, plan_, 0).value_or(0), 50, 1e-9);
  EXPECT_THAT(drift_of(watch_, plan_).value_or(""), HasSubstr("stage 0"));
}

TEST_F(DriftTest, WhateverPeersTellStaysWithinWhatMachinesDifferBy) {
  for (const auto& [told, ratio] : {std::pair{1e300, kMostSlowness}, {1e-300, 1 / kMostSlowness}}) {
    watch_.begin(2, 0, 0);
    steps(1, 20, 1, told, told);
    EXPECT_EQ(stage_drift(watch_, plan_, 0).value(), ratio);
    EXPECT_EQ(model_error(watch_, plan_), ratio);
  }
}

TEST_F(DriftTest, NumbersThatAreNoTimesChangeNothing) {
  watch_.begin(2, 0, 0);
  steps(1, 20, 1, 0.4, 0.5);
  steps(21, 20, -1, 0, std::numeric_limits<double>::quiet_NaN());
  watch_.add(7, 22, 1, 1);
  EXPECT_EQ(*watch_.step_s(), 1);
  EXPECT_EQ(*watch_.compute_s(1), 0.5);
}

Replanned better(double current_s, double planned_s) {
  Replanned replanned;
  replanned.current_s = current_s;
  replanned.planned_s = planned_s;
  replanned.store_s = 5;
  replanned.store_bytes = 10 << 20;
  replanned.fetches = {{"a", 1 << 20, 3}, {"b", 4 << 20, 20}};
  return replanned;
}

TEST(Migration, PaysTwiceItsCostOrDoesNotHappen) {
  // 1 s a step saved; the slowest fetch, the shards and the start cost 20 + 5 + 10 s.
  EXPECT_FALSE(judge_migration(better(2, 1), 69, 10).migrate);
  const MigrationVerdict verdict = judge_migration(better(2, 1), 70, 10);
  EXPECT_TRUE(verdict.migrate);
  EXPECT_THAT(verdict.reason, HasSubstr("70 s over 70 steps"));
  EXPECT_THAT(verdict.reason, HasSubstr("costs 35 s"));
  EXPECT_THAT(verdict.reason, HasSubstr("4 MiB for b"));
}

TEST(Migration, ATenthOfAStepIsTooLittleHoweverManyStepsAreLeft) {
  EXPECT_FALSE(judge_migration(better(1, 0.91), 1000000, 10).migrate);
  EXPECT_TRUE(judge_migration(better(1, 0.89), 1000000, 10).migrate);
  EXPECT_FALSE(judge_migration(better(1, 2), 1000000, 10).migrate);
}

TEST(Migration, TheSamePlanOrSpeedsNobodyKnowsMoveNothing) {
  Replanned same = better(2, 1);
  same.same = true;
  EXPECT_FALSE(judge_migration(same, 1000000, 10).migrate);
  Replanned untimed = better(2, 1);
  untimed.timed = false;
  EXPECT_THAT(judge_migration(untimed, 1000000, 10).reason, HasSubstr("speed is known"));
}

}  // namespace
}  // namespace weft::broker
