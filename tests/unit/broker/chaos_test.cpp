// Random losses, deaths, hangs and cancels around the coordinator: whatever happens, no job hangs,
// no peer does two things, and the cluster comes to rest.
#include <gtest/gtest.h>

#include "fake_cluster.h"

namespace weft::broker {
namespace {

using testing::FakeCluster;
using testing::FakeOptions;

FakeOptions rough() {
  FakeOptions fake;
  fake.loss = 0.02;
  fake.delay = 0.1;
  fake.kill = 0.01;
  fake.crash = 0.005;
  fake.hang = 0.003;
  fake.drain = 0.005;
  fake.leave = 0.005;
  fake.cancel = 0.01;
  return fake;
}

void run_history(FakeCluster& cluster) {
  cluster.options().stall_ms = 60000;
  cluster.options().prepare_ms = 60000;
  for (int i = 0; i < 6; ++i) {
    const std::string id = fmt::format("j-{}", i);
    cluster.feed(SubmitJob{id, id, 20, i % 4, 2});
    cluster.run_ms(15000, true);
    for (const auto& [job, entry] : std::map<std::string, Job>(cluster.state().jobs)) {
      if (ended(entry.phase) && entry.resumable() && i % 2 == 0) {
        cluster.feed(ResumeJob{job, i % 3, {}});
      }
    }
  }
}

class Chaos : public ::testing::TestWithParam<int> {};

TEST_P(Chaos, NoJobHangsAndTheClusterComesToRest) {
  FakeCluster cluster(static_cast<uint64_t>(GetParam()), rough());
  run_history(cluster);
  // The weather clears: every job must end, by its own deadlines, and every peer be idle again.
  const bool rested = cluster.run_until(
      [&] {
        for (const auto& [id, job] : cluster.state().jobs) {
          if (!ended(job.phase)) return false;
        }
        for (const auto& [id, peer] : cluster.state().peers) {
          if (peer.phase != PeerPhase::kIdle) return false;
        }
        return true;
      },
      900000);
  if (!rested) {
    for (const auto& [id, job] : cluster.state().jobs) {
      ADD_FAILURE() << id << " " << phase_name(job.phase) << " " << job.reason;
    }
    for (const auto& [id, peer] : cluster.state().peers) {
      ADD_FAILURE() << id << " " << phase_name(peer.phase) << " leftover " << peer.leftover;
    }
  }
  for (const auto& [id, job] : cluster.state().jobs) {
    EXPECT_FALSE(job.reason.empty()) << id;
    if (job.phase == JobPhase::kFinished) {
      EXPECT_EQ(job.last_checkpoint_step(), job.steps);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Chaos, ::testing::Range(1, 41));

TEST(ChaosSeed, OneSeedGivesOneHistory) {
  for (uint64_t seed : {7u, 8u}) {
    FakeCluster first(seed, rough()), second(seed, rough());
    run_history(first);
    run_history(second);
    EXPECT_EQ(first.log(), second.log());
    EXPECT_GT(first.log().size(), 1000u);
  }
}

}  // namespace
}  // namespace weft::broker
