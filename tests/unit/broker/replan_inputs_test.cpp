// What a move between two plans has to carry, and the speeds both are judged with.
#include "broker/coordinator/replan_inputs.h"

#include <gtest/gtest.h>

#include "graphs.h"

namespace weft::broker {
namespace {

using testing::chain_graph;
using testing::chain_spec;

Peer peer(const std::string& id) {
  Peer made;
  made.id = made.name = id;
  made.capabilities.cores = 4;
  made.capabilities.memory_bytes = uint64_t{8} << 30;
  return made;
}

class ReplanInputsTest : public ::testing::Test {
 protected:
  ReplanInputsTest() {
    spec_.train.optimizer = job::Optimizer::kAdam;
    for (const Peer* known : {&a_, &b_, &c_}) {
      PlannerPeer speed;
      speed.id = known->name;
      speed.gflops = 10;
      known_.peers.push_back(speed);
      for (const Peer* other : {&a_, &b_, &c_}) {
        if (other != known) known_.links.push_back({known->name, other->name, 1, 80});
      }
    }
    job_.steps = 1000;
    job_.requested_stages = 2;
    auto plan = plan_over_idle(graph_, spec_to_plan(spec_, job_), {&a_, &b_}, known_, {}, {});
    EXPECT_TRUE(plan.ok()) << plan.error().text();
    job_.plan = *plan;
    for (const job::StagePlan& stage : job_.plan->stages) {
      job_.stages.push_back(StageState{stage.replicas[0], StagePhase::kRunning, "", 0});
    }
  }
  Replanned replanned(double unproven = 1) {
    auto result = replan_over(graph_, spec_, job_, {&a_, &b_, &c_}, known_, {}, {}, unproven);
    EXPECT_TRUE(result.ok()) << result.error().text();
    return result.ok() ? *result : Replanned{};
  }

