#include "opdag/functional.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "opdag/functional_alias.h"
#include "tests/support/graph_builder.h"

namespace weft::opdag {
namespace {

using ::testing::ElementsAre;
using testing::GraphBuilder;
using testing::Sizes;

std::vector<std::string> ops(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes) names.push_back(node.op.substr(6));
  return names;
}

Graph functional(GraphBuilder& b) {
  Graph graph = b.graph;
  EXPECT_TRUE(validate_structure(graph).ok());
  EXPECT_TRUE(make_functional(graph, static_cast<NodeId>(graph.nodes.size())).ok());
  group_written_buffers(graph);
  const Status status = validate(graph);
  EXPECT_TRUE(status.ok()) << status.error().text();
  return graph;
}

bool any_group(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [](const Node& node) { return node.atomic_group != kNone; });
}

ValueId mul_(GraphBuilder& b, ValueId x) {
  return b.op("aten::mul_.Tensor", {{"self", ValueArg{x}}, {"other", 2.0}}, b.sizes_of(x));
}
ValueId slice(GraphBuilder& b, ValueId x) {
  const ValueId id =
      b.op("aten::slice.Tensor",
           {{"self", ValueArg{x}}, {"dim", int64_t{1}}, {"start", int64_t{0}}, {"end", int64_t{4}}},
           {4, 4});
  b.graph.values.back().meta.strides = {8, 1};
  return id;
}

TEST(Functional, KnowsInPlaceNames) {
  EXPECT_TRUE(is_in_place("aten::relu_"));
  EXPECT_TRUE(is_in_place("aten::add_.Tensor"));
  EXPECT_TRUE(is_in_place("aten::__iand__.Tensor"));
  EXPECT_FALSE(is_in_place("aten::__and__.Tensor"));
  EXPECT_FALSE(is_in_place("aten::relu"));
}

TEST(Functional, ReadsBeforeAndAfterAWrite) {
  GraphBuilder b;
  const ValueId x = b.tanh(b.input("x", {4, 8}));
  const ValueId before = b.relu(x);
  mul_(b, x);
  b.loss(b.mean(b.add(x, before)));
  const Graph graph = functional(b);
  EXPECT_THAT(ops(graph), ElementsAre("tanh", "relu", "mul.Tensor", "add.Tensor", "mean"));
  EXPECT_EQ(std::get<ValueArg>(*graph.nodes[1].find("self")).id, x);
  EXPECT_EQ(std::get<ValueArg>(*graph.nodes[3].find("self")).id, graph.nodes[2].outputs[0]);
  EXPECT_EQ(graph.nodes[2].id, 2);
  EXPECT_FALSE(any_group(graph));
}

TEST(Functional, AWriteThroughAViewReachesItsBase) {
  GraphBuilder b;
  const ValueId x = b.tanh(b.input("x", {4, 8}));
  mul_(b, slice(b, x));
  b.loss(b.mean(x));
  const Graph graph = functional(b);
  EXPECT_THAT(ops(graph),
              ElementsAre("tanh", "slice.Tensor", "mul.Tensor", "slice_scatter", "mean"));
  EXPECT_EQ(graph.nodes[3].id, 4);  // fresh, after the largest
  EXPECT_EQ(std::get<ValueArg>(*graph.nodes[4].find("self")).id, graph.nodes[3].outputs[0]);
  // The result of mul has no holes, unlike the view it replaces.
  EXPECT_EQ(graph.value(graph.nodes[2].outputs[0]).meta.strides, (Sizes{4, 1}));
}

TEST(Functional, AWriteToTheBaseShowsInItsViews) {
  GraphBuilder b;
  const ValueId x = b.tanh(b.input("x", {4, 8}));
  const ValueId view = slice(b, x);
  const auto parts = b.split2(x);
  mul_(b, x);
  b.loss(b.mean(b.add(b.add(view, parts[0]), parts[1])));
  const Graph graph = functional(b);
  // The old views are gone: nobody reads them.
  EXPECT_THAT(ops(graph), ElementsAre("tanh", "mul.Tensor", "slice.Tensor", "slice.Tensor",
                                      "add.Tensor", "slice.Tensor", "add.Tensor", "mean"));
  EXPECT_FALSE(any_group(graph));
}

