// Evaluation under a cut: separately exported models, stages without evaluation nodes, accuracy;
// and state that nothing reads.
#include "executor/message_tensor.h"
#include "executor/worker_links.h"
#include "opdag/cut_eval.h"
#include "tests/unit/executor/runtime_support.h"

namespace weft::executor::testing {
namespace {

using opdag::testing::GraphBuilder;

// As a train-mode export: x -> w0 -> dropout -> dropout -> w1 (skip from w0) -> classes.
opdag::Graph train_model() {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  const auto y = b.input("y", {4}, DType::kInt64);
  const auto h = b.linear(x, "w0", 8);
  const auto d = b.dropout(b.dropout(h, 0.5), 0.5);
  const auto logits = b.linear(b.add(b.tanh(b.linear(d, "w1", 8)), h), "w2", 8);
  b.loss(b.op("aten::cross_entropy_loss",
              {{"self", opdag::ValueArg{logits}}, {"target", opdag::ValueArg{y}}}, {}));
  return must(opdag::promote_f64(must(b.build())));
}

// As an eval-mode export of the same module: other ids, no dropout, leaves in another order.
opdag::Graph eval_model() {
  GraphBuilder b;
  const auto w2 = b.parameter("w2", {8, 8}), w1 = b.parameter("w1", {8, 8});
  const auto y = b.input("y", {4}, DType::kInt64);
  const auto x = b.input("x", {4, 8});
  const auto h = b.linear(x, "w0", 8);
  const auto logits = b.linear(b.add(b.tanh(b.linear(h, w1)), h), w2);
  b.loss(b.op("aten::cross_entropy_loss",
              {{"self", opdag::ValueArg{logits}}, {"target", opdag::ValueArg{y}}}, {}));
  return must(opdag::promote_f64(must(b.build())));
}

// linear | dropout, dropout | linear, tanh, add | linear, loss
opdag::Partition four_stages() {
  opdag::Partition cut;
  cut.stages = 4;
  cut.stage_of = {0, 1, 1, 2, 2, 2, 3, 3};
  return cut;
}

TEST(Evaluation, SeparateModelOverStagesWithoutItsNodes) {
  const opdag::Graph train = train_model(), eval = eval_model();
  RandomFeed feed(train);
  auto whole = must(
      LocalCluster::make(train, eval, cluster_options(one_stage(train)), random_weights(), feed));
  auto parts = must(
      LocalCluster::make(train, eval, cluster_options(four_stages(), 3), random_weights(), feed));
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(must(whole->step(step)).loss, must(parts->step(step)).loss);
    const StepResult a = must(whole->evaluate(step, 2)), b = must(parts->evaluate(step, 2));
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.accuracy, b.accuracy);
  }
  expect_bitwise(whole->state(), parts->state());
}

// Derived evaluation drops a counter's nodes, and with them a stage that has nothing else.
TEST(Evaluation, DerivedGraphMayLeaveAStageOut) {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  const auto count = b.buffer("count", {}, DType::kInt64);
  b.graph.leaves.back().persistent = true;
  const auto h = b.linear(x, "w0", 8);
  const auto added =
      b.op("aten::add.Tensor", {{"self", opdag::ValueArg{count}}, {"other", int64_t{1}}}, {},
           DType::kInt64);
  b.graph.buffer_updates = {{"count", added}};
  b.loss(b.mean(b.linear(h, "w1", 8)));
  const opdag::Graph train = must(opdag::promote_f64(must(b.build())));
  opdag::Partition cut;
  cut.stages = 3;
  cut.stage_of = {0, 1, 2, 2};
  const opdag::Graph eval = must(opdag::derive_eval(train));
  RandomFeed feed(train);
  auto cluster =
      must(LocalCluster::make(train, eval, cluster_options(cut), random_weights(), feed));
  must(cluster->step(0));
  must(cluster->evaluate(0, 2));
  EXPECT_EQ(cluster->state().at("count").item<int64_t>(), 3);  // micro-batches of the step
  const auto links = must(plan_links(train, eval, cluster_options(cut).runtime.plan, 1, 3));
  EXPECT_TRUE(links.edges.empty());
  EXPECT_EQ(links.control_neighbours, std::vector<int32_t>{2});
}

