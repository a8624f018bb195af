// Deadlines of a deployment: silence ends it, slowness does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_cluster.h"

namespace weft::broker {
namespace {

using testing::FakeCluster;
using testing::FakeOptions;
using ::testing::HasSubstr;

SubmitJob job_of(const std::string& id, int32_t stages, int64_t steps = 20) {
  return SubmitJob{id, "name-" + id, steps, stages, 2};
}

TEST(Deployment, DeploymentDeadlinesNameTheSlowStage) {
  FakeCluster cluster(1, {});
  cluster.options().prepare_ms = 5000;
  cluster.feed(job_of("j", 2));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.has_worker("p-0"); }, 1000));
  cluster.hang_worker("p-0");
  cluster.run_ms(6000, false);
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kFailed);
  EXPECT_THAT(cluster.job("j").reason, HasSubstr("stage 0 on peer namep-0 (p-0): not listening"));
}

TEST(Deployment, ASlowDownloadOrLoadIsNoErrorSilenceIs) {
  FakeOptions fake;
  fake.fetch_ms = 40000;
  fake.load_ms = 30000;
  for (const bool connecting : {false, true}) {
    FakeCluster cluster(1, fake);
    cluster.options().prepare_ms = 5000;
    cluster.options().connect_ms = 4000;
    cluster.feed(job_of("j", 2));
    cluster.run_ms(30000, false);
    EXPECT_EQ(cluster.job("j").phase, JobPhase::kDeploying) << cluster.job("j").reason;
    EXPECT_FALSE(cluster.job("j").connecting);
    if (connecting) {
      cluster.run_ms(30000, false);
      EXPECT_TRUE(cluster.job("j").connecting);
      EXPECT_EQ(cluster.job("j").phase, JobPhase::kDeploying) << cluster.job("j").reason;
    }
    cluster.hang_worker("p-1");
    cluster.run_ms(3000, false);
    EXPECT_EQ(cluster.job("j").phase, JobPhase::kDeploying) << cluster.job("j").reason;
    cluster.run_ms(3500, false);
    EXPECT_EQ(cluster.job("j").phase, JobPhase::kFailed);
    EXPECT_THAT(cluster.job("j").reason,
                HasSubstr(connecting ? "(p-1): not ready: no progress for 4 s"
                                     : "(p-1): not listening: no progress for 5 s"));
  }
  FakeCluster cluster(1, fake);
  cluster.options().prepare_ms = cluster.options().connect_ms = 5000;
  cluster.feed(job_of("j", 2));
  ASSERT_TRUE(cluster.run_until([&] { return ended(cluster.job("j").phase); }, 200000));
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kFinished) << cluster.job("j").reason;
}

TEST(Deployment, OneStagesDownloadDoesNotExcuseAnothersSilenceNorAStuckOnes) {
  FakeOptions fake;
  fake.fetch_ms = 1000000;
  FakeCluster cluster(1, fake);
  cluster.options().prepare_ms = 10000;
  cluster.feed(job_of("j", 2));
  const int64_t began_ms = cluster.now();
  ASSERT_TRUE(cluster.run_until([&] { return cluster.has_worker("p-0"); }, 1000));
  cluster.hang_worker("p-0");
  while (!ended(cluster.job("j").phase) && cluster.now() - began_ms < 60000) {
    cluster.run_ms(1000, false);
    const double still_s = static_cast<double>(cluster.now() - began_ms) / 1000;
    cluster.feed(StageReport{"p-0", "j", 1, 0, StageReport::Kind::kAlive, 0, {}, {}, still_s});
  }
  EXPECT_THAT(cluster.job("j").reason, HasSubstr("stage 0 on peer namep-0 (p-0): not listening"));
  EXPECT_LE(cluster.now() - began_ms, 12000);
}

TEST(Deployment, ADeploymentThatTricklesForEverEndsByItsTotal) {
  FakeOptions fake;
  fake.fetch_ms = 1000000;
  FakeCluster cluster(1, fake);
  cluster.options().prepare_ms = 5000;
  cluster.options().deploy_ms = 60000;
  cluster.feed(job_of("j", 2));
  cluster.run_ms(59000, false);
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kDeploying) << cluster.job("j").reason;
  cluster.run_ms(2000, false);
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kFailed);
  EXPECT_THAT(cluster.job("j").reason, HasSubstr("not listening within 60 s"));
}

TEST(Deployment, ABrokerThatStoodStillDoesNotBlameASlowDownload) {
  FakeOptions fake;
  fake.fetch_ms = 1000000;
  FakeCluster cluster(1, fake);
  cluster.options().prepare_ms = 5000;
  cluster.options().deploy_ms = 30000;
  cluster.feed(job_of("j", 2));
  cluster.run_ms(2000, false);
  apply(cluster.state(), Tick{}, cluster.now() + 100000, cluster.options());
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kDeploying) << cluster.job("j").reason;
}

TEST(Deployment, NoJobDeploysBeyondItsDeadline) {
  FakeCluster cluster(1, {});
  cluster.options().deploy_ms = 5000;
  cluster.feed(job_of("j", 2));
  for (StageState& stage : cluster.state().jobs.at("j").stages) {
    cluster.hang_worker(stage.peer);
    stage.phase = StagePhase::kRunning;  // whatever brought it here
  }
  cluster.run_ms(6000, false);
  EXPECT_TRUE(ended(cluster.job("j").phase)) << cluster.job("j").reason;
}

}  // namespace
}  // namespace weft::broker
