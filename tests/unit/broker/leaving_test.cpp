// Peers that go while a job runs: whose part is in may, the others fail it.
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

// Two stages; the one on p-0 has done its part, the other is still at work.
class OneStageDone : public ::testing::Test {
 protected:
  OneStageDone() : cluster_(1, two_peers()) {
    cluster_.feed(job_of("j", 2, 10));
    EXPECT_TRUE(cluster_.run_until([&] { return job().step >= 3; }, 60000));
    cluster_.slow_worker("p-1");
    EXPECT_TRUE(cluster_.run_until(
        [&] { return job().stages[0].phase == StagePhase::kFinished && shard_in(0); }, 60000));
    cluster_.run_ms(500, false);
    EXPECT_FALSE(shard_in(1));
  }
  static FakeOptions two_peers() {
    FakeOptions fake;
    fake.peers = 2;
    return fake;
  }
  const Job& job() { return cluster_.job("j"); }
  bool shard_in(int32_t stage) {
    const auto last = job().checkpoints.find(10);
    return last != job().checkpoints.end() && last->second.shards.contains(stage);
  }
  bool gone(const std::string& peer) {
    const auto found = cluster_.state().peers.find(peer);
    return found == cluster_.state().peers.end() || found->second.phase == PeerPhase::kGone;
  }
  void expect_the_job_finishes() {
    ASSERT_TRUE(cluster_.run_until([&] { return gone("p-0"); }, 30000));
    cluster_.run_ms(5000, false);
    EXPECT_EQ(job().phase, JobPhase::kRunning) << job().reason;
    cluster_.fast_worker("p-1");
    ASSERT_TRUE(cluster_.run_until([&] { return ended(job().phase); }, 30000));
    EXPECT_EQ(job().phase, JobPhase::kFinished) << job().reason;
    EXPECT_EQ(job().last_checkpoint_step(), 10);
    EXPECT_THAT(cluster_.events_of_kind("stage"),
                ::testing::Contains(HasSubstr("its part of the job is in")));
  }

  FakeCluster cluster_;
};

TEST_F(OneStageDone, ItsPeerMayDrain) {
  cluster_.feed(DrainPeer{"p-0"});
  expect_the_job_finishes();
}
TEST_F(OneStageDone, ItsPeerMayDrainByItself) {
  cluster_.drain("p-0");
  expect_the_job_finishes();
}
TEST_F(OneStageDone, ItsPeerMayLeave) {
  cluster_.leave_for_good("p-0");
  expect_the_job_finishes();
}
TEST_F(OneStageDone, ItsPeerMayDie) {
  cluster_.kill_for_good("p-0");
  expect_the_job_finishes();
}
TEST_F(OneStageDone, ItsPeerMayBeRemoved) {
  cluster_.feed(RemovePeer{"p-0"});
  expect_the_job_finishes();
}

TEST_F(OneStageDone, ItsPeerMayComeBackToAnotherJob) {
  cluster_.leave("p-0");
  ASSERT_TRUE(cluster_.run_until([&] { return gone("p-0"); }, 30000));
  cluster_.feed(job_of("k", 1, 40));
  ASSERT_TRUE(
      cluster_.run_until([&] { return cluster_.job("k").phase == JobPhase::kRunning; }, 90000));
  EXPECT_EQ(cluster_.job("k").stages[0].peer, "p-0");
  cluster_.fast_worker("p-1");
  ASSERT_TRUE(cluster_.run_until([&] { return ended(job().phase); }, 30000));
  EXPECT_EQ(job().phase, JobPhase::kFinished) << job().reason;
  ASSERT_TRUE(cluster_.run_until([&] { return ended(cluster_.job("k").phase); }, 60000));
  EXPECT_EQ(cluster_.job("k").phase, JobPhase::kFinished) << cluster_.job("k").reason;
}

TEST_F(OneStageDone, TheOtherPeerMayNotGo) {
  cluster_.leave_for_good("p-1");
  ASSERT_TRUE(cluster_.run_until([&] { return ended(job().phase); }, 30000));
  EXPECT_EQ(job().phase, JobPhase::kFailed);
  EXPECT_THAT(job().reason, HasSubstr("stage 1 on peer namep-1"));
}

TEST(Leaving, APeerThatGoesBeforeItsLastShardIsInFailsTheJob) {
  using Way = std::function<void(FakeCluster&)>;
  for (const Way& go : {Way([](FakeCluster& c) {
                          c.feed(PeerLeaving{"p-0", "drained"});
                        }),
                        Way([](FakeCluster& c) { c.feed(RemovePeer{"p-0"}); }),
                        Way([](FakeCluster& c) { c.kill_for_good("p-0"); })}) {
    FakeCluster cluster(1, {});
    cluster.feed(job_of("j", 2, 1000));
    ASSERT_TRUE(cluster.run_until([&] { return cluster.job("j").step > 6; }, 60000));
    cluster.hang_worker("p-0");
    cluster.feed(StageUpdate{"p-0", "j", 1, 0, "finished", "", 0, {}});
    go(cluster);
    ASSERT_TRUE(cluster.run_until([&] { return ended(cluster.job("j").phase); }, 60000));
    EXPECT_EQ(cluster.job("j").phase, JobPhase::kFailed);
    EXPECT_THAT(cluster.job("j").reason, HasSubstr("stage 0"));
    EXPECT_EQ(cluster.job("j").next, "weft job resume j");
  }
}

TEST(Leaving, WhatBreaksAfterTheLastCheckpointFailsNothing) {
  using Way = std::function<void(FakeCluster&)>;
  for (const Way& break_it :
       {Way([](FakeCluster& c) {
          c.feed(PeerLeaving{"p-0", "drained"});
        }),
        Way([](FakeCluster& c) { c.crash_worker("p-0"); }),
        Way([](FakeCluster& c) { c.kill_for_good("p-0"); }),
        Way([](FakeCluster& c) { c.start_daemon("p-0"); }),  // it lost its worker
        Way([](FakeCluster& c) {
          c.feed(StageUpdate{"p-1", "j", 1, 1, "failed", "", 0,
                             Failure{"unavailable", "the link to stage 0 is down", "", 1, "p-1"}});
        }),
        Way([](FakeCluster&) {})}) {  // they hang in their goodbyes
    FakeCluster cluster(1, {});
    cluster.feed(job_of("j", 2, 1000));
    ASSERT_TRUE(cluster.run_until([&] { return cluster.job("j").step > 2; }, 60000));
    for (const char* peer : {"p-0", "p-1"}) cluster.hang_worker(peer);
    cluster.feed(ShardStored{"p-0", "j", 1, 0, 1000, std::string(64, 'a'), 1, {"v"}});
    cluster.feed(ShardStored{"p-1", "j", 1, 1, 1000, std::string(64, 'b'), 1, {"w"}});
    EXPECT_EQ(cluster.job("j").phase, JobPhase::kRunning);
    break_it(cluster);
    ASSERT_TRUE(cluster.run_until([&] { return ended(cluster.job("j").phase); }, 200000));
    EXPECT_EQ(cluster.job("j").phase, JobPhase::kFinished) << cluster.job("j").reason;
    EXPECT_EQ(cluster.job("j").step, 1000);
    EXPECT_FALSE(cluster.events_of_kind("failure").empty());
  }
}

}  // namespace
}  // namespace weft::broker
