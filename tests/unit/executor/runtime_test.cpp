#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "job/names.h"
#include "tests/unit/executor/runtime_support.h"

namespace weft::executor::testing {
namespace {

using opdag::testing::GraphBuilder;

// What one process computes with plain ATen calls, for a chain of linear and tanh layers.
TEST(Runtime, ChainEqualsHandWrittenAutograd) {
  const opdag::Graph graph = must(opdag::promote_f64(must(opdag::testing::chain_graph(3))));
  ClusterOptions options = cluster_options(one_stage(graph));
  options.runtime.keep_gradients = true;
  RandomFeed feed(graph);
  auto cluster = must(LocalCluster::make(graph, {}, options, random_weights(), feed));
  const StepResult result = must(cluster->step(4));

  std::vector<at::Tensor> weights;
  for (int i = 0; i < 3; ++i) {
    weights.push_back(cluster->state().at("w" + std::to_string(i)).clone().set_requires_grad(true));
  }
  at::Tensor total = at::zeros({}, at::kDouble);
  for (int32_t m = 0; m < 3; ++m) {
    at::Tensor x = must(feed.input("x", Split::kTrain, 4, m)).to(at::kDouble);
    for (const at::Tensor& weight : weights) x = at::tanh(at::linear(x, weight));
    total = total + x.mean() / 3;
  }
  const auto gradients = torch::autograd::grad({total}, weights);
  EXPECT_NEAR(result.loss, total.item<double>(), 1e-14);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(at::allclose(cluster->gradients().at("w" + std::to_string(i)),
                             gradients[static_cast<size_t>(i)], 1e-12, 1e-14));
  }
}

// The promise of the executor: no cut, schedule or order of arrival changes a bit in float64.
RC_GTEST_PROP(Runtime, AnyCutAndScheduleGiveTheSameBits, ()) {
  const auto seed = *rc::gen::arbitrary<uint32_t>();
  Rng rng(seed);
  const auto made = opdag::testing::random_graph(rng, 12 + static_cast<int>(rng.below(20)));
  const opdag::Graph graph = must(opdag::promote_f64(must(opdag::prune_to(must(made), {}))));
  ClusterOptions whole = cluster_options(one_stage(graph));
  whole.runtime.train.clip_norm = rng.below(2) == 0 ? 0 : 0.05;
  const Trained expected = train(graph, whole, 3);

  const auto units = opdag::cut_units(graph).size();
  const auto stages = static_cast<int32_t>(1 + rng.below(std::min<size_t>(units, 5)));
  const auto cut = must(opdag::random_partition(graph, stages, rng));
  ClusterOptions parts = cluster_options(cut, seed);
  parts.runtime.train.clip_norm = whole.runtime.train.clip_norm;
  const auto& schedules = job::Names<job::PipelineSchedule>::kAll;
  parts.runtime.plan.schedule = schedules[rng.below(schedules.size())].second;
  if (rng.below(4) == 0) parts.runtime.differentiation = Differentiation::kAutograd;
  parts.runtime.plan.gap = static_cast<int32_t>(1 + rng.below(3));
  parts.network.loss = 0.1;
  parts.network.duplicate = 0.1;
  const Trained found = train(graph, parts, 3);
  RC_ASSERT(found.losses == expected.losses);
  RC_ASSERT(found.norms == expected.norms);
  RC_ASSERT(found.state.size() == expected.state.size());
  for (const auto& [name, tensor] : expected.state) {
    RC_ASSERT(found.state.contains(name));
    RC_ASSERT(at::equal(tensor, found.state.at(name)));
  }
}

// A value read inside an atomic group and outside of it folds its gradients in graph order, too.
TEST(Runtime, AGroupNextToAFanOutGivesTheSameBits) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    GraphBuilder b;
    const auto h = b.tanh(b.linear(b.input("x", {4, 8}), "w0", 8));
    const auto square = b.mul(h, h);
    const auto early = b.relu(b.linear(h, "w1", 8));
    const auto inside = b.add(square, h);
    const auto late = b.tanh(b.linear(h, "w2", 8));
    b.loss(b.mean(b.add(b.add(inside, late), early)));
    b.graph.nodes[2].atomic_group = b.graph.nodes[5].atomic_group = 0;
    const opdag::Graph graph = must(opdag::promote_f64(must(b.build())));
    Rng rng(seed);
    const auto cut = must(opdag::random_partition(graph, 3, rng));
    const Trained whole = train(graph, cluster_options(one_stage(graph)), 2);
    const Trained parts = train(graph, cluster_options(cut, seed), 2);
    EXPECT_EQ(whole.losses, parts.losses);
    expect_bitwise(whole.state, parts.state);
  }
}

TEST(Runtime, TiedWeightsOverStagesStayOneWeight) {
  const opdag::Graph graph = must(opdag::promote_f64(must(opdag::testing::tied_skip_graph())));
  Rng rng(3);
  const auto units = opdag::cut_units(graph);
  const auto cut = must(opdag::split_contiguous(graph, std::vector<double>(units.size(), 1.0), 3));
  const Trained whole = train(graph, cluster_options(one_stage(graph)), 5);
  const Trained parts = train(graph, cluster_options(cut, 9), 5);
  EXPECT_EQ(whole.losses, parts.losses);
  expect_bitwise(whole.state, parts.state);
  EXPECT_TRUE(at::equal(parts.state.at("embed"), parts.state.at("head")));
}

