// Stages below the first trained parameter: they run no backward and no second forward, keep
// nothing for one, and no gradient comes back to them (executor/runtime_recompute.cpp).
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>

#include "broker/planner/chain.h"
#include "broker/planner/cost.h"
#include "broker/planner/planner.h"
#include "broker/planner/stash.h"
#include "opdag/derive.h"
#include "tests/support/graph_builder.h"
#include "tests/support/must.h"
#include "tests/unit/broker/graphs.h"

namespace weft::broker {
namespace {

using executor::testing::must;
using testing::chain_graph;
using testing::chain_spec;

constexpr int kLayers = 8;

// Of eight layers the lower ones frozen.
opdag::Graph frozen_below(int layers, int64_t batch = 64, int64_t width = 256) {
  std::vector<std::string> names;
  for (int i = 0; i < layers; ++i) names.push_back("layer" + std::to_string(i) + ".weight");
  opdag::Graph graph = chain_graph(kLayers, batch, width);
  return names.empty() ? graph : must(opdag::freeze(graph, names));
}

std::vector<PlannerPeer> equal_peers(size_t count) {
  std::vector<PlannerPeer> peers;
  for (size_t i = 0; i < count; ++i) {
    peers.push_back({"p-" + std::to_string(i), 4, uint64_t{8} << 30, 100});
  }
  return peers;
}

TEST(Frozen, StagesCostTheirForwardOnly) {
  const opdag::Graph graph = frozen_below(4), trained = frozen_below(0);
  const job::JobSpec spec = chain_spec(64 * 8);
  const auto partition = must(opdag::split_at(graph, {4, kLayers + 1}));
  const StageCosts costs =
      must(estimate_stages(graph, GraphCosts(graph, spec.train.precision), spec, partition));
  const StageCosts all =
      must(estimate_stages(trained, GraphCosts(trained, spec.train.precision), spec, partition));
  const auto seconds = [](const StageCosts& c, size_t stage) {
    return seconds_of(c.work[stage], {"p", 1, 0, 1, 10, 5}, job::Precision::kFp32);
  };
  EXPECT_EQ(seconds(costs, 0).backward, 0);
  EXPECT_EQ(seconds(costs, 0).forward, seconds(all, 0).forward);
  EXPECT_EQ(seconds(costs, 1).backward, seconds(all, 1).backward);
  EXPECT_EQ(costs.stash_bytes[0], 0);
  EXPECT_EQ(costs.input_bytes[0], 0);
  EXPECT_EQ(costs.stash_bytes[1], all.stash_bytes[1]) << "its first layer keeps what it is given";
  EXPECT_GT(costs.input_bytes[1], 0);
  // While it runs, a layer's argument and its result.
  const double weights = 4 * 256 * 256 * 4, value = 64 * 256 * 4;
  EXPECT_EQ(costs.fixed_bytes[0], weights + 2 * value);
  ASSERT_EQ(costs.graph.edges.size(), 1u);
  EXPECT_FALSE(costs.graph.edges[0].needs_grad);
}

// Both halves of a frozen layer's result are kept by what is trained behind it, so that the layer's
// memory is; and that it passes lasts until the last reader of a view.
TEST(Frozen, PartsOfListsKeepWhatTheyView) {
  opdag::testing::GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  const auto wide = b.linear(x, b.parameter("frozen", {16, 8}, false));
  const auto halves = b.split2(wide);
  const auto small = b.mul(halves[1], halves[1]);
  const auto trained = b.linear(halves[0], "trained", 8);
  b.loss(b.mean(b.mul(trained, small)));
  const opdag::Graph graph = must(b.build());
  const ValueBytes bytes = value_bytes(graph, job::Precision::kFp32);
  const Stash stash = stash_of(graph, job::Precision::kFp32, bytes);
  const std::vector<int32_t> linear = {3};
  EXPECT_EQ(stash.keepers[static_cast<size_t>(halves[0])], linear);
  EXPECT_TRUE(stash.keepers[static_cast<size_t>(halves[1])].empty());
  EXPECT_EQ(stash.keepers[static_cast<size_t>(wide)], linear);
  const double whole = 4 * 16 * 4, half = whole / 2;
  EXPECT_EQ(stash.passing[static_cast<size_t>(wide)], whole);
  EXPECT_EQ(stash.live, (std::vector<double>{whole, whole, whole + half, whole + half, half, 0}));
  // Twice the gradients of what the trained ones read and make; none of what is frozen.
  EXPECT_EQ(stash.gradients, (std::vector<double>{0, 0, 0, 2 * half, 4 * half, 2 * (half + 4)}));
}

// Views that read one value twice double nothing: the count of keepers stays that of nodes.
TEST(Frozen, ManyViewsOfOneValueAreQuick) {
  opdag::testing::GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  auto view = b.linear(x, b.parameter("frozen", {8, 8}, false));
  const auto first = view;
  for (int i = 0; i < 100; ++i) {
    view = b.op("aten::expand_as",
                {{"self", opdag::ValueArg{view}}, {"other", opdag::ValueArg{view}}}, {4, 8});
  }
  b.loss(b.mean(b.linear(view, "trained", 8)));
  const opdag::Graph graph = must(b.build());
  const Stash stash =
      stash_of(graph, job::Precision::kFp32, value_bytes(graph, job::Precision::kFp32));
  EXPECT_EQ(stash.keepers[static_cast<size_t>(first)].size(), 2u);
}

TEST(Frozen, NothingRunsAgain) {
  const opdag::Graph graph = frozen_below(4);
  const auto partition = must(opdag::split_at(graph, {4, kLayers + 1}));
  job::Plan plan;
  plan.partition = partition;
  plan.stages.resize(2);
  for (job::StagePlan& stage : plan.stages) stage.recompute = true;
  const Pipeline pipeline =
      must(pipeline_of_plan(graph, chain_spec(64 * 8), plan, equal_peers(2), {}));
  EXPECT_EQ(pipeline.stages[0].work_s(), pipeline.stages[0].forward_s);
  EXPECT_EQ(pipeline.stages[1].again_s(), pipeline.stages[1].forward_s);
  const job::ScheduleOptions schedule{job::PipelineSchedule::k1F1B, 8, 4};
  EXPECT_EQ(memory_of(pipeline.stages[0], schedule, 1, 1), pipeline.stages[0].fixed_bytes);
}

// A frozen layer costs a third of a trained one.
TEST(Frozen, TheCutMovesToWhereTheWorkIs) {
  job::JobSpec spec = chain_spec(64 * 32);
  spec.pipeline = {2, job::PipelineSchedule::k1F1B, 0};
  const auto first_stage = [&](int frozen) {
    const job::Plan plan = must(make_plan(frozen_below(frozen), spec, equal_peers(2), {}));
    const auto& stage_of = plan.partition.stage_of;
    return std::count(stage_of.begin(), stage_of.end(), 0);
  };
  EXPECT_EQ(first_stage(0), 4);
  EXPECT_EQ(first_stage(4), 5);
  EXPECT_EQ(first_stage(6), 6);
}

// The gap hides round trips, of which there is none to a frozen stage.
TEST(Frozen, AWayWithoutAnswerAsksForNoGap) {
  job::JobSpec spec = chain_spec(64 * 32);
  spec.pipeline = {2, job::PipelineSchedule::k1F1B, 0};
  const std::vector<PlannerLink> links = {{"p-0", "p-1", 20, 1000}, {"p-1", "p-0", 20, 1000}};
  const auto report = [&](int frozen) {
    return must(plan_job(frozen_below(frozen), spec, equal_peers(2), links));
  };
  EXPECT_GT(report(0).plan.gap, 1);
  const PlanReport frozen = report(6);
  EXPECT_EQ(frozen.plan.gap, 1);
  EXPECT_NE(frozen.prediction.bottleneck.kind, BottleneckKind::kLatency);
  // Messages go one way, and hide behind the work.
  ASSERT_EQ(frozen.prediction.ways.size(), 1u);
  const double busiest =
      std::max(frozen.prediction.stages[0].compute_s, frozen.prediction.stages[1].compute_s);
  EXPECT_LT(frozen.prediction.step_s, 1.1 * 32 * busiest + 0.1);
}

// A stage that the executor records nothing of (no gradient is wanted of what it is given, nor of
// its weights) costs no backward and keeps nothing; one that gradients come back to keeps
// something, if it only views what it is given.
RC_GTEST_PROP(FrozenProperty, CostsAreWhatTheExecutorRuns, (uint64_t seed)) {
  Rng rng(seed);
  auto made = opdag::testing::random_graph(rng, 20);
  RC_PRE(made.ok());
  opdag::Graph graph = *made;
  for (opdag::Leaf& leaf : graph.leaves) {
    if (leaf.kind == opdag::LeafKind::kParameter && rng.below(4) > 0) leaf.trainable = false;
  }
  const auto units = opdag::cut_units(graph).size();
  const auto stages = static_cast<int32_t>(1 + rng.below(std::min<uint64_t>(units, 4)));
  const opdag::Partition partition = must(opdag::random_partition(graph, stages, rng));
  const StageCosts costs = must(
      estimate_stages(graph, GraphCosts(graph, job::Precision::kFp32), chain_spec(4), partition));
  for (int32_t index = 0; index < stages; ++index) {
    const opdag::Stage stage = must(opdag::extract_stage(graph, partition, index));
    const auto at = static_cast<size_t>(index);
    const auto wanted = [](const opdag::Edge& edge) { return edge.needs_grad; };
    const bool records = std::any_of(stage.inputs.begin(), stage.inputs.end(), wanted) ||
                         std::any_of(stage.leaves.begin(), stage.leaves.end(), [&](int32_t leaf) {
                           return graph.leaves[static_cast<size_t>(leaf)].trainable;
                         });
    const job::ClassWork work = costs.work[at].total();
    if (!records) {
      RC_ASSERT(work.flops_backward == 0 && work.bytes_backward == 0);
      RC_ASSERT(work.forward_only == work.operators);
      RC_ASSERT(costs.stash_bytes[at] == 0 && costs.input_bytes[at] == 0);
    }
    if (std::any_of(stage.outputs.begin(), stage.outputs.end(), wanted)) {
      RC_ASSERT(costs.stash_bytes[at] > 0);
    }
  }
}

}  // namespace
}  // namespace weft::broker
