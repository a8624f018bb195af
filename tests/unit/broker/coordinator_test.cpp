#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "broker/coordinator/record.h"
#include "fake_cluster.h"

namespace weft::broker {
namespace {

using testing::FakeCluster;
using testing::FakeOptions;
using ::testing::HasSubstr;

SubmitJob job_of(const std::string& id, int32_t stages, int64_t steps = 20) {
  return SubmitJob{id, "name-" + id, steps, stages, 2};
}

bool all_idle(FakeCluster& cluster) {
  for (const auto& [id, peer] : cluster.state().peers) {
    if (peer.phase != PeerPhase::kIdle || peer.leftover) return false;
  }
  return true;
}

TEST(Coordinator, RunsAJobToItsEndAndFreesThePeers) {
  FakeCluster cluster(1, {});
  cluster.feed(job_of("j", 3));
  ASSERT_TRUE(
      cluster.run_until([&] { return cluster.job("j").phase == JobPhase::kRunning; }, 5000));
  ASSERT_TRUE(cluster.run_until([&] { return ended(cluster.job("j").phase); }, 60000));
  const Job& job = cluster.job("j");
  EXPECT_EQ(job.phase, JobPhase::kFinished) << job.reason;
  EXPECT_EQ(job.step, 20);
  EXPECT_EQ(job.last_checkpoint_step(), 20);
  EXPECT_EQ(job.checkpoints.size(), 2u) << "keep = 2: steps 15 and 20";
  EXPECT_DOUBLE_EQ(*job.first_loss, 10.0);
  EXPECT_TRUE(cluster.run_until([&] { return all_idle(cluster); }, 5000));
}

TEST(Coordinator, WaitsWithAReasonUntilEnoughPeersAreIdle) {
  FakeOptions fake;
  fake.peers = 2;
  FakeCluster cluster(1, fake);
  cluster.feed(job_of("j", 3));
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kQueued);
  EXPECT_THAT(cluster.job("j").reason, HasSubstr("waiting for 3 peers: 2 of 2"));
  cluster.feed(PeerJoined{"p-9", "late", "c", "k"});
  cluster.start_daemon("p-9");
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kDeploying);
}

// A plan costs the broker's thread up to half a second; peers that come one by one, and jobs that
// wait, must not multiply.
TEST(Coordinator, ARefusedPlanIsTriedAgainWithPausesThatGrow) {
  FakeOptions quiet;
  quiet.peers = 2;
  FakeCluster cluster(1, quiet);
  std::vector<int64_t> tried_ms;
  bool fits = false;
  cluster.options().plan = [&](const Job& job,
                               const std::vector<const Peer*>& idle) -> Result<job::Plan> {
    tried_ms.push_back(cluster.now());
    if (fits) return testing::even_plan(job, idle);
    return make_error(Code::kUnavailable, "too little memory");
  };
  cluster.feed(SubmitJob{"job-1", "a", 20, 1});
  for (int i = 0; i < 200; ++i) {  // the set of idle peers changes all the time
    cluster.kill("p-1");
    cluster.start_daemon("p-1");
    cluster.run_ms(500, false);
  }
  EXPECT_EQ(cluster.job("job-1").phase, JobPhase::kQueued);
  EXPECT_EQ(cluster.job("job-1").reason, "too little memory");
  ASSERT_GE(tried_ms.size(), 5u);
  EXPECT_LE(tried_ms.size(), 12u);
  for (size_t i = 1; i < tried_ms.size(); ++i) {
    EXPECT_GE(tried_ms[i] - tried_ms[i - 1], std::min<int64_t>(1000 << (i - 1), 16000));
  }
  fits = true;
  cluster.kill("p-1");
  cluster.start_daemon("p-1");
  EXPECT_TRUE(
      cluster.run_until([&] { return cluster.job("job-1").phase == JobPhase::kFinished; }, 60000));
}