TEST(Runtime, ClipsByTheGlobalNorm) {
  const opdag::Graph graph = must(opdag::promote_f64(must(opdag::testing::chain_graph(4))));
  const auto cut = must(
      opdag::split_contiguous(graph, std::vector<double>(opdag::cut_units(graph).size(), 1.0), 3));
  ClusterOptions options = cluster_options(cut);
  options.runtime.keep_gradients = true;
  RandomFeed feed(graph);
  auto plain = must(LocalCluster::make(graph, {}, options, random_weights(), feed));
  must(plain->step(0));
  double sum = 0;
  for (const auto& [name, gradient] : plain->gradients()) {
    sum += gradient.square().sum().item<double>();
  }
  options.runtime.train.clip_norm = std::sqrt(sum) / 2;
  auto clipped = must(LocalCluster::make(graph, {}, options, random_weights(), feed));
  const StepResult result = must(clipped->step(0));
  EXPECT_NEAR(result.grad_norm, std::sqrt(sum), 1e-12 * std::sqrt(sum));
  const double coefficient = options.runtime.train.clip_norm / (std::sqrt(sum) + 1e-6);
  for (const auto& [name, gradient] : clipped->gradients()) {
    EXPECT_TRUE(at::allclose(gradient, plain->gradients().at(name) * coefficient, 1e-12, 0));
  }
}

// 3 steps, then everything is loaded into another number of stages, 3 more: as 6 undisturbed.
TEST(Runtime, ResumesWithAnotherNumberOfStages) {
  const opdag::Graph graph = must(opdag::promote_f64(must(opdag::testing::tied_skip_graph())));
  const std::vector<double> even(opdag::cut_units(graph).size(), 1.0);
  const Trained undisturbed = train(graph, cluster_options(one_stage(graph)), 6);
  const Trained first =
      train(graph, cluster_options(must(opdag::split_contiguous(graph, even, 2))), 3);
  RandomFeed feed(graph);
  auto cluster = must(
      LocalCluster::make(graph, {}, cluster_options(must(opdag::split_contiguous(graph, even, 4))),
                         random_weights(99), feed));
  ASSERT_TRUE(cluster->load_state(first.state).ok());
  for (int step = 3; step < 6; ++step) must(cluster->step(step));
  expect_bitwise(undisturbed.state, cluster->state());
}

TEST(Runtime, LoadRefusesAnotherShape) {
  const opdag::Graph graph = must(opdag::testing::chain_graph(1));
  RandomFeed feed(graph);
  auto cluster = must(
      LocalCluster::make(graph, {}, cluster_options(one_stage(graph)), random_weights(), feed));
  const Status status = cluster->load_state({{"w0", at::zeros({3, 3})}});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("w0"), std::string::npos);
}

TEST(Runtime, EvaluationDrawsNothingAndChangesNothing) {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  b.loss(b.mean(b.tanh(b.linear(b.dropout(b.linear(x, "w0", 8), 0.5), "w1", 8))));
  const opdag::Graph graph = must(opdag::promote_f64(must(b.build())));
  const opdag::Graph eval = must(opdag::derive_eval(graph));
  const auto cut = must(
      opdag::split_contiguous(graph, std::vector<double>(opdag::cut_units(graph).size(), 1.0), 2));
  RandomFeed feed(graph);
  auto cluster =
      must(LocalCluster::make(graph, eval, cluster_options(cut), random_weights(), feed));
  must(cluster->step(0));
  std::map<std::string, at::Tensor> before;
  for (const auto& [name, tensor] : cluster->state()) before[name] = tensor.clone();
  const double first = must(cluster->evaluate(0, 2)).loss;
  const double second = must(cluster->evaluate(1, 2)).loss;
  EXPECT_EQ(first, second);
  expect_bitwise(before, cluster->state());
  double expected = 0;
  for (int32_t m = 0; m < 2; ++m) {
    at::Tensor y = must(feed.input("x", Split::kEval, 0, m)).to(at::kDouble);
    y = at::tanh(at::linear(at::linear(y, before.at("w0")), before.at("w1")));
    expected += y.mean().item<double>() / 2;
  }
  EXPECT_NEAR(first, expected, 1e-14);
}