// Both ends of a link must know it, under the same number and credits.
TEST(Evaluation, LinksAgreeOnBothEnds) {
  const opdag::Graph train = train_model(), eval = eval_model();
  const job::Plan plan = cluster_options(four_stages()).runtime.plan;
  const auto found = must(opdag::eval_partition(train, plan.partition, eval));
  std::vector<WorkerLinks> links;
  for (int32_t stage = 0; stage < 4; ++stage) {
    links.push_back(must(plan_links(train, eval, plan, stage, 3)));
  }
  const auto has = [&](int32_t stage, const opdag::EvalPartition::Link& link) {
    const auto& edges = links[static_cast<size_t>(stage)].edges;
    return std::any_of(edges.begin(), edges.end(), [&](const net::EdgeLink& edge) {
      return edge.edge == link.wire && edge.from == link.from && edge.to == link.to &&
             edge.activation_credits > 0;
    });
  };
  EXPECT_FALSE(found.links.empty());
  for (const auto& link : found.links) {
    EXPECT_TRUE(has(link.from, link) && has(link.to, link));
    EXPECT_FALSE(has(1, link));
  }
  for (int32_t a = 0; a < 4; ++a) {
    for (int32_t b : links[static_cast<size_t>(a)].neighbours) {
      const auto& back = links[static_cast<size_t>(b)].neighbours;
      EXPECT_NE(std::find(back.begin(), back.end(), a), back.end()) << a << " " << b;
    }
  }
}

// A long way is full of messages however few a step has and whatever the schedule.
TEST(Evaluation, CreditsAreThoseOfThePlansGap) {
  const opdag::Graph train = train_model(), eval = eval_model();
  constexpr int32_t kMicroBatches = 12;
  for (const auto kind : {job::PipelineSchedule::kGPipe, job::PipelineSchedule::k1F1B,
                          job::PipelineSchedule::kZbH1}) {
    job::Plan plan = cluster_options(four_stages()).runtime.plan;
    plan.schedule = kind;
    for (const int32_t gap : {kMicroBatches, 2 * kMicroBatches}) {
      plan.gap = gap;
      const auto links = must(edge_links(train, eval, plan, kMicroBatches));
      EXPECT_FALSE(links.empty());
      for (const net::EdgeLink& link : links) {
        EXPECT_EQ(link.activation_credits, kMicroBatches) << static_cast<int>(kind);
        // One: nothing flows back.
        EXPECT_TRUE(link.gradient_credits == kMicroBatches || link.gradient_credits == 1);
      }
    }
  }
}

TEST(Evaluation, AccuracyIsTheShareOfRightClasses) {
  const opdag::Graph train = train_model(), eval = eval_model();
  RandomFeed feed(train);
  auto cluster =
      must(LocalCluster::make(train, eval, cluster_options(four_stages()), random_weights(), feed));
  const double accuracy = must(cluster->evaluate(0, 2)).accuracy;
  const auto state = cluster->state();
  int64_t right = 0;
  for (int32_t m = 0; m < 2; ++m) {
    const at::Tensor x = must(feed.input("x", Split::kEval, 0, m)).to(at::kDouble);
    const at::Tensor h = at::linear(x, state.at("w0"));
    const at::Tensor logits =
        at::linear(at::tanh(at::linear(h, state.at("w1"))) + h, state.at("w2"));
    const at::Tensor y = must(feed.input("y", Split::kEval, 0, m));
    right += logits.argmax(1).eq(y).sum().item<int64_t>();
  }
  EXPECT_DOUBLE_EQ(accuracy, static_cast<double>(right) / 8);
}