TEST(Coordinator, AutoWaitsForPeersThatAreJustArriving) {
  FakeOptions fake;
  fake.peers = 4;
  FakeCluster cluster(1, fake);
  cluster.feed(job_of("j", 0));
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kQueued);
  ASSERT_TRUE(
      cluster.run_until([&] { return cluster.job("j").phase == JobPhase::kRunning; }, 9000));
  EXPECT_EQ(cluster.job("j").stages.size(), 4u);
}

TEST(Coordinator, ADeadWorkerFailsTheJobAndNamesStageAndPeerAndCheckpoint) {
  FakeCluster cluster(1, {});
  cluster.feed(job_of("j", 3, 1000));
  ASSERT_TRUE(
      cluster.run_until([&] { return cluster.job("j").last_checkpoint_step() >= 5; }, 60000));
  cluster.crash_worker(cluster.job("j").stages[1].peer);
  ASSERT_TRUE(cluster.run_until([&] { return ended(cluster.job("j").phase); }, 3000));
  const Job& job = cluster.job("j");
  EXPECT_EQ(job.phase, JobPhase::kFailed);
  EXPECT_THAT(job.reason, HasSubstr("stage 1 on peer namep-1 (p-1): its worker was killed"));
  EXPECT_THAT(job.reason, HasSubstr("last complete checkpoint: step 5"));
  EXPECT_EQ(job.next, "weft job resume j");
  EXPECT_TRUE(cluster.run_until([&] { return all_idle(cluster); }, 5000));
}

TEST(Coordinator, ADeadPeerIsSuspectThenGoneAndItsJobFails) {
  FakeCluster cluster(1, {});
  cluster.feed(job_of("j", 3, 1000));
  ASSERT_TRUE(
      cluster.run_until([&] { return cluster.job("j").phase == JobPhase::kRunning; }, 9000));
  const int64_t killed_ms = cluster.now();
  cluster.kill_for_good("p-2");
  ASSERT_TRUE(cluster.run_until(
      [&] { return cluster.state().peers.at("p-2").phase == PeerPhase::kSuspect; }, 8000));
  ASSERT_TRUE(cluster.run_until([&] { return ended(cluster.job("j").phase); }, 60000));
  EXPECT_LE(cluster.now() - killed_ms, cluster.options().gone_ms + 2000);
  EXPECT_THAT(cluster.job("j").reason, HasSubstr("stage 2 on peer namep-2 (p-2)"));
}

TEST(Coordinator, ALinkFailureIsBlamedOnThePeerNobodyHears) {
  FakeCluster cluster(1, {});
  cluster.feed(job_of("j", 3, 1000));
  ASSERT_TRUE(
      cluster.run_until([&] { return cluster.job("j").phase == JobPhase::kRunning; }, 9000));
  cluster.kill_for_good("p-2");
  cluster.run_ms(7000, false);
  cluster.feed(StageUpdate{"p-1", "j", 1, 1, "failed", "", 0,
                           Failure{"unavailable", "the link to stage 2 is down", "", 1, "p-1"}});
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kRunning) << "the verdict waits for the cause";
  cluster.run_ms(2500, false);
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kFailed);
  EXPECT_THAT(cluster.job("j").reason, HasSubstr("stage 2 on peer namep-2"));
}

TEST(Coordinator, AHungPipelineFailsAtTheStallLimit) {
  FakeCluster cluster(1, {});
  cluster.feed(job_of("j", 2, 1000));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.job("j").step > 2; }, 60000));
  for (const StageState& stage : cluster.job("j").stages) cluster.hang_worker(stage.peer);
  ASSERT_TRUE(cluster.run_until([&] { return ended(cluster.job("j").phase); },
                                cluster.options().stall_ms + 2000));
  EXPECT_THAT(cluster.job("j").reason, HasSubstr("no progress since step"));
}

