// What steps of a running job teach about the speed of its peers.
#include <gtest/gtest.h>

#include "broker/coordinator/coordinator.h"

namespace weft::broker {
namespace {

class SpeedTest : public ::testing::Test {
 protected:
  SpeedTest() {
    Peer peer;
    peer.id = "p";
    peer.capabilities.device = "cpu";
    peer.phase = PeerPhase::kRunning;
    peer.assignment = Assignment{"j", 1, 0};
    peer.correction = {1.5, 40};
    state_.peers["p"] = peer;
    Job job;
    job.id = "j";
    job.phase = JobPhase::kRunning;
    job.steps = 1000;
    job.plan.emplace();
    job.plan->stages = {{{"p"}, 1, 1, 1, 0.3, 1.5}};
    job.stages.resize(1);
    job.stages[0].peer = "p";
    job.stages[0].phase = StagePhase::kRunning;
    state_.jobs["j"] = job;
  }
  void step(int64_t number, double compute_s) {
    StageReport report{"p", "j", 1, 0, StageReport::Kind::kStep, number, {}, {}, 1, compute_s};
    (void)apply(state_, report, 1000 * number, CoordinatorOptions{});
  }
  const Correction& learned() const { return state_.peers.at("p").correction; }
  job::StagePlan& planned() { return state_.jobs.at("j").plan->stages[0]; }
  State state_;
};

TEST_F(SpeedTest, TheCorrectionIsOfThePredictionWithoutIt) {
  for (int64_t number = 3; number < 200; ++number) step(number, 0.4);
  EXPECT_NEAR(learned().factor, 2, 0.01);  // 0.3 s were 0.2 s times 1.5
}

TEST_F(SpeedTest, TheFirstStepsOfARunDoNotCount) {
  step(1, 9);
  step(2, 9);
  EXPECT_EQ(learned().steps, 40);
  state_.jobs.at("j").resume_step = 100;
  step(102, 9);
  EXPECT_EQ(learned().steps, 40);
  step(103, 0.3);
  EXPECT_EQ(learned().steps, 41);
}

TEST_F(SpeedTest, CardsAreLearnedOfAsProcessorsAre) {
  state_.peers.at("p").capabilities.device = "cuda:0";
  step(3, 9);  // tells of step 2
  EXPECT_EQ(learned().steps, 40);
  for (int64_t number = 4; number < 200; ++number) step(number, 0.4);
  EXPECT_NEAR(learned().factor, 2, 0.01);
}

TEST_F(SpeedTest, NothingIsLearnedOfSpeedsFromElsewhereOrOfStepsThatTellNone) {
  planned().correction = 0;  // the operator wrote the speed down
  step(10, 9);
  EXPECT_EQ(learned().steps, 40);
  planned().correction = 1.5;
  step(11, 0);
  EXPECT_EQ(learned().steps, 40);
  step(12, 0.3);
  EXPECT_EQ(learned().steps, 41);
}

}  // namespace
}  // namespace weft::broker
