// Stages that keep their inputs only and run forwards again: the bits of those that keep
// everything, in less memory.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "executor/waiting_program.h"
#include "job/names.h"
#include "tests/unit/executor/runtime_support.h"

namespace weft::executor::testing {
namespace {

using opdag::testing::GraphBuilder;

opdag::Partition even_cut(const opdag::Graph& graph, int32_t stages) {
  const std::vector<double> even(opdag::cut_units(graph).size(), 1.0);
  return must(opdag::split_contiguous(graph, even, stages));
}

ClusterOptions recomputing(ClusterOptions options) {
  for (job::StagePlan& stage : options.runtime.plan.stages) stage.recompute = true;
  return options;
}

void expect_same(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  expect_bitwise(a.state, b.state);
}

// Any cut, schedule and choice of stages that recompute, with dropout, tied and frozen weights.
RC_GTEST_PROP(Recompute, AnyStagesOfItGiveTheSameBits, ()) {
  const auto seed = *rc::gen::arbitrary<uint32_t>();
  Rng rng(seed);
  const auto made = opdag::testing::random_graph(rng, 12 + static_cast<int>(rng.below(20)));
  const opdag::Graph graph = must(opdag::promote_f64(must(opdag::prune_to(must(made), {}))));
  ClusterOptions whole = cluster_options(one_stage(graph));
  whole.runtime.micro_batches = static_cast<int32_t>(1 + rng.below(5));
  whole.runtime.train.clip_norm = rng.below(2) == 0 ? 0 : 0.05;
  const Trained expected = train(graph, whole, 3);

  const auto units = opdag::cut_units(graph).size();
  const auto stages = static_cast<int32_t>(1 + rng.below(std::min<size_t>(units, 5)));
  ClusterOptions parts = cluster_options(must(opdag::random_partition(graph, stages, rng)), seed);
  parts.runtime.micro_batches = whole.runtime.micro_batches;
  parts.runtime.train.clip_norm = whole.runtime.train.clip_norm;
  const auto& schedules = job::Names<job::PipelineSchedule>::kAll;
  parts.runtime.plan.schedule = schedules[rng.below(schedules.size())].second;
  if (rng.below(4) == 0) parts.runtime.differentiation = Differentiation::kAutograd;
  parts.runtime.plan.gap = static_cast<int32_t>(1 + rng.below(3));
  const bool all = rng.below(2) == 0;
  for (job::StagePlan& stage : parts.runtime.plan.stages) {
    stage.recompute = all || rng.below(2) == 0;
  }
  const Trained found = train(graph, parts, 3);
  RC_ASSERT(found.losses == expected.losses);
  RC_ASSERT(found.norms == expected.norms);
  RC_ASSERT(found.state.size() == expected.state.size());
  for (const auto& [name, tensor] : expected.state) {
    RC_ASSERT(at::equal(tensor, found.state.at(name)));
  }
}

TEST(Recompute, UnderAutocastAndLossScalingTheSameBits) {
  const opdag::Graph graph = must(opdag::testing::tied_skip_graph());
  for (const auto precision : {job::Precision::kBf16, job::Precision::kFp16}) {
    ClusterOptions options = cluster_options(even_cut(graph, 3));
    options.runtime.train.precision = precision;
    options.runtime.train.loss_scale.init = 1 << 10;
    expect_same(train(graph, options, 4), train(graph, recomputing(options), 4));
  }
}

// y = x W, normalised; statistics are written by each micro-batch and read by none.
TEST(Recompute, StatisticsMoveOncePerMicroBatch) {
  GraphBuilder b;
  const auto h = b.linear(b.input("x", {4, 8}), "w0", 8);
  const auto y = b.op("aten::batch_norm",
                      {{"input", opdag::ValueArg{h}},
                       {"weight", opdag::ValueArg{b.parameter("scale", {8})}},
                       {"bias", opdag::ValueArg{b.parameter("shift", {8})}},
                       {"running_mean", opdag::ValueArg{b.buffer("mean", {8})}},
                       {"running_var", opdag::ValueArg{b.buffer("var", {8})}},
                       {"training", true},
                       {"momentum", 0.1},
                       {"eps", 1e-5},
                       {"cudnn_enabled", false}},
                      {4, 8});
  b.loss(b.mean(b.tanh(b.linear(b.dropout(y), "w1", 8))));
  const opdag::Graph graph = must(opdag::promote_f64(must(b.build())));
  for (const int32_t stages : {1, 3}) {
    for (const auto differentiation : {Differentiation::kTape, Differentiation::kAutograd}) {
      ClusterOptions options = cluster_options(even_cut(graph, stages));
      options.runtime.differentiation = differentiation;
      options.runtime.plan.schedule = job::PipelineSchedule::kGPipe;
      expect_same(train(graph, options, 3), train(graph, recomputing(options), 3));
    }
  }
}

// A buffer that the graph replaces and reads, and one that it writes in place and reads: every
// micro-batch in flight has seen other values than those there are when its forward runs again.
TEST(Recompute, BuffersHaveTheValuesOfTheFirstRun) {
  GraphBuilder b;
  const auto h = b.tanh(b.linear(b.input("x", {4, 8}), "w0", 8));
  const auto replaced = b.buffer("replaced", {4, 8}), written = b.buffer("written", {4, 8});
  const auto next = b.add(replaced, h);
  const auto after =
      b.op("aten::add_.Tensor", {{"self", opdag::ValueArg{written}}, {"other", opdag::ValueArg{h}}},
           {4, 8});
  const auto read = b.mul(h, b.add(replaced, after));
  b.loss(b.mean(b.tanh(b.linear(read, "w1", 8))));
  b.graph.buffer_updates.push_back(
      {"replaced", b.op("aten::detach", {{"self", opdag::ValueArg{next}}}, {4, 8})});
  const opdag::NodeId first = b.graph.nodes[2].id;
  for (opdag::Node& node : b.graph.nodes) {
    if (node.id >= first && node.op != "aten::linear" && node.op != "aten::mean" &&
        node.op != "aten::tanh") {
      node.atomic_group = 0;
    }
  }
  auto made = b.build();
  ASSERT_TRUE(made.ok()) << made.error().text();
  const opdag::Graph graph = must(opdag::promote_f64(*made));
  ClusterOptions options = cluster_options(even_cut(graph, 2));
  options.runtime.plan.schedule = job::PipelineSchedule::kGPipe;
  const Trained plain = train(graph, options, 3);
  EXPECT_NE(plain.losses[0], plain.losses[1]);
  expect_same(plain, train(graph, recomputing(options), 3));
}

// Layers before the first trainable one have no backward: nothing to run again, nothing kept.
TEST(Recompute, FrozenStagesRunOnce) {
  const opdag::Graph graph = must(
      opdag::promote_f64(must(opdag::freeze(must(opdag::testing::chain_graph(4)), {"w0", "w1"}))));
  ClusterOptions options = cluster_options(even_cut(graph, 4));
  expect_same(train(graph, options, 3), train(graph, recomputing(options), 3));
}

struct Peaks {
  int64_t first = 0, loss = 0;
};

Peaks peaks_of(const opdag::Graph& graph, const ClusterOptions& options) {
  RandomFeed feed(graph);
  auto cluster = must(LocalCluster::make(graph, {}, options, random_weights(), feed));
  for (int step = 0; step < 2; ++step) must(cluster->step(step));
  return {cluster->peak_bytes(0), cluster->peak_bytes(cluster->stages() - 1)};
}

// Twelve layers of 64 KiB of activations each in two stages, few weights.
TEST(Recompute, ManyMicroBatchesInFlightTakeTheirInputsOnly) {
  constexpr int kLayers = 12, kMicroBatches = 8;
  constexpr int64_t kBytes = 512 * 16 * 8;
  GraphBuilder b;
  opdag::ValueId x = b.input("x", {512, 16});
  for (int i = 0; i < kLayers; ++i) x = b.tanh(b.linear(x, "w" + std::to_string(i), 16));
  b.loss(b.mean(x));
  const opdag::Graph graph = must(opdag::promote_f64(must(b.build())));
  for (const auto differentiation : {Differentiation::kTape, Differentiation::kAutograd}) {
    ClusterOptions options = cluster_options(even_cut(graph, 2));
    options.measure_memory = true;
    options.runtime.micro_batches = kMicroBatches;
    options.runtime.differentiation = differentiation;
    options.runtime.plan.schedule = job::PipelineSchedule::kGPipe;
    const Peaks plain = peaks_of(graph, options);
    const Peaks again = peaks_of(graph, recomputing(options));
    // tanh keeps its result: one tensor a layer, of every micro-batch. Recomputed, of one of them;
    // of the others the input.
    const int64_t saved = (kMicroBatches - 1) * (kLayers / 2 - 1) * kBytes;
    EXPECT_GT(plain.first, kMicroBatches * kLayers / 2 * kBytes);
    EXPECT_LT(again.first, plain.first - saved * 9 / 10);
    EXPECT_LT(again.loss, plain.loss - saved * 9 / 10);

    options.runtime.micro_batches = 1;
    const Peaks one = peaks_of(graph, options), one_again = peaks_of(graph, recomputing(options));
    EXPECT_GE(one_again.first, one.first) << "there is nothing to save";
  }
}

TEST(Recompute, ARunThatDoesNotRecordHasTheSameResultsAndNoBackward) {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  const auto w = b.parameter("w", {8, 8});
  const auto y = b.mean(b.tanh(b.linear(x, w)));
  const opdag::Graph graph = must(b.build());
  ProgramSpec spec;
  spec.nodes = {0, 1, 2};
  spec.inputs = {{x, opdag::kNone}, {w, opdag::kNone}};
  spec.gradients = {true, true};
  spec.outputs = {y};
  RunContext context;
  context.record = false;
  const at::Tensor input = at::randn({4, 8}), weight = at::randn({8, 8});
  for (const auto differentiation : {Differentiation::kTape, Differentiation::kAutograd}) {
    spec.differentiation = differentiation;
    const Program program = must(Program::compile(graph, spec));
    const auto recorded = must(program.run({input, weight}, {}));
    const auto bare = must(program.run({input, weight}, context));
    EXPECT_TRUE(recorded.recording);
    EXPECT_FALSE(bare.recording);
    EXPECT_FALSE(bare.outputs[0].toTensor().requires_grad());
    EXPECT_TRUE(at::equal(recorded.outputs[0].toTensor(), bare.outputs[0].toTensor()));
    WaitingProgram waiting(program, {true, false}, 0);
    EXPECT_FALSE(must(waiting.run({input, weight}, context)).recording) << "measured all the same";
    EXPECT_TRUE(must(waiting.run({input, weight}, {})).recording);
  }
}

}  // namespace
}  // namespace weft::executor::testing