  const opdag::Graph graph_ = chain_graph(8, 4, 512);
  job::JobSpec spec_ = chain_spec(16);
  Peer a_ = peer("a"), b_ = peer("b"), c_ = peer("c");
  PlannerWorld known_;
  Job job_;
};

TEST_F(ReplanInputsTest, NothingNewIsTheSamePlan) {
  const Replanned same = replanned();
  EXPECT_TRUE(same.same);
  EXPECT_TRUE(same.timed);
  EXPECT_EQ(same.current_s, same.planned_s);
  EXPECT_NEAR(same.current_s, job_.plan->step_s, 1e-12);
}

TEST_F(ReplanInputsTest, ASlowPeerIsLeftAndItsReplacementFetchesItsShard) {
  a_.slowness.factor = 10;
  const Replanned other = replanned();
  ASSERT_FALSE(other.same);
  EXPECT_NEAR(other.planned_s, job_.plan->step_s, 0.01 * job_.plan->step_s);
  EXPECT_GT(other.current_s, 3 * other.planned_s);
  // Weights of float32 and two values of Adam each, at 80 Mbit/s.
  const double layer = 512.0 * 512 * 4 * 3;
  EXPECT_EQ(other.store_bytes, 8 * layer);
  ASSERT_EQ(other.fetches.size(), 2u);
  double all = 0;
  for (const StageFetch& fetch : other.fetches) {
    EXPECT_NE(fetch.peer, "a");
    EXPECT_NEAR(fetch.seconds, fetch.bytes * 8 / 80e6, 1e-9);
    all += fetch.bytes;
  }
  EXPECT_EQ(all, 8 * layer) << "the cut is the same: each stage one shard";
  EXPECT_NEAR(other.store_s, 4 * layer * 8 / 80e6, 1e-9);
}

TEST_F(ReplanInputsTest, ShardsThatWereStoredCountAsTheyAre) {
  a_.slowness.factor = 10;
  Checkpoint stored;
  stored.step = 10;
  stored.epoch = job_.epoch;
  stored.complete = true;
  stored.shards = {{0, {0, "x", 1000, {}}}, {1, {1, "y", 3000, {}}}};
  job_.checkpoints[10] = stored;
  EXPECT_EQ(replanned().store_bytes, 4000);
  job_.checkpoints[10].epoch = job_.epoch + 1;  // of another plan
  EXPECT_GT(replanned().store_bytes, 1e6);
}

// A stage of another cut needs every shard that has a weight of it, whole.
TEST(ShardsOf, FollowTheParameters) {
  const opdag::Graph graph = chain_graph(4, 2, 8);
  const auto units = static_cast<int32_t>(opdag::cut_units(graph).size());
  const auto split = [&](int32_t first) { return opdag::split_at(graph, {first, units}).value(); };
  const auto halves = shards_of(graph, split(2), split(2)).value();
  EXPECT_EQ(halves, (std::vector<std::vector<int32_t>>{{0}, {1}}));
  const auto moved = shards_of(graph, split(2), split(1)).value();
  EXPECT_EQ(moved, (std::vector<std::vector<int32_t>>{{0}, {0, 1}}));
}

// Constants that every stage reads, and buffers that are not stored, are in no shard.
TEST(ShardsOf, WhatNoCheckpointHoldsIsNotFetchedFromOne) {
  opdag::GraphBuilder b;
  const auto constant = b.constant("one", {2, 8}), table = b.buffer("table", {2, 8});
  b.graph.leaves.back().persistent = false;
  auto x = b.input("x", {2, 8});
  for (const char* weight : {"w0", "w1", "w2", "w3"}) {
    x = b.mul(b.add(b.linear(x, weight, 8), constant), table);
  }
  b.loss(b.mean(x));
  const opdag::Graph graph = b.build().value();
  const auto cut = opdag::split_at(graph, {6, 13}).value();
  EXPECT_EQ(shards_of(graph, cut, cut).value(), (std::vector<std::vector<int32_t>>{{0}, {1}}));
}

TEST_F(ReplanInputsTest, MeasuredWaysAreAskedForOnce) {
  a_.slowness.factor = 10;
  int asked = 0;
  PlannerOptions options;
  options.measured = [&](const std::vector<std::string>& ids) {
    ++asked;
    EXPECT_EQ(ids.size(), 3u);
    PlannerWays ways;
    for (const std::string& from : ids) {
      for (const std::string& to : ids) {
        if (from != to) ways.links.push_back({from, to, 1, 160});
      }
    }
    return ways;
  };
  known_.links.clear();
  const auto other = replan_over(graph_, spec_, job_, {&a_, &b_, &c_}, known_, {}, options);
  ASSERT_TRUE(other.ok()) << other.error().text();
  ASSERT_FALSE(other->same);
  EXPECT_EQ(asked, 1);
  EXPECT_NEAR(other->fetches[0].seconds, other->fetches[0].bytes * 8 / 160e6, 1e-9);
}

// A model that is wrong of everybody makes nobody's replacement look better.
TEST_F(ReplanInputsTest, PeersThatHaveShownNothingShareTheModelsError) {
  a_.slowness.factor = b_.slowness.factor = 5;
  const Replanned alike = replanned(5);
  EXPECT_GT(alike.current_s, 3 * job_.plan->step_s);
  EXPECT_GT(alike.planned_s, 0.95 * alike.current_s);
  EXPECT_LT(replanned(1).planned_s, 0.8 * alike.current_s)
      << "an idle one seems five times as fast";
  b_.slowness.factor = 50;
  const Replanned other = replanned(5);
  ASSERT_FALSE(other.same);
  EXPECT_EQ(other.factors, (std::vector<double>{5, 5}));
}

// What runs have shown of its device is measured with the model's error in it.
TEST_F(ReplanInputsTest, APeerOfADeviceThatRunsHaveShownDoesNotTakeTheModelsErrorTwice) {
  auto profile = std::make_shared<job::DeviceProfile>();
  profile->device_name = "card";
  for (auto& costs : profile->fp32.costs) costs.forward.flop_s = costs.backward.flop_s = 1e-10;
  std::map<std::string, Peer> peers = {{"a", a_}, {"b", b_}, {"c", c_}};
  for (auto& [id, peer] : peers) peer.profile = profile;
  peers["a"].correction = {5, 30};
  const auto factor_of_c = [&](double unproven) {
    peers["a"].slowness.factor = 50;  // left for c
    auto result = replan_over(graph_, spec_, job_, {&peers["a"], &peers["b"], &peers["c"]}, known_,
                              DeviceLessons(peers), {}, unproven);
    EXPECT_TRUE(result.ok()) << result.error().text();
    for (size_t i = 0; result.ok() && i < result->factors.size(); ++i) {
      if (result->plan.stages[i].replicas[0] == "c") return result->factors[i];
    }
    return 0.0;
  };
  const std::vector<PlannerPeer> written = known_.peers;
  for (PlannerPeer& peer : known_.peers) peer.gflops = 0;
  EXPECT_EQ(factor_of_c(5), 5) << "one machine alone shows nothing of another";
  EXPECT_EQ(factor_of_c(1), 1);
  peers["b"].correction = {4, 30};
  EXPECT_EQ(factor_of_c(5), 4);
  known_.peers = written;
  EXPECT_EQ(factor_of_c(5), 5) << "the speed is written: no run shows another";
}

TEST_F(ReplanInputsTest, PromisedSpeedsCountWhatRunsHaveShown) {
  b_.slowness.factor = 4;
  EXPECT_EQ(promised_speeds({&a_, &b_}, known_, {}), (std::vector<double>{10, 2.5}));
}

// Four alike; whether flows of the job's three share their lines is not known, of d it is: they do
// not.
TEST_F(ReplanInputsTest, WhatIsOnlyAssumedOfItsLinesMovesNoJob) {
  const Peer d = peer("d");
  known_.peers.push_back(known_.peers.front());
  known_.peers.back().id = "d";
  known_.links.clear();
  job_.requested_stages = 3;
  const auto moved = [&](bool assumed) {
    PlannerOptions options;
    options.measured = [assumed](const std::vector<std::string>& ids) {
      PlannerWays ways;
      for (const std::string& from : ids) {
        for (const std::string& to : ids) {
          if (from != to) ways.links.push_back({from, to, 1, 8});
        }
        if (from != "d") ways.access.push_back({from, {from}, 8, 0, assumed});
      }
      return ways;
    };
    const auto first =
        plan_over_idle(graph_, spec_to_plan(spec_, job_), {&a_, &b_, &c_}, known_, {}, options);
    EXPECT_TRUE(first.ok()) << first.error().text();
    job_.plan = *first;
    job_.stages.clear();
    for (const job::StagePlan& stage : job_.plan->stages) {
      job_.stages.push_back(StageState{stage.replicas[0], StagePhase::kRunning, "", 0});
    }
    const auto other =
        replan_over(graph_, spec_, job_, {&a_, &b_, &c_, &d}, known_, {}, options, 1);
    EXPECT_TRUE(other.ok()) << other.error().text();
    return other->current_s / other->planned_s;
  };
  EXPECT_GT(moved(false), 1.05) << "d in the middle sends two ways at once";
  EXPECT_LT(moved(true), 1.01);
}

}  // namespace
}  // namespace weft::broker
