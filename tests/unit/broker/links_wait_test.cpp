// A job waits for the first measured way between its peers, but never for long, and the plan it
// gets counts what was measured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graphs.h"
#include "link_world.h"

namespace weft::broker {
namespace {

class LinksWaitTest : public ::testing::Test {
 protected:
  LinksWaitTest() {
    network_.add_site({.up_mbit_s = 40, .down_mbit_s = 100}, 1);
    network_.add_site({.x_ms = 9, .up_mbit_s = 40, .down_mbit_s = 100}, 1);
  }
  void submit(LinkWorld& world, int32_t stages) {
    Submission submission;
    submission.spec = testing::chain_spec(16);
    submission.spec.pipeline.stages = stages;
    const opdag::Graph graph = testing::chain_graph(4, 4, 8);
    const nlohmann::json body = {{"spec", job::spec_to_json(submission.spec)}};
    ASSERT_TRUE(world.core().submit("j", body, submission, {graph, graph}).ok());
  }
  // Ticks of 250 ms until the job is deployed; -1: it is not within ten seconds.
  static int deployed_after(LinkWorld& world) {
    for (int tick = 0; tick <= 40; ++tick) {
      if (world.core().state().jobs.at("j").phase != JobPhase::kQueued) return tick;
      world.step();
    }
    return -1;
  }

  SyntheticNetwork network_{1};
};

TEST_F(LinksWaitTest, AJobWaitsForTheFirstMeasurement) {
  LinkWorld world(network_);
  world.beat();
  submit(world, 2);
  EXPECT_EQ(world.core().state().jobs.at("j").phase, JobPhase::kQueued);
  const int ticks = deployed_after(world);
  EXPECT_GE(ticks, 1);
  EXPECT_LE(ticks, 6) << "the answer comes with the first probe";
  EXPECT_GE(world.core().links().directions(), 1u);
  EXPECT_THAT(world.core().state().jobs.at("j").plan->reason,
              ::testing::Not(::testing::HasSubstr("no link was measured")));
}

TEST_F(LinksWaitTest, ButNotForLongWhereNobodyAnswers) {
  LinkWorld world(network_);
  world.hold_answers(true);
  world.beat();
  submit(world, 2);
  const int ticks = deployed_after(world);
  EXPECT_EQ(ticks, CoordinatorOptions{}.links_ms / 250);
  EXPECT_EQ(world.core().links().directions(), 0u);
}

TEST_F(LinksWaitTest, AndNotWherePeersCannotMeasureNow) {
  LinkWorld world(network_);
  world.spoil_answers([](proto::ProbeReport& report) {
    report.set_outcome("busy");
    report.clear_links();
  });
  world.beat();
  submit(world, 2);
  EXPECT_LE(deployed_after(world), 6);
}

TEST_F(LinksWaitTest, OnePeerOrOneStageWaitsForNothing) {
  SyntheticNetwork alone(2);
  alone.add_site({}, 1);
  LinkWorld one(alone);
  one.beat();
  submit(one, 1);
  EXPECT_EQ(deployed_after(one), 0);
  LinkWorld two(network_);
  two.beat();
  submit(two, 1);
  EXPECT_EQ(deployed_after(two), 0);
}

TEST_F(LinksWaitTest, WithoutProbesNothingWaits) {
  CoreOptions silent;
  silent.probe_links = false;
  LinkWorld off(network_, silent);
  off.beat();
  submit(off, 2);
  EXPECT_EQ(deployed_after(off), 0);
  CoreOptions told;
  told.known.links = {{"a", "b", 1, 100}};
  LinkWorld written(network_, told);
  written.beat();
  submit(written, 2);
  EXPECT_EQ(deployed_after(written), 0);
}

TEST_F(LinksWaitTest, PeersThatWorkAreNotAsked) {
  network_.add_site({.x_ms = 3, .up_mbit_s = 40}, 2);
  LinkWorld world(network_);
  world.run_s(3);
  submit(world, 2);
  ASSERT_GE(deployed_after(world), 0);
  std::set<std::string> working;
  for (const StageState& stage : world.core().state().jobs.at("j").stages) {
    working.insert(stage.peer);
  }
  ASSERT_EQ(working.size(), 2u);
  world.forget_probed();
  world.run_s(20);  // their daemons take no assignment, which ends the job after 30 s
  EXPECT_FALSE(world.probed().empty());
  for (const std::string& id : working) EXPECT_FALSE(world.probed().contains(id)) << id;
}

}  // namespace
}  // namespace weft::broker