TEST(Coordinator, ALongStepOrUploadIsNoStallButSilenceWithoutEndIs) {
  FakeCluster cluster(1, {});
  cluster.options().stall_ms = 5000;
  cluster.options().silent_ms = 200000;
  cluster.feed(job_of("j", 2, 1000));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.job("j").step > 2; }, 60000));
  for (const StageState& stage : cluster.job("j").stages) cluster.slow_worker(stage.peer);
  cluster.run_ms(150000, false);
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kRunning) << cluster.job("j").reason;
  ASSERT_TRUE(cluster.run_until([&] { return ended(cluster.job("j").phase); }, 60000));
  EXPECT_THAT(cluster.job("j").reason, HasSubstr("no progress since step"));
}

TEST(Coordinator, AliveOfAStuckComputeThreadIsNoProgress) {
  FakeCluster cluster(1, {});
  cluster.options().stall_ms = 5000;
  cluster.feed(job_of("j", 1, 1000));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.job("j").step > 2; }, 60000));
  cluster.hang_worker("p-0");
  const int64_t hung_ms = cluster.now();
  while (!ended(cluster.job("j").phase) && cluster.now() - hung_ms < 20000) {
    cluster.run_ms(1000, false);
    const double still_s = static_cast<double>(cluster.now() - hung_ms) / 1000;
    cluster.feed(StageReport{"p-0", "j", 1, 0, StageReport::Kind::kAlive, 3, {}, {}, still_s});
  }
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kFailed);
  EXPECT_LE(cluster.now() - hung_ms, 8000);
}

TEST(Coordinator, AFinalUploadThatGoesOnMayTakeLongerThanItsDeadline) {
  FakeCluster cluster(1, {});
  cluster.options().stall_ms = 5000;
  cluster.options().final_checkpoint_ms = 10000;
  cluster.feed(job_of("j", 1, 1000));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.job("j").step > 2; }, 60000));
  cluster.hang_worker("p-0");
  cluster.feed(StageUpdate{"p-0", "j", 1, 0, "finished", "", 0, {}});
  for (int i = 0; i < 30; ++i) {
    cluster.run_ms(1000, false);
    cluster.feed(StageReport{"p-0", "j", 1, 0, StageReport::Kind::kAlive, 1000, {}, {}, 0});
  }
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kRunning) << cluster.job("j").reason;
  cluster.run_ms(6000, false);
  EXPECT_THAT(cluster.job("j").reason, HasSubstr("final checkpoint was not complete"));
}

TEST(Coordinator, ALostHelloIsAskedForAndThePeerTakesNoWorkBefore) {
  FakeOptions fake;
  fake.peers = 1;
  FakeCluster cluster(1, fake);
  cluster.feed(PeerJoined{"p-9", "late", "c", "k"});
  int asked = 0;
  cluster.on_effect = [&](const Effect& effect) {
    const auto* e = std::get_if<SendWelcome>(&effect);
    if (e != nullptr && e->hello_wanted && e->peer == "p-9") ++asked;
  };
  cluster.start_unheard("p-9");
  cluster.feed(PeerHeartbeat{"p-9", 999, 1, false, {}});
  EXPECT_EQ(asked, 1);
  cluster.feed(job_of("j", 2));
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kQueued) << "nothing is known of p-9";
  ASSERT_TRUE(
      cluster.run_until([&] { return cluster.job("j").phase == JobPhase::kRunning; }, 9000));
  EXPECT_EQ(cluster.state().peers.at("p-9").capabilities.advertise_host, "10.0.0.1");
  cluster.run_ms(10000, false);
  EXPECT_LE(asked, 2) << "asked once a session";
}