TEST(Functional, BuffersBecomeUpdates) {
  GraphBuilder b;
  const ValueId count = b.buffer("count", {}, DType::kInt64);
  const ValueId added = b.op("aten::add_.Tensor",
                             {{"self", ValueArg{count}}, {"other", int64_t{1}}}, {}, DType::kInt64);
  b.loss(b.mean(b.input("x", {4, 8})));
  b.node("aten::copy_", {{"self", ValueArg{count}}, {"src", ValueArg{added}}},
         {b.value({}, DType::kInt64)});
  const Graph graph = functional(b);
  EXPECT_THAT(ops(graph), ElementsAre("add.Tensor", "mean"));
  ASSERT_EQ(graph.buffer_updates.size(), 1u);
  EXPECT_EQ(graph.buffer_updates[0], (BufferUpdate{"count", added}));
}

TEST(Functional, WhatCannotBeProvenIsOneGroup) {
  GraphBuilder b;
  const ValueId x = b.tanh(b.input("x", {4, 8}));
  const ValueId wide =
      b.op("aten::diagonal", {{"self", ValueArg{x}}}, {4});  // no way to write back through it
  b.graph.values.back().meta.strides = {9};
  const ValueId written = mul_(b, wide);
  const ValueId other = b.relu(b.input("y", {4, 8}));
  b.loss(b.mean(b.add(x, other)));
  const Graph graph = functional(b);
  EXPECT_THAT(ops(graph),
              ElementsAre("tanh", "diagonal", "mul_.Tensor", "relu", "add.Tensor", "mean"));
  EXPECT_EQ(graph.nodes[2].outputs[0], written);
  for (size_t i : {0, 1, 2, 4}) EXPECT_EQ(graph.nodes[i].atomic_group, 0) << i;
  for (size_t i : {3, 5}) EXPECT_EQ(graph.nodes[i].atomic_group, kNone) << i;
}

TEST(Functional, TypePromotionAndUserInputsAreNotGuessed) {
  GraphBuilder b;
  const ValueId x = b.tanh(b.input("x", {4, 8}));
  const ValueId wide = b.input("wide", {4, 8}, DType::kFloat64);
  b.op("aten::add_.Tensor", {{"self", ValueArg{x}}, {"other", ValueArg{wide}}}, {4, 8});
  const ValueId y = b.input("y", {4, 8});
  mul_(b, y);
  b.loss(b.mean(b.add(x, y)));
  const Graph graph = functional(b);
  EXPECT_THAT(ops(graph), ElementsAre("tanh", "add_.Tensor", "mul_.Tensor", "add.Tensor", "mean"));
  for (size_t i = 0; i < 4; ++i) EXPECT_NE(graph.nodes[i].atomic_group, kNone) << i;
}

TEST(Functional, SharedStatisticsStayTogether) {
  GraphBuilder b;
  const ValueId mean = b.buffer("mean", {8}), var = b.buffer("var", {8});
  const auto norm = [&](ValueId x) {
    return b.op("aten::batch_norm",
                {{"input", ValueArg{x}},
                 {"weight", NoneArg{}},
                 {"bias", NoneArg{}},
                 {"running_mean", ValueArg{mean}},
                 {"running_var", ValueArg{var}},
                 {"training", true},
                 {"momentum", 0.1},
                 {"eps", 1e-5},
                 {"cudnn_enabled", true}},
                b.sizes_of(x));
  };
  const ValueId x = b.input("x", {4, 8});
  const ValueId first = norm(x);
  const ValueId second = norm(b.tanh(x));
  b.loss(b.mean(b.add(first, second)));
  const Graph graph = functional(b);
  EXPECT_NE(graph.nodes[0].atomic_group, kNone);
  EXPECT_EQ(graph.nodes[0].atomic_group, graph.nodes[2].atomic_group);
  EXPECT_EQ(graph.nodes[1].atomic_group, kNone);
}

TEST(Functional, ViewsAsPyTorchDecides) {
  TensorMeta meta;
  meta.sizes = {2, 3, 4};
  meta.strides = {12, 4, 1};
  EXPECT_TRUE(can_view(meta, {24}));
  EXPECT_TRUE(can_view(meta, {6, 4}));
  EXPECT_TRUE(can_view(meta, {1, 2, 3, 2, 2}));
  EXPECT_FALSE(can_view(meta, {25}));
  meta.strides = {1, 2, 6};  // transposed
  EXPECT_FALSE(can_view(meta, {24}));
  EXPECT_TRUE(can_view(meta, {2, 3, 4, 1}));
  meta.strides = {24, 8, 1};  // rows with holes
  EXPECT_TRUE(can_view(meta, {6, 4}));
  EXPECT_FALSE(can_view(meta, {2, 12}));
  EXPECT_FALSE(is_dense(meta));
  EXPECT_EQ(dense_strides(meta), (Sizes{12, 4, 1}));
}

}  // namespace
}  // namespace weft::opdag
