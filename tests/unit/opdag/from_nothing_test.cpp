// What a graph computes from nothing: which nodes that are, and that no cut sends what they make
// though every stage has all it needs.
#include "opdag/from_nothing.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "opdag/cut.h"
#include "opdag/op_table.h"
#include "opdag/text.h"
#include "tests/support/graph_builder.h"
#include "tests/support/must.h"

namespace weft::opdag {
namespace {

using executor::testing::must;
using testing::GraphBuilder;

IntListArg sizes_arg(const Sizes& sizes) {
  IntListArg list;
  for (int64_t size : sizes) list.items.push_back({size, kNone});
  return list;
}

// A buffer that is in no checkpoint.
ValueId table(GraphBuilder& b, const std::string& name, Sizes sizes) {
  const ValueId id = b.buffer(name, std::move(sizes));
  b.graph.leaves.back().persistent = false;
  return id;
}

ValueId arange(GraphBuilder& b, int64_t end) {
  return b.op("aten::arange", {{"end", end}}, {end}, DType::kInt64);
}

// [length, length], true where a row sees a column: three nodes.
ValueId causal_mask(GraphBuilder& b, int64_t length) {
  const ValueId ids = arange(b, length);
  const ValueId rows = b.op("aten::unsqueeze", {{"self", ValueArg{ids}}, {"dim", int64_t{1}}},
                            {length, 1}, DType::kInt64);
  return b.op("aten::le.Tensor", {{"self", ValueArg{ids}}, {"other", ValueArg{rows}}},
              {length, length}, DType::kBool);
}

// Of the value that a node makes.
bool found(const Graph& graph, ValueId value) {
  return nodes_from_nothing(
      graph)[static_cast<size_t>(graph.node_index(graph.value(value).producer))];
}

// Four layers on [8, 8] that read one mask, of which each hides what it may not see.
Graph masked_layers(int layers = 4) {
  GraphBuilder b;
  ValueId x = b.input("x", {8, 8});
  const ValueId mask = causal_mask(b, 8), fill = b.constant("fill", {});
  for (int i = 0; i < layers; ++i) {
    const ValueId seen = b.op(
        "aten::where.self",
        {{"condition", ValueArg{mask}}, {"self", ValueArg{x}}, {"other", ValueArg{fill}}}, {8, 8});
    x = b.tanh(b.linear(seen, "w" + std::to_string(i), 8));
  }
  b.loss(b.mean(x));
  return must(b.build());
}

TEST(FromNothing, LiteralsConstantsAndBuffersThatStay) {
  GraphBuilder b;
  const ValueId mask = causal_mask(b, 8);
  const ValueId scaled = b.mul(table(b, "scale", {4, 8}), b.constant("one", {4, 8}));
  const auto parts = b.split2(scaled);
  const ValueId idle =
      b.op("aten::dropout", {{"input", ValueArg{parts[0]}}, {"p", 0.5}, {"train", false}}, {4, 4});
  const ValueId x = b.mul(b.input("x", {4, 4}), idle);
  const ValueId w = b.linear(x, "w", 4);
  b.loss(b.mean(w));
  b.output("mask", mask);
  const Graph graph = must(b.build());
  for (ValueId value : {mask, scaled, parts[0], parts[1], idle}) EXPECT_TRUE(found(graph, value));
  for (ValueId value : {x, w}) EXPECT_FALSE(found(graph, value));
}

TEST(FromNothing, NothingOfInputsParametersOrChance) {
  GraphBuilder b;
  const ValueId x = b.input("x", {4, 8}), frozen = b.parameter("frozen", {4, 8}, false);
  const ValueId constant = b.constant("one", {4, 8});
  const ValueId like = b.op("aten::zeros_like", {{"self", ValueArg{x}}}, {4, 8});
  const ValueId weight = b.mul(frozen, constant);
  const ValueId dropped = b.dropout(constant);
  const ValueId drawn = b.op("aten::rand", {{"size", sizes_arg({4, 8})}}, {4, 8});
  ValueId sum = x;
  for (ValueId value : {like, weight, dropped, drawn}) sum = b.add(sum, value);
  b.loss(b.mean(sum));
  const Graph graph = must(b.build());
  for (ValueId value : {like, weight, dropped, drawn}) {
    EXPECT_FALSE(found(graph, value))
        << graph.nodes[static_cast<size_t>(graph.node_index(graph.value(value).producer))].op;
  }
}

TEST(FromNothing, NoBufferThatIsWrittenOrStored) {
  GraphBuilder b;
  const ValueId x = b.input("x", {4, 8});
  const ValueId mean = table(b, "mean", {8}), var = table(b, "var", {8});
  const ValueId stored = b.relu(b.buffer("stored", {8}));
  const ValueId count = table(b, "count", {8}), alias = table(b, "alias", {8});
  b.graph.leaves.back().weight = b.graph.leaves[b.graph.leaves.size() - 2].weight;
  const ValueId of_mean = b.relu(mean), of_alias = b.relu(alias);
  const ValueId next = b.add(count, count);
  const ValueId norm = b.op("aten::batch_norm",
                            {{"input", ValueArg{x}},
                             {"running_mean", ValueArg{mean}},
                             {"running_var", ValueArg{var}},
                             {"training", true},
                             {"momentum", 0.1},
                             {"eps", 1e-5},
                             {"cudnn_enabled", true}},
                            {4, 8});
  b.graph.buffer_updates.push_back({"count", next});
  b.loss(b.mean(b.add(b.add(b.add(norm, of_mean), of_alias), stored)));
  const Graph graph = must(b.build());
  for (ValueId value : {of_mean, of_alias, next, stored}) EXPECT_FALSE(found(graph, value));
}

TEST(FromNothing, SumsOfWholeNumbersAreTheSameInAnyOrder) {
  GraphBuilder b;
  const ValueId ids = arange(b, 8), numbers = b.full({8}, 0.1);
  const auto sums = [&](ValueId of, DType dtype) {
    return b.op("aten::cumsum", {{"self", ValueArg{of}}, {"dim", int64_t{0}}}, {8}, dtype);
  };
  const ValueId whole = sums(ids, DType::kInt64), broken = sums(numbers, DType::kFloat32);
  b.output("whole", whole);
  b.output("broken", broken);
  const Graph graph = must(b.build());
  EXPECT_TRUE(found(graph, whole));
  EXPECT_FALSE(found(graph, broken)) << "cumsum of floats differs from run to run on a card";
}

// What is dear to make and small to send is sent; so is what needs a table much larger than itself.
TEST(FromNothing, WhatIsDearerThanSendingItIsSent) {
  GraphBuilder b;
  const ValueId large = b.full({4096, 1024}, 0.5);
  const ValueId mean = b.mean(large);
  const ValueId table = b.constant("table", {4096, 1024});
  const ValueId row =
      b.op("aten::select.int",
           {{"self", ValueArg{table}}, {"dim", int64_t{0}}, {"index", int64_t{3}}}, {1024});
  const ValueId half =
      b.op("aten::slice.Tensor",
           {{"self", ValueArg{table}}, {"dim", int64_t{0}}, {"end", int64_t{2048}}}, {2048, 1024});
  for (ValueId value : {mean, row, half}) b.output("out" + std::to_string(value), value);
  const Graph graph = must(b.build());
  EXPECT_TRUE(found(graph, large));
  EXPECT_FALSE(found(graph, mean));
  EXPECT_FALSE(found(graph, row));
  EXPECT_TRUE(found(graph, half));
}

TEST(FromNothing, AGroupStaysWhole) {
  GraphBuilder b;
  const ValueId one = b.full({4, 8}, 1), two = b.relu(one);
  b.loss(b.mean(b.mul(b.input("x", {4, 8}), two)));
  b.graph.nodes[1].atomic_group = 0;
  const Graph graph = must(b.build());
  EXPECT_TRUE(found(graph, one));
  EXPECT_FALSE(found(graph, two));
}

TEST(FromNothing, OfALongChainTheFirst) {
  GraphBuilder b;
  ValueId value = b.full({2, 2}, 1);
  for (int i = 0; i < kMostFromNothing + 100; ++i) {
    value = b.op("aten::t", {{"self", ValueArg{value}}}, {2, 2});
  }
  b.loss(b.mean(b.mul(b.input("x", {2, 2}), value)));
  const Graph graph = must(b.build());
  const std::vector<bool> from_nothing = nodes_from_nothing(graph);
  EXPECT_EQ(std::count(from_nothing.begin(), from_nothing.end(), true), kMostFromNothing);
  EXPECT_TRUE(from_nothing[kMostFromNothing - 1]);
}

// The mask is no unit, stands with its first reader, and every stage makes it.
TEST(FromNothing, EveryStageMakesItsMask) {
  const Graph graph = masked_layers();
  const auto units = cut_units(graph);
  ASSERT_EQ(units.size(), 13u) << "three nodes a layer and the loss";
  EXPECT_EQ(units[0], (std::vector<int32_t>{0, 1, 2, 3}));
  const Partition cut = must(split_at(graph, {3, 6, 13}));
  const StageGraph stages = must(stage_graph(graph, cut));
  ASSERT_EQ(stages.edges.size(), 2u);
  for (const Edge& edge : stages.edges) {
    EXPECT_TRUE(edge.needs_grad);
    EXPECT_EQ(edge.to, edge.from + 1);
    EXPECT_EQ(edge.bytes, 8 * 8 * 4);
  }
  size_t runs = 0;
  for (int32_t index = 0; index < 3; ++index) {
    const Stage stage = must(extract_stage(graph, cut, index));
    for (int32_t node : {0, 1, 2}) EXPECT_EQ(stage.nodes[static_cast<size_t>(node)], node);
    EXPECT_TRUE(std::count(stage.leaves.begin(), stage.leaves.end(), 1)) << "the constant";
    runs += stage.nodes.size();
  }
  EXPECT_EQ(runs, graph.nodes.size() + 2 * 3);
}

// Nobody waits for a stage because of a mask, so that any stage may be its home.
TEST(FromNothing, ItsOwnStageMayStandBehindItsReaders) {
  const Graph graph = masked_layers(2);
  Partition cut = must(split_at(graph, {3, 7}));
  for (int32_t node : {0, 1, 2}) cut.stage_of[static_cast<size_t>(node)] = 1;
  EXPECT_TRUE(check_partition(graph, cut).ok());
  EXPECT_EQ(must(stage_graph(graph, cut)).edges.size(), 1u);
  EXPECT_EQ(must(extract_stage(graph, cut, 0)).nodes.size(), 6u);
}

// A value as the text of all that it is computed from, hashed.
using Meanings = std::map<ValueId, size_t>;

void run(const Graph& graph, int32_t position, Meanings& known) {
  const Node& node = graph.nodes[static_cast<size_t>(position)];
  std::string text = node.op + (draws_random(node) ? std::to_string(node.id) : "");
  for (const NamedArgument& argument : node.arguments) {
    text += " " + argument.name + std::to_string(argument.value.index());
    if (const auto* number = std::get_if<double>(&argument.value)) text += std::to_string(*number);
    if (const auto* whole = std::get_if<int64_t>(&argument.value)) text += std::to_string(*whole);
  }
  for (ValueId id : inputs_of(node)) {
    RC_ASSERT(known.contains(id));
    text += " " + std::to_string(known.at(id));
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const Value& value = graph.value(node.outputs[i]);
    known[value.id] = std::hash<std::string>()(text + " -> " + std::to_string(i));
    for (size_t k = 0; k < value.elements.size(); ++k) {
      known[value.elements[k]] =
          std::hash<std::string>()(text + " -> " + std::to_string(i) + "." + std::to_string(k));
    }
  }
}

Meanings run_all(const Graph& graph) {
  Meanings known;
  for (const Leaf& leaf : graph.leaves) known[leaf.value] = std::hash<std::string>()(leaf.target);
  for (size_t i = 0; i < graph.nodes.size(); ++i) run(graph, static_cast<int32_t>(i), known);
  return known;
}

// By value: whether constants and buffers are all it comes from.
std::vector<bool> from_constants(const Graph& graph) {
  std::vector<bool> result(graph.values.size(), false);
  for (const Leaf& leaf : graph.leaves) {
    result[static_cast<size_t>(leaf.value)] =
        leaf.kind == LeafKind::kConstant || (leaf.kind == LeafKind::kBuffer && !leaf.persistent);
  }
  for (const Node& node : graph.nodes) {
    bool all = !draws_random(node) && node.atomic_group == kNone;
    for (ValueId id : inputs_of(node)) all = all && result[static_cast<size_t>(id)];
    for (ValueId id : node.outputs) {
      result[static_cast<size_t>(id)] = all;
      for (ValueId part : graph.value(id).elements) result[static_cast<size_t>(part)] = all;
    }
  }
  return result;
}

RC_GTEST_PROP(FromNothingProperty, StagesComputeTheWholeAndSendNoneOfIt, (uint64_t seed)) {
  Rng rng(seed);
  const Graph graph = must(testing::random_graph(rng, 24));
  const auto most = std::min<uint64_t>(5, cut_units(graph).size());
  const auto stages = static_cast<int32_t>(1 + rng.below(most));
  const Partition cut = must(random_partition(graph, stages, rng));
  const Meanings whole = run_all(graph);
  const std::vector<bool> constant = from_constants(graph);
  std::map<int32_t, size_t> sent;
  for (int32_t index = 0; index < stages; ++index) {
    const Stage stage = must(extract_stage(graph, cut, index));
    Meanings known;
    for (int32_t leaf : stage.leaves) {
      const Leaf& own = graph.leaves[static_cast<size_t>(leaf)];
      known[own.value] = std::hash<std::string>()(own.target);
    }
    for (const Edge& edge : stage.inputs) {
      RC_ASSERT(!constant[static_cast<size_t>(edge.value)]);
      known[edge.value] = sent.at(edge.id);
    }
    for (int32_t node : stage.nodes) run(graph, node, known);
    for (const auto& [value, meaning] : known) RC_ASSERT(whole.at(value) == meaning);
    for (const Edge& edge : stage.outputs) sent[edge.id] = known.at(edge.value);
    for (int32_t output : stage.graph_outputs) {
      RC_ASSERT(known.contains(graph.outputs[static_cast<size_t>(output)].value));
    }
  }
}

}  // namespace
}  // namespace weft::opdag