TEST(Coordinator, APeerThatDrainsNoMoreIsIdleAgain) {
  FakeCluster cluster(1, {});
  const auto phase = [&] { return cluster.state().peers.at("p-0").phase; };
  const uint64_t session = cluster.state().peers.at("p-0").session;
  cluster.feed(PeerHeartbeat{"p-0", session, 100, true, {}});
  EXPECT_EQ(phase(), PeerPhase::kDraining);
  cluster.feed(PeerHeartbeat{"p-0", session, 101, false, {}});
  EXPECT_EQ(phase(), PeerPhase::kIdle);
  // Drained by a user it stays so, is told again after a restart, until it is invited again.
  int drains = 0;
  cluster.on_effect = [&](const Effect& effect) {
    if (std::holds_alternative<SendDrain>(effect)) ++drains;
  };
  cluster.feed(DrainPeer{"p-0"});
  cluster.feed(PeerHeartbeat{"p-0", session, 102, false, {}});
  EXPECT_EQ(phase(), PeerPhase::kDraining);
  EXPECT_EQ(drains, 1);
  cluster.start_daemon("p-0");
  EXPECT_EQ(drains, 2);
  EXPECT_EQ(phase(), PeerPhase::kDraining);
  cluster.feed(PeerJoined{"p-0", "name", "curve", "key"});
  cluster.start_daemon("p-0");
  EXPECT_EQ(drains, 2);
  EXPECT_EQ(phase(), PeerPhase::kIdle);
}

TEST(Coordinator, AStageThatFinishesBeforeTheStartFailsTheJob) {
  for (const bool by_heartbeat : {true, false}) {
    FakeCluster cluster(1, {});
    cluster.feed(job_of("j", 2));
    ASSERT_EQ(cluster.job("j").phase, JobPhase::kDeploying);
    const uint64_t session = cluster.state().peers.at("p-0").session;
    if (by_heartbeat) {
      cluster.feed(PeerHeartbeat{"p-0", session, 100, false, {{"j", 1, 0, "finished"}}});
    } else {
      cluster.feed(StageUpdate{"p-0", "j", 1, 0, "finished", "", 0, {}});
    }
    EXPECT_EQ(cluster.job("j").phase, JobPhase::kFailed);
    EXPECT_THAT(cluster.job("j").reason, HasSubstr("ended before the job was started"));
  }
}

TEST(Coordinator, ADaemonThatNeverStopsDoesNotBlockAutoJobs) {
  FakeOptions fake;
  fake.peers = 2;
  FakeCluster cluster(1, fake);
  cluster.options().stop_ms = 5000;
  cluster.feed(job_of("j", 1, 1000));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.job("j").step > 2; }, 60000));
  cluster.deaf_worker("p-0");
  cluster.feed(CancelJob{"j", ""});
  cluster.feed(job_of("k", 0, 10));
  cluster.run_ms(3000, false);
  EXPECT_EQ(cluster.job("k").phase, JobPhase::kQueued);
  ASSERT_TRUE(
      cluster.run_until([&] { return cluster.job("k").phase == JobPhase::kRunning; }, 9000));
  EXPECT_EQ(cluster.job("k").stages.size(), 1u);
}

TEST(Coordinator, CancelStopsEveryWorkerAndEndsByADeadlineOtherwise) {
  FakeCluster cluster(1, {});
  cluster.feed(job_of("j", 3, 1000));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.job("j").step > 2; }, 60000));
  cluster.feed(CancelJob{"j", "enough"});
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kCancelling);
  ASSERT_TRUE(
      cluster.run_until([&] { return cluster.job("j").phase == JobPhase::kCancelled; }, 3000));
  EXPECT_EQ(cluster.job("j").reason, "cancelled: enough");
  EXPECT_TRUE(cluster.run_until([&] { return all_idle(cluster); }, 3000));
}

TEST(Coordinator, ResumeStartsANewEpochAtTheLastCheckpointWithOtherStages) {
  FakeCluster cluster(1, {});
  cluster.feed(job_of("j", 3, 40));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.job("j").step >= 12; }, 60000));
  cluster.crash_worker("p-0");
  ASSERT_TRUE(cluster.run_until([&] { return ended(cluster.job("j").phase); }, 3000));
  cluster.feed(ResumeJob{"j", 2, std::nullopt});
  EXPECT_EQ(cluster.job("j").epoch, 2u);
  EXPECT_EQ(cluster.job("j").resume_step, 10);
  ASSERT_TRUE(cluster.run_until([&] { return ended(cluster.job("j").phase); }, 60000));
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kFinished) << cluster.job("j").reason;
  EXPECT_EQ(cluster.job("j").stages.size(), 2u);
  EXPECT_EQ(check_command(cluster.state(), ResumeJob{"j", {}, {}}).error().code, Code::kInvalid);
  EXPECT_TRUE(check_command(cluster.state(), ResumeJob{"j", {}, 60}).ok());
}