// Heads and counters that nothing reads are in the checkpoint, unchanged, under any cut.
TEST(UnreadState, IsKeptAndResumed) {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  const auto aux = b.parameter("aux.weight", {8, 8});
  b.buffer("seen", {}, DType::kInt64);
  b.graph.leaves.back().persistent = true;
  const auto h = b.linear(x, "w0", 8);
  b.output("aux", b.linear(h, aux));
  b.loss(b.mean(b.linear(b.tanh(h), "w1", 8)));
  const opdag::Graph graph = must(opdag::promote_f64(must(opdag::prune_to(must(b.build()), {}))));
  const std::vector<double> even(opdag::cut_units(graph).size(), 1.0);
  RandomFeed feed(graph);
  auto cluster = must(LocalCluster::make(
      graph, must(opdag::derive_eval(graph)),
      cluster_options(must(opdag::split_contiguous(graph, even, 3))), random_weights(), feed));
  const at::Tensor before = cluster->state().at("aux.weight").clone();
  must(cluster->step(0));
  must(cluster->evaluate(0, 1));
  EXPECT_TRUE(cluster->stage(0).state().contains("aux.weight"));
  EXPECT_TRUE(cluster->stage(0).state().contains("seen"));
  EXPECT_FALSE(cluster->stage(1).state().contains("aux.weight"));
  EXPECT_TRUE(at::equal(before, cluster->state().at("aux.weight")));  // no gradient, no decay
  EXPECT_FALSE(cluster->gradients().contains("aux.weight"));
  ASSERT_TRUE(cluster->load_state({{"aux.weight", at::ones({8, 8}, at::kDouble)}}).ok());
  EXPECT_TRUE(at::equal(cluster->state().at("aux.weight"), at::ones({8, 8}, at::kDouble)));
}

// An endpoint whose norms name a weight that cannot be.
class LyingEndpoint final : public net::Endpoint {
 public:
  LyingEndpoint(net::Endpoint& honest, double id) : honest_(honest), id_(id) {}
  Status send(int32_t to_stage, net::Message message) override {
    if (message.key.kind == net::MessageKind::kNorms) {
      message = must(encode_tensor(message.key, at::tensor({0.0, 0.0, id_, 1.0}, at::kDouble),
                                   host_transfer()));
    }
    return honest_.send(to_stage, std::move(message));
  }
  std::optional<net::Message> take(const net::MessageKey& key) override {
    return honest_.take(key);
  }
  Status wait(int32_t timeout_ms) override { return honest_.wait(timeout_ms); }
  Status flush(int32_t timeout_ms) override { return honest_.flush(timeout_ms); }
  void interrupt() override { honest_.interrupt(); }
  net::EndpointStats stats() const override { return honest_.stats(); }

 private:
  net::Endpoint& honest_;
  double id_;
};

TEST(Norms, OfAnUnknownWeightAreRefused) {
  const opdag::Graph graph = must(opdag::promote_f64(must(opdag::testing::chain_graph(2))));
  const std::vector<double> even(opdag::cut_units(graph).size(), 1.0);
  ClusterOptions options = cluster_options(must(opdag::split_contiguous(graph, even, 2)));
  options.runtime.train.clip_norm = 1;
  for (const double id : {-1.0, 0.5, 1e300, std::nan(""), static_cast<double>(INT32_MAX) + 1}) {
    RandomFeed feed(graph);
    net::SimNetwork network(2, {});
    LyingEndpoint liar(network.endpoint(0), id);
    options.runtime.stage = 0;
    auto first = must(StageRuntime::make(graph, {}, options.runtime, random_weights(), liar, feed));
    options.runtime.stage = 1;
    auto last = must(StageRuntime::make(graph, {}, options.runtime, random_weights(),
                                        network.endpoint(1), feed));
    ASSERT_TRUE(first->begin_step(0).ok() && last->begin_step(0).ok());
    Result<Progress> told = Progress::kRan;
    for (int i = 0; i < 1000 && told.ok() && *told != Progress::kDone; ++i) {
      must(first->advance());
      told = last->advance();
      network.deliver_next();
    }
    ASSERT_FALSE(told.ok()) << id;
    EXPECT_EQ(told.error().code, Code::kCorrupt);
  }
}

}  // namespace
}  // namespace weft::executor::testing
