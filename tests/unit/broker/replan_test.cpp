// Running jobs that move to other plans: when they look, what a move does, and what goes wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_cluster.h"

namespace weft::broker {
namespace {

using testing::even_plan;
using testing::FakeCluster;
using testing::FakeOptions;
using ::testing::HasSubstr;

constexpr int64_t kMinute = 60000;

// A job of two stages on p-0 and p-1 of four peers; another plan is one without the peers that
// have shown to be slow.
class ReplanTest : public ::testing::Test {
 protected:
  ReplanTest() : cluster_(1, FakeOptions{}) {
    CoordinatorOptions& options = cluster_.options();
    options.plan = [this](const Job& job, const std::vector<const Peer*>& idle) {
      return Result<job::Plan>(planned(job, idle));
    };
    options.replan = [this](const Job& job, const std::vector<const Peer*>& peers, double) {
      ++looks_;
      Replanned replanned;
      std::vector<const Peer*> fast;
      for (const Peer* peer : peers) {
        if (peer->slowness.factor <= 1.5) fast.push_back(peer);
      }
      replanned.plan = planned(job, fast);
      replanned.current_s = 5;
      replanned.planned_s = planned_s_;
      replanned.store_s = 1;
      return Result<Replanned>(std::move(replanned));
    };
    options.speeds = [](const std::vector<const Peer*>& peers) {
      return std::vector<double>(peers.size(), 100);
    };
    cluster_.couple();
    cluster_.run_ms(1000, false);
  }
  static job::Plan planned(const Job& job, const std::vector<const Peer*>& idle) {
    job::Plan plan = even_plan(job, idle);
    for (job::StagePlan& stage : plan.stages) stage.compute_s = 0.5;
    plan.step_s = 0.5;
    return plan;
  }
  void submit(int64_t steps, bool replan = true) {
    cluster_.feed(SubmitJob{"j", "job", steps, 2, 2, 5, replan});
    ASSERT_TRUE(cluster_.run_until([&] { return job().step >= 20; }, 2 * kMinute));
  }
  const Job& job() { return cluster_.job("j"); }
  std::vector<std::string> peers() {
    std::vector<std::string> result;
    for (const StageState& stage : job().stages) result.push_back(stage.peer);
    return result;
  }
  FakeCluster cluster_;
  double planned_s_ = 0.5;
  int looks_ = 0;
};

TEST_F(ReplanTest, ASlowPeerIsLeftBehindWithoutAStepLost) {
  submit(2000);
  EXPECT_EQ(peers(), (std::vector<std::string>{"p-0", "p-1"}));
  cluster_.slow_down("p-0", 10);
  ASSERT_TRUE(cluster_.run_until([&] { return job().migration.has_value(); }, 5 * kMinute));
  const int64_t hold = job().migration->hold_step;
  int64_t most_step = 0;
  ASSERT_TRUE(cluster_.run_until(
      [&] {
        if (job().epoch == 1) most_step = std::max(most_step, job().step);
        return job().epoch == 2 && job().phase == JobPhase::kRunning;
      },
      10 * kMinute));
  EXPECT_EQ(job().resume_step, hold);
  EXPECT_EQ(most_step, hold);  // nobody computed beyond it
  EXPECT_EQ(peers(), (std::vector<std::string>{"p-1", "p-2"}));
  EXPECT_EQ(job().migrations, 1);
  EXPECT_THAT(cluster_.decisions_of("migrate").at(0), HasSubstr("s a step predicted instead of"));
  EXPECT_TRUE(cluster_.decisions_of("fail").empty());
  ASSERT_TRUE(cluster_.run_until([&] { return ended(job().phase); }, 60 * kMinute));
  EXPECT_EQ(job().phase, JobPhase::kFinished) << job().reason;
  EXPECT_EQ(job().migrations, 1);
}

TEST_F(ReplanTest, WhoAsksForItKeepsItsPlan) {
  submit(2000, false);
  cluster_.slow_down("p-0", 10);
  cluster_.run_ms(20 * kMinute, false);
  EXPECT_EQ(looks_, 0);
  EXPECT_EQ(job().epoch, 1u);
}

TEST_F(ReplanTest, LooksThatComeToNothingAreRareAndSayWhy) {
  planned_s_ = 4.9;
  submit(100000);
  cluster_.slow_down("p-0", 10);
  cluster_.run_ms(60 * kMinute, false);
  // Pauses of 30, 60, .. 1920 s and what is left.
  EXPECT_GE(looks_, 5);
  EXPECT_LE(looks_, 8);
  EXPECT_EQ(job().epoch, 1u);
  EXPECT_EQ(cluster_.decisions_of("keep").size(), static_cast<size_t>(looks_));
  EXPECT_THAT(cluster_.decisions_of("keep").back(), HasSubstr("saves too little"));
}

TEST_F(ReplanTest, ACheckpointThatDoesNotComeLetsTheStagesGoOn) {
  submit(2000);
  cluster_.slow_down("p-0", 10);
  cluster_.lose_hold_shards();
  ASSERT_TRUE(cluster_.run_until([&] { return job().migration.has_value(); }, 5 * kMinute));
  const int64_t hold = job().migration->hold_step;
  ASSERT_TRUE(cluster_.run_until([&] { return !job().migration; }, 20 * kMinute));
  EXPECT_EQ(job().phase, JobPhase::kRunning);
  EXPECT_EQ(job().step, hold);
  EXPECT_EQ(job().epoch, 1u);
  ASSERT_TRUE(cluster_.run_until([&] { return job().step > hold + 5; }, 5 * kMinute));
  EXPECT_THAT(cluster_.decisions_of("keep").back(), HasSubstr("not complete in time"));
}

// Behind the checkpoint nothing is lost: the job goes on under another plan, and nobody resumes it.
TEST_F(ReplanTest, APlanThatDoesNotComeUpIsGivenUp) {
  submit(2000);
  cluster_.slow_down("p-0", 10);
  ASSERT_TRUE(cluster_.run_until(
      [&] { return job().epoch == 2 && job().phase == JobPhase::kDeploying; }, 10 * kMinute));
  const int64_t from = job().resume_step;
  cluster_.kill_for_good("p-2");
  ASSERT_TRUE(cluster_.run_until(
      [&] { return job().epoch == 3 && job().phase == JobPhase::kRunning; }, 5 * kMinute))
      << job().reason;
  EXPECT_EQ(job().resume_step, from);
  EXPECT_TRUE(cluster_.decisions_of("fail").empty());
  EXPECT_EQ(cluster_.decisions_of("fall back").size(), 1u);
}

TEST_F(ReplanTest, APeerThatDiesWhileStagesWaitFailsTheJobAsEver) {
  submit(2000);
  cluster_.slow_down("p-0", 10);
  ASSERT_TRUE(cluster_.run_until([&] { return job().migration.has_value(); }, 5 * kMinute));
  cluster_.kill_for_good("p-1");
  ASSERT_TRUE(cluster_.run_until([&] { return ended(job().phase); }, 5 * kMinute));
  EXPECT_EQ(job().phase, JobPhase::kFailed);
  EXPECT_TRUE(job().resumable());
  EXPECT_FALSE(job().migration);
}

TEST_F(ReplanTest, TheNextJobDoesNotGetThePeersOfTheMove) {
  submit(2000);
  cluster_.slow_down("p-0", 10);
  ASSERT_TRUE(cluster_.run_until([&] { return job().migration.has_value(); }, 5 * kMinute));
  cluster_.feed(SubmitJob{"k", "other", 10, 2, 2, 5, true});
  cluster_.run_ms(500, false);
  ASSERT_EQ(cluster_.job("k").stages.size(), 2u);
  EXPECT_EQ(cluster_.job("k").stages[0].peer, "p-3");
  ASSERT_TRUE(cluster_.run_until(
      [&] { return job().epoch == 2 && job().phase == JobPhase::kRunning; }, 10 * kMinute));
  EXPECT_EQ(peers(), (std::vector<std::string>{"p-1", "p-2"}));
}

TEST_F(ReplanTest, ACancelEndsTheMove) {
  submit(2000);
  cluster_.slow_down("p-0", 10);
  ASSERT_TRUE(cluster_.run_until([&] { return job().migration.has_value(); }, 5 * kMinute));
  cluster_.feed(CancelJob{"j", ""});
  ASSERT_TRUE(cluster_.run_until([&] { return ended(job().phase); }, kMinute));
  EXPECT_EQ(job().phase, JobPhase::kCancelled);
  EXPECT_FALSE(job().migration);
}

// A slow peer is believed to be slow for a while, for longer each time.
TEST_F(ReplanTest, SlownessIsForgottenLaterEachTime) {
  submit(100000);
  cluster_.slow_down("p-0", 10);
  ASSERT_TRUE(cluster_.run_until([&] { return job().epoch == 2; }, 10 * kMinute));
  const Slowness& known = cluster_.state().peers.at("p-0").slowness;
  EXPECT_NEAR(known.factor, 10, 1);
  EXPECT_EQ(known.believe_ms, cluster_.options().believe_slow_ms);
  cluster_.run_ms(cluster_.options().believe_slow_ms + kMinute, false);
  EXPECT_EQ(known.factor, 0);
}

}  // namespace
}  // namespace weft::broker