TEST(Coordinator, MessagesOfAnotherEpochOrPeerChangeNothing) {
  FakeCluster cluster(1, {});
  cluster.feed(job_of("j", 2, 1000));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.job("j").step > 2; }, 60000));
  const int64_t step = cluster.job("j").step;
  StageReport report{"p-0", "j", 7, 0, StageReport::Kind::kStep, 900, 1.0, {}, 1};
  cluster.feed(report);
  report.epoch = 1;
  report.peer = "p-4";
  cluster.feed(report);
  report.peer = "p-0";
  report.step = 1001;  // beyond the job
  cluster.feed(report);
  cluster.feed(StageUpdate{"p-0", "j", 7, 0, "failed", "", 0, {}});
  cluster.feed(ShardStored{"p-0", "j", 7, 0, 900, std::string(64, 'a'), 1, {}});
  EXPECT_EQ(cluster.job("j").step, step);
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kRunning);
  EXPECT_FALSE(cluster.job("j").checkpoints.contains(900));
}

TEST(Coordinator, RestartFailsRunningJobsStopsTheirWorkersAndKeepsTheQueue) {
  FakeCluster cluster(1, {});
  cluster.feed(job_of("a", 3, 1000));
  cluster.feed(job_of("b", 4, 20));
  ASSERT_TRUE(
      cluster.run_until([&] { return cluster.job("a").last_checkpoint_step() >= 5; }, 60000));
  // What a broker reads back after a restart.
  State loaded;
  for (const auto& [id, peer] : cluster.state().peers) {
    loaded.peers[id] = *peer_from_record(peer_to_record(peer));
  }
  for (const auto& [id, job] : cluster.state().jobs) {
    loaded.jobs[id] = *job_from_record(job_to_record(job));
    for (const auto& [step, checkpoint] : job.checkpoints) {
      loaded.jobs[id].checkpoints[step] = *checkpoint_from_record(checkpoint_to_record(checkpoint));
    }
  }
  cluster.state() = loaded;
  cluster.feed(Restarted{"noon"});
  EXPECT_EQ(cluster.job("a").phase, JobPhase::kFailed);
  EXPECT_EQ(cluster.job("a").reason,
            "the broker restarted at noon; last complete checkpoint: step 5");
  EXPECT_EQ(cluster.job("a").next, "weft job resume a");
  EXPECT_EQ(cluster.job("b").phase, JobPhase::kQueued);
  ASSERT_TRUE(cluster.run_until([&] { return ended(cluster.job("b").phase); }, 60000));
  EXPECT_EQ(cluster.job("b").phase, JobPhase::kFinished) << cluster.job("b").reason;
  EXPECT_FALSE(cluster.events_of_kind("fence").empty());
  cluster.feed(ResumeJob{"a", {}, 10});
  ASSERT_TRUE(cluster.run_until([&] { return ended(cluster.job("a").phase); }, 60000));
  EXPECT_EQ(cluster.job("a").phase, JobPhase::kFinished) << cluster.job("a").reason;
}

TEST(Coordinator, DrainFinishesTheJobAndTakesNoOther) {
  FakeCluster cluster(1, {});
  cluster.feed(job_of("j", 5, 10));
  ASSERT_TRUE(
      cluster.run_until([&] { return cluster.job("j").phase == JobPhase::kRunning; }, 9000));
  cluster.feed(DrainPeer{"p-0"});
  ASSERT_TRUE(cluster.run_until([&] { return ended(cluster.job("j").phase); }, 30000));
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kFinished) << cluster.job("j").reason;
  cluster.feed(job_of("k", 5, 10));
  EXPECT_EQ(cluster.job("k").phase, JobPhase::kQueued);
  cluster.feed(PeerLeaving{"p-0", "drained"});
  EXPECT_EQ(cluster.state().peers.at("p-0").phase, PeerPhase::kGone);
}