// A dangling branch and an integer edge: nobody waits for gradients that do not exist.
TEST(Runtime, AbsentGradientsAndIntegerEdges) {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  const auto ids = b.input("ids", {4}, DType::kInt64);
  const auto h = b.linear(x, "w0", 8);
  const auto shifted =
      b.op("aten::add.Tensor", {{"self", opdag::ValueArg{ids}}, {"other", int64_t{1}}}, {4},
           DType::kInt64);
  const auto dangling = b.tanh(h);
  const auto detached = b.op("aten::detach", {{"self", opdag::ValueArg{h}}}, {4, 8});
  const auto table = b.parameter("table", {3, 8});
  const auto rows =
      b.op("aten::embedding",
           {{"weight", opdag::ValueArg{table}}, {"indices", opdag::ValueArg{shifted}}}, {4, 8});
  const auto unused = b.linear(dangling, "w1", 8);
  b.output("unused", unused);
  b.loss(b.mean(b.add(detached, rows)));
  auto made = b.build();
  ASSERT_TRUE(made.ok()) << made.error().text();
  const opdag::Graph graph = must(opdag::promote_f64(*made));
  const auto units = opdag::cut_units(graph).size();
  const auto cut = must(
      opdag::split_contiguous(graph, std::vector<double>(units, 1.0), static_cast<int32_t>(units)));
  ClusterOptions options = cluster_options(cut);
  options.runtime.keep_gradients = true;
  RandomFeed feed(graph);
  auto cluster = must(LocalCluster::make(graph, {}, options, random_weights(), feed));
  must(cluster->step(0));
  EXPECT_EQ(cluster->gradients().size(), 1u);
  EXPECT_TRUE(cluster->gradients().contains("table"));
}

TEST(Runtime, FrozenWeightsGetNoGradientAndStay) {
  const opdag::Graph graph =
      must(opdag::freeze(must(opdag::testing::chain_graph(3)), {"w0", "w1"}));
  const auto cut = must(
      opdag::split_contiguous(graph, std::vector<double>(opdag::cut_units(graph).size(), 1.0), 3));
  ClusterOptions options = cluster_options(cut);
  options.runtime.train.precision = job::Precision::kFp32;
  RandomFeed feed(graph);
  auto cluster = must(LocalCluster::make(graph, {}, options, random_weights(), feed));
  const at::Tensor before = cluster->state().at("w0").clone();
  const at::Tensor trained = cluster->state().at("w2").clone();
  must(cluster->step(0));
  EXPECT_TRUE(at::equal(before, cluster->state().at("w0")));
  EXPECT_FALSE(at::equal(trained, cluster->state().at("w2")));
}

TEST(Runtime, Bf16AutocastIsTheSameUnderAnyCut) {
  const opdag::Graph graph = must(opdag::testing::tied_skip_graph());
  ClusterOptions whole = cluster_options(one_stage(graph));
  whole.runtime.train.precision = job::Precision::kBf16;
  const auto cut = must(
      opdag::split_contiguous(graph, std::vector<double>(opdag::cut_units(graph).size(), 1.0), 3));
  ClusterOptions parts = cluster_options(cut);
  parts.runtime.train.precision = job::Precision::kBf16;
  const Trained a = train(graph, whole, 3), b = train(graph, parts, 3);
  EXPECT_EQ(a.losses, b.losses);
  expect_bitwise(a.state, b.state);
  ClusterOptions exact = cluster_options(one_stage(graph));
  exact.runtime.train.precision = job::Precision::kFp32;
  EXPECT_NE(a.losses, train(graph, exact, 3).losses);
}

// Batch norm moves its statistics once per micro-batch in training, and never in evaluation.
TEST(Runtime, BatchNormStatisticsMoveOncePerMicroBatch) {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  const auto mean = b.buffer("mean", {8}), var = b.buffer("var", {8});
  const auto scale = b.parameter("scale", {8}), shift = b.parameter("shift", {8});
  const auto h = b.linear(x, "w0", 8);
  const auto y = b.op("aten::batch_norm",
                      {{"input", opdag::ValueArg{h}},
                       {"weight", opdag::ValueArg{scale}},
                       {"bias", opdag::ValueArg{shift}},
                       {"running_mean", opdag::ValueArg{mean}},
                       {"running_var", opdag::ValueArg{var}},
                       {"training", true},
                       {"momentum", 0.1},
                       {"eps", 1e-5},
                       {"cudnn_enabled", false}},
                      {4, 8});
  b.loss(b.mean(b.tanh(y)));
  const opdag::Graph graph = must(opdag::promote_f64(must(b.build())));
  ClusterOptions options = cluster_options(one_stage(graph));
  options.runtime.keep_gradients = true;
  RandomFeed feed(graph);
  auto cluster = must(
      LocalCluster::make(graph, must(opdag::derive_eval(graph)), options, random_weights(), feed));
  at::Tensor expected = cluster->state().at("mean").clone();
  const at::Tensor weight = cluster->state().at("w0");
  must(cluster->step(0));
  for (int32_t m = 0; m < 3; ++m) {
    const at::Tensor input = must(feed.input("x", Split::kTrain, 0, m)).to(at::kDouble);
    expected = 0.9 * expected + 0.1 * at::linear(input, weight).mean({0});
  }
  EXPECT_TRUE(at::allclose(cluster->state().at("mean"), expected, 1e-12, 1e-14));
  const at::Tensor after = cluster->state().at("mean").clone();
  must(cluster->evaluate(0, 2));
  EXPECT_TRUE(at::equal(after, cluster->state().at("mean")));
}

}  // namespace
}  // namespace weft::executor::testing
