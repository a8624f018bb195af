#include "broker/planner/cost.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "broker/planner/chain.h"
#include "tests/support/graph_builder.h"
#include "tests/unit/broker/graphs.h"

namespace weft::broker {
namespace {

using opdag::ValueArg;
using opdag::testing::GraphBuilder;
using testing::chain_graph;
using testing::chain_spec;

TEST(ValueBytes, CountsWhatAutocastMakesOfAValue) {
  GraphBuilder b;
  const auto x = b.input("x", {4, 16});
  const auto w = b.parameter("w", {16, 16});
  const auto n = b.parameter("n", {16});
  const auto linear =
      b.op("aten::linear", {{"input", ValueArg{x}}, {"weight", ValueArg{w}}}, {4, 16});
  const auto norm =
      b.op("aten::layer_norm", {{"input", ValueArg{linear}}, {"weight", ValueArg{n}}}, {4, 16});
  const auto half = b.op("aten::relu", {{"self", ValueArg{linear}}}, {4, 16});
  const auto sum =
      b.op("aten::add.Tensor", {{"self", ValueArg{half}}, {"other", ValueArg{norm}}}, {4, 16});
  const auto at = [](const ValueBytes& bytes, opdag::ValueId id) {
    return bytes.sent[static_cast<size_t>(id)];
  };
  const double elements = 4 * 16;
  const ValueBytes bf16 = value_bytes(b.graph, job::Precision::kBf16);
  EXPECT_EQ(at(bf16, linear), 2 * elements);
  EXPECT_EQ(at(bf16, half), 2 * elements) << "what follows keeps its arguments' type";
  EXPECT_EQ(at(bf16, norm), 4 * elements) << "autocast runs it in float32";
  EXPECT_EQ(at(bf16, sum), 4 * elements) << "the widest argument decides";
  EXPECT_EQ(at(value_bytes(b.graph, job::Precision::kFp16), linear), 2 * elements);
  EXPECT_EQ(at(value_bytes(b.graph, job::Precision::kFp32), linear), 4 * elements);
  EXPECT_EQ(at(value_bytes(b.graph, job::Precision::kFp64), linear), 8 * elements);
  // Autocast keeps a half copy of the weight and of the wider input for the backward.
  const auto stash = node_stash(b.graph, job::Precision::kBf16, bf16);
  EXPECT_EQ(stash[0], 2 * elements + 2 * 16 * 16 + 2 * elements);
  EXPECT_EQ(
      node_stash(b.graph, job::Precision::kFp32, value_bytes(b.graph, job::Precision::kFp32))[0],
      4 * elements);
}

// Whatever the table says may alias: only what cannot make memory is a view.
TEST(NodeStash, CountsWhatIsMadeUnderTheNameOfAView) {
  GraphBuilder b;
  const auto x = b.input("x", {4, 16});
  const auto view = b.op("aten::view", {{"self", ValueArg{x}}}, {64});
  const auto wide = b.op("aten::to.dtype", {{"self", ValueArg{x}}}, {4, 16});
  b.graph.values[static_cast<size_t>(wide)].meta.dtype = DType::kFloat64;
  b.op("aten::to.dtype", {{"self", ValueArg{x}}}, {4, 16});  // to what it is
  b.op("aten::einsum", {{"self", ValueArg{x}}}, {4, 4});
  b.op("aten::dropout", {{"input", ValueArg{x}}, {"p", 0.5}, {"train", true}}, {4, 16});
  b.op("aten::dropout", {{"input", ValueArg{x}}, {"p", 0.5}, {"train", false}}, {4, 16});
  b.op("aten::max_pool2d", {{"self", ValueArg{view}}}, {8});
  const auto stash =
      node_stash(b.graph, job::Precision::kFp32, value_bytes(b.graph, job::Precision::kFp32));
  EXPECT_EQ(stash, (std::vector<double>{0, 8 * 64, 0, 4 * 16, 4 * 64, 0, (4 + 8) * 8}));
}

TEST(ValueBytes, AnExpandedDimensionIsSentOnce) {
  GraphBuilder b;
  const auto x = b.input("x", {1, 16});
  const auto wide = b.op("aten::expand", {{"self", ValueArg{x}}}, {64, 16});
  b.graph.values[static_cast<size_t>(wide)].meta.strides = {0, 1};
  const ValueBytes bytes = value_bytes(b.graph, job::Precision::kFp32);
  EXPECT_EQ(bytes.sent[static_cast<size_t>(wide)], 64);
  EXPECT_EQ(bytes.kept[static_cast<size_t>(wide)], 64 * 64);
}

// Where forwards run again, passes are not captured, and between the parts of a split backward only
// what nodes with weights read, make and get back stays; all of it where no gradient flows on.
TEST(EstimateStages, MicroBatchesThatAreRecomputedShareWhatASplitBackwardFrees) {
  constexpr double kValue = 4 * 256 * 16;  // bytes of x and of each layer's result
  constexpr double kWeight = 4 * 16 * 16, kLoss = 4;
  const auto shared = [](const opdag::Graph& of, std::vector<int32_t> ends) {
    const job::JobSpec spec = chain_spec(256);
    if (ends.empty()) ends = {static_cast<int32_t>(opdag::cut_units(of).size())};
    const auto partition = opdag::split_at(of, ends);
    EXPECT_TRUE(partition.ok());
    return estimate_stages(of, GraphCosts(of, spec.train.precision), spec, *partition)
        ->shared_bytes;
  };
  const opdag::Graph graph = chain_graph(3, 256, 16);
  const auto units = static_cast<int32_t>(opdag::cut_units(graph).size());
  // A layer leaves its argument, its weight and its result's gradient; for a moment there are two
  // gradients of both values.
  const double layer = 2 * kValue + kWeight, moment = 4 * kValue;
  const std::vector<double> two = shared(graph, {2, units});
  EXPECT_EQ(two[0], 2 * kValue + moment - 2 * layer);
  EXPECT_EQ(two[1], 2 * kValue + kLoss + moment - layer);
  EXPECT_EQ(shared(graph, {}), (std::vector<double>{3 * kValue + kLoss + moment - 3 * layer}));

  const auto net = [](bool cut, auto add) {
    GraphBuilder b;
    auto x = b.linear(b.input("x", {256, 16}), b.parameter("first", {16, 16}));
    if (cut) x = b.linear(x, b.parameter("second", {16, 16}));
    b.loss(b.mean(add(b, x)));
    auto built = b.build();
    EXPECT_TRUE(built.ok());
    return std::move(built).value();
  };
  const auto by_view = net(false, [](GraphBuilder& b, opdag::ValueId x) {
    const auto turned =
        b.op("aten::t", {{"self", ValueArg{b.parameter("weight", {16, 16})}}}, {16, 16});
    return b.op("aten::mm", {{"self", ValueArg{x}}, {"mat2", ValueArg{turned}}}, {256, 16});
  });
  EXPECT_EQ(shared(by_view, {}),
            (std::vector<double>{2 * kValue + kLoss + moment + 2 * kWeight - 2 * layer - kWeight}))
      << "mm reads a view of its weight, and makes its gradient";
  // A weight that is computed is one, too.
  const auto by_sum = net(true, [](GraphBuilder& b, opdag::ValueId x) {
    const auto more =
        b.op("aten::mul.Scalar",
             {{"self", ValueArg{b.parameter("weight", {16, 16})}}, {"other", 2.0}}, {16, 16});
    return b.op("aten::mm", {{"self", ValueArg{x}}, {"mat2", ValueArg{more}}}, {256, 16});
  });
  const auto plain = net(true, [](GraphBuilder& b, opdag::ValueId x) {
    return b.op("aten::relu", {{"self", ValueArg{x}}}, {256, 16});
  });
  const auto of_last = [&](const opdag::Graph& of) {
    return shared(of, {1, static_cast<int32_t>(opdag::cut_units(of).size())}).back();
  };
  EXPECT_LT(of_last(by_sum), of_last(plain) - 1.9 * kValue);
}

// Autograd makes and keeps gradients of all weights in the first part.
TEST(EstimateStages, WhereAutogradRunsBackwardsNothingIsShared) {
  opdag::Graph graph = chain_graph(4, 64, 16);
  const job::JobSpec spec = chain_spec(64);
  const auto units = static_cast<int32_t>(opdag::cut_units(graph).size());
  const auto shared = [&] {
    const auto partition = opdag::split_at(graph, {2, units});
    return estimate_stages(graph, GraphCosts(graph, spec.train.precision), spec, *partition)
        ->shared_bytes;
  };
  EXPECT_GT(shared()[1], 0);
  graph.nodes.back().atomic_group = 1;
  EXPECT_EQ(shared()[1], 0);
  EXPECT_GT(shared()[0], 0);
}

TEST(MemoryOf, ARecomputedMicroBatchBesideOthersSharesWhatItMay) {
  PipelineStage stage{0, 1, 1, 100, 50, 5, true};
  stage.shared_bytes = 20;
  const job::ScheduleOptions plain{job::PipelineSchedule::k1F1B, 8, 1};
  job::ScheduleOptions split = plain;
  split.kind = job::PipelineSchedule::kZbH1;
  EXPECT_EQ(memory_of(stage, plain, 2, 3), 100 + 50 + 5 * (job::in_flight_of(plain, 2, 3) - 1));
  const int32_t in_flight = job::in_flight_of(split, 2, 3),
                recorded = job::recorded_of(split, 2, 3);
  ASSERT_GT(recorded, 1);
  EXPECT_EQ(memory_of(stage, split, 2, 3),
            100 + 50 * recorded - 20 * (recorded - 1) + 5 * (in_flight - recorded));
  stage.recompute = false;
  EXPECT_EQ(memory_of(stage, split, 2, 3), 100 + 50 * in_flight);
}

TEST(EstimateStages, SendsHalfUnderBf16) {
  const opdag::Graph graph = chain_graph(4, 4, 16);
  job::JobSpec spec = chain_spec(16);
  const auto partition = opdag::split_at(graph, {2, 5});
  ASSERT_TRUE(partition.ok());
  const auto bytes = [&](job::Precision precision) {
    spec.train.precision = precision;
    return estimate_stages(graph, GraphCosts(graph, spec.train.precision), spec, *partition)
        ->graph.edges.at(0)
        .bytes;
  };
  EXPECT_EQ(bytes(job::Precision::kFp32), 4 * 16 * 4);
  EXPECT_EQ(bytes(job::Precision::kBf16), 4 * 16 * 2);
  EXPECT_EQ(bytes(job::Precision::kFp16), 4 * 16 * 2);
  EXPECT_EQ(bytes(job::Precision::kFp64), 4 * 16 * 8);
}

TEST(SecondsOf, AddsOperatorsArithmeticAndMemory) {
  job::Work work;
  work.of(job::OpClass::kMatrix) = {10, 4e9, 8e9, 1e9, 1e9};
  const auto at = [&](const PlannerPeer& peer) {
    return seconds_of(work, peer, job::Precision::kFp32);
  };
  const job::PassSeconds plain = at({"p", 1, 0, 2});
  EXPECT_DOUBLE_EQ(plain.forward, 2);
  EXPECT_DOUBLE_EQ(plain.backward, 4);
  const job::PassSeconds whole = at({"p", 1, 0, 2, 5, 1000});
  EXPECT_DOUBLE_EQ(whole.forward, 2 + 0.2 + 0.01);
  EXPECT_DOUBLE_EQ(whole.backward, 4 + 2 * (0.2 + 0.01));
  EXPECT_GT(at({"p"}).forward, 0) << "of unknown speed";
}

job::DeviceProfile profile(double matrix_gflops, double norm_gbyte_s) {
  job::DeviceProfile p;
  p.fp32.costs = job::plain_costs(1e-9 / matrix_gflops, 1e-9 / norm_gbyte_s, 0);
  p.bf16.costs = job::plain_costs(1e-9 / matrix_gflops / 8, 1e-9 / norm_gbyte_s / 2, 0);
  return p;
}

TEST(SecondsOf, TakesTheProfilesClassAndPrecision) {
  job::Work work;
  work.of(job::OpClass::kMatrix) = {1, 4e9, 8e9, 0, 0};
  work.of(job::OpClass::kNorm) = {1, 0, 0, 1e9, 1e9};
  job::DeviceProfile measured = profile(4, 1);
  measured.fp32.costs[static_cast<size_t>(job::OpClass::kNorm)].backward.byte_s = 3e-9;
  PlannerPeer peer{"p"};
  peer.profile = std::make_shared<const job::DeviceProfile>(measured);
  EXPECT_TRUE(peer.speed_known());
  EXPECT_DOUBLE_EQ(seconds_of(work, peer, job::Precision::kFp32).forward, 1 + 1);
  EXPECT_DOUBLE_EQ(seconds_of(work, peer, job::Precision::kFp32).backward, 2 + 3);
  EXPECT_DOUBLE_EQ(seconds_of(work, peer, job::Precision::kBf16).forward, 1.0 / 8 + 1.0 / 2);
  peer.correction = 1.5;
  EXPECT_DOUBLE_EQ(seconds_of(work, peer, job::Precision::kFp32).forward, 3);
  peer.gflops = 8;  // written down by the operator
  peer.correction = 1;
  EXPECT_DOUBLE_EQ(seconds_of(work, peer, job::Precision::kFp32).forward, 0.5);
}

// What the search believes of a run is what the graph says of the stage.
RC_GTEST_PROP(ChainProperty, AgreesWithTheStagesOfTheGraph, (uint64_t seed)) {
  Rng rng(seed);
  const auto made = opdag::testing::random_graph(rng, 20);
  RC_PRE(made.ok());
  const opdag::Graph& graph = *made;
  // Leaves that nothing reads have a home of their own; a weight that is frozen under one of its
  // names counts as trained everywhere.
  for (const opdag::Leaf& leaf : graph.leaves) {
    if (graph.value(leaf.value).consumers.empty()) return;
    for (const opdag::Leaf& other : graph.leaves) {
      if (leaf.tied_group != opdag::kNone && leaf.tied_group == other.tied_group &&
          leaf.trainable != other.trainable) {
        return;
      }
    }
  }
  job::JobSpec spec = chain_spec(4);
  spec.train.precision = *rc::gen::element(job::Precision::kFp32, job::Precision::kBf16);
  const GraphChain chain =
      chain_of(graph, GraphCosts(graph, spec.train.precision), spec.train, {{"p"}});
  const int32_t units = chain.problem.chain.units;
  if (units < 3) return;
  const auto a = static_cast<int32_t>(1 + rng.below(static_cast<uint64_t>(units - 2)));
  const auto b = static_cast<int32_t>(static_cast<uint64_t>(a) + 1 +
                                      rng.below(static_cast<uint64_t>(units - a - 1)));
  const std::vector<int32_t> ends = {a, b, units};
  const auto partition = opdag::split_at(graph, ends);
  RC_ASSERT(partition.ok());
  // Only where nothing followed its users: then stages are runs of units.
  const auto sets = opdag::cut_units(graph);
  for (int32_t unit = 0; unit < units; ++unit) {
    const int32_t stage = unit < a ? 0 : unit < b ? 1 : 2;
    for (const int32_t node : sets[static_cast<size_t>(unit)]) {
      if (partition->stage_of[static_cast<size_t>(node)] != stage) return;
    }
  }
  const auto costs =
      estimate_stages(graph, GraphCosts(graph, spec.train.precision), spec, *partition);
  RC_ASSERT(costs.ok());
  int32_t begin = 0;
  for (size_t s = 0; s < ends.size(); ++s) {
    const size_t run = chain.problem.chain.at(begin, ends[s]);
    RC_ASSERT(std::abs(chain.problem.chain.fixed_bytes[run] - costs->fixed_bytes[s]) < 1);
    RC_ASSERT(std::abs(chain.problem.chain.shard_bytes[run] - costs->shard_bytes[s]) < 1);
    RC_ASSERT(chain.problem.chain.stash_bytes[run] <= costs->stash_bytes[s] + 1);
    RC_ASSERT(chain.problem.chain.shared_bytes[run] <= chain.problem.chain.stash_bytes[run]);
    RC_ASSERT(chain.problem.chain.shared_bytes[run] <= costs->shared_bytes[s] + 1);
    begin = ends[s];
  }
  // Every live edge counts at each cut it crosses.
  for (const int32_t cut : {0, 1}) {
    double crossing = 0;
    std::set<opdag::ValueId> counted;
    for (const opdag::Edge& edge : costs->graph.edges) {
      if (edge.from <= cut && edge.to > cut && counted.insert(edge.value).second) {
        crossing += static_cast<double>(edge.bytes);
      }
    }
    const auto at = static_cast<size_t>(ends[static_cast<size_t>(cut)]);
    RC_ASSERT(chain.problem.chain.forward_bytes[at] <= crossing + 1);
  }
}

TEST(Chain, LongGraphsAreThinnedWhereFewBytesCross) {
  const opdag::Graph graph = chain_graph(600, 4, 8);
  const GraphChain chain =
      chain_of(graph, GraphCosts(graph, job::Precision::kFp32), chain_spec(4).train, {{"p"}}, 50);
  EXPECT_LE(chain.problem.chain.units, 50);
  EXPECT_GT(chain.problem.chain.units, 40);
  EXPECT_EQ(chain.cuts.front(), 0);
  EXPECT_EQ(chain.cuts.back(), 601);
  for (size_t c = 1; c < chain.cuts.size(); ++c) EXPECT_GT(chain.cuts[c], chain.cuts[c - 1]);
}

}  // namespace
}  // namespace weft::broker