TEST(Coordinator, RemovingAPeerRevokesItAndFailsItsJob) {
  FakeCluster cluster(1, {});
  cluster.feed(job_of("j", 2, 1000));
  ASSERT_TRUE(
      cluster.run_until([&] { return cluster.job("j").phase == JobPhase::kRunning; }, 9000));
  std::string revoked;
  std::vector<std::string> told;
  cluster.on_effect = [&](const Effect& effect) {
    if (const auto* e = std::get_if<Revoke>(&effect)) revoked = e->curve_public;
    if (const auto* e = std::get_if<SendWelcome>(&effect)) told.push_back(e->peer);
  };
  cluster.feed(RemovePeer{"p-1"});
  EXPECT_EQ(revoked, "curvep-1");
  EXPECT_TRUE(cluster.state().revoked.contains("p-1"));
  EXPECT_EQ(told, (std::vector<std::string>{"p-0", "p-2", "p-3", "p-4"}));
  EXPECT_FALSE(cluster.state().peers.contains("p-1"));
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kFailed);
  EXPECT_THAT(cluster.job("j").reason, HasSubstr("removed by the administrator"));
}

TEST(Coordinator, ABrokerThatStoodStillBlamesNobody) {
  FakeCluster cluster(1, {});
  cluster.feed(job_of("j", 2, 1000));
  ASSERT_TRUE(
      cluster.run_until([&] { return cluster.job("j").phase == JobPhase::kRunning; }, 9000));
  const int64_t later_ms = cluster.now() + 100000;
  apply(cluster.state(), Tick{}, later_ms, cluster.options());
  for (const auto& [id, peer] : cluster.state().peers) {
    EXPECT_NE(peer.phase, PeerPhase::kGone) << id;
  }
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kRunning);
}

TEST(Coordinator, CommandsThatCannotBeObeyedAreRefusedAndIgnored) {
  FakeCluster cluster(1, {});
  const State before = cluster.state();
  EXPECT_EQ(check_command(before, CancelJob{"x", ""}).error().code, Code::kNotFound);
  EXPECT_EQ(check_command(before, DrainPeer{"x"}).error().code, Code::kNotFound);
  EXPECT_EQ(check_command(before, job_of("j", 1, 0)).error().code, Code::kInvalid);
  EXPECT_TRUE(apply(cluster.state(), DeleteJob{"x"}, cluster.now(), cluster.options()).empty());
  cluster.feed(job_of("j", 1));
  EXPECT_EQ(check_command(cluster.state(), DeleteJob{"j"}).error().code, Code::kInvalid);
  EXPECT_EQ(check_command(cluster.state(), ResumeJob{"j", {}, {}}).error().code, Code::kInvalid);
}

TEST(Coordinator, ABadPlanFailsTheJobInsteadOfBreakingTheRule) {
  FakeCluster cluster(1, {});
  cluster.options().plan = [](const Job&, const std::vector<const Peer*>& idle) {
    job::Plan plan;
    plan.partition.stages = 2;
    plan.stages = {{{idle[0]->id}, 0, 0, 0}, {{idle[0]->id}, 0, 0, 0}};
    return Result<job::Plan>(plan);
  };
  cluster.feed(job_of("j", 2));
  EXPECT_EQ(cluster.job("j").phase, JobPhase::kFailed);
  EXPECT_THAT(cluster.job("j").reason, HasSubstr("which is not free"));
}

TEST(States, NamesRoundTrip) {
  for (uint8_t i = 0; i < 7; ++i) {
    EXPECT_EQ(phase_from_name<PeerPhase>(phase_name(static_cast<PeerPhase>(i))),
              static_cast<PeerPhase>(i));
    EXPECT_EQ(phase_from_name<JobPhase>(phase_name(static_cast<JobPhase>(i))),
              static_cast<JobPhase>(i));
  }
  EXPECT_FALSE(phase_from_name<JobPhase>("nonsense"));
}

}  // namespace
}  // namespace weft::broker
