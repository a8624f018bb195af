#include "opdag/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/graph_builder.h"

namespace weft::opdag {
namespace {

using testing::chain_graph;
using ::testing::ElementsAre;
using testing::GraphBuilder;
using ::testing::HasSubstr;

TEST(Graph, ValidateFillsDerivedFields) {
  const auto graph = testing::twin_tower_graph();
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  for (const Node& node : graph->nodes) {
    EXPECT_EQ(&graph->nodes[static_cast<size_t>(graph->node_index(node.id))], &node);
    for (ValueId id : node.outputs) EXPECT_EQ(graph->value(id).producer, node.id);
  }
  EXPECT_THAT(graph->value(graph->find_leaf("tower.0")->value).consumers, ElementsAre(0, 3));
  EXPECT_EQ(graph->node_index(1000), kNone);
  EXPECT_EQ(graph->leaf_of(graph->find_leaf("left")->value)->target, "left");
}

TEST(Graph, PartsOfAListBelongToItsNode) {
  GraphBuilder b;
  const auto parts = b.split2(b.input("x", {4, 8}));
  b.loss(b.mean(b.cat({parts[1], parts[0]})));
  const auto graph = b.build();
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  for (ValueId part : parts) {
    EXPECT_EQ(graph->value(part).producer, 0);
    EXPECT_THAT(graph->value(part).consumers, ElementsAre(1));
  }
}

TEST(Graph, InputsKeepOrderAndRepeats) {
  Node node;
  node.arguments = {{"a", ValueArg{3}},
                    {"b", ValueListArg{{1, kNone, 3}}},
                    {"c", IntListArg{{{5, kNone}, {0, 2}}}}};
  EXPECT_THAT(inputs_of(node), ElementsAre(3, 1, 3, 2));
}

TEST(Graph, StridedExtent) {
  EXPECT_EQ(strided_extent({2, 3}, {3, 1}), 6);
  EXPECT_EQ(strided_extent({2, 0}, {3, 1}), 0);
  EXPECT_EQ(strided_extent({}, {}), 1);
  EXPECT_FALSE(strided_extent({2}, {-1}));
  EXPECT_FALSE(strided_extent({int64_t{1} << 40, 2}, {int64_t{1} << 40, 1}));
}

TEST(Graph, RefusesWhatIsNoGraph) {
  const Graph good = *chain_graph(2);
  const std::vector<std::pair<const char*, std::function<void(Graph&)>>> cases = {
      {"has id", [](Graph& g) { g.values[1].id = 0; }},
      {"no usable name", [](Graph& g) { g.values[1].name = "a\nb"; }},
      {"sizes and", [](Graph& g) { g.values[1].meta.strides.pop_back(); }},
      {"impossible", [](Graph& g) { g.values[1].meta.sizes[0] = -1; }},
      {"impossible", [](Graph& g) { g.values[1].meta.strides[0] = INT64_MAX; }},
      {"id of an earlier", [](Graph& g) { g.nodes[1].id = 0; }},
      {"too large", [](Graph& g) { g.nodes[1].id = INT32_MAX; }},
      {"negative id", [](Graph& g) { g.nodes[1].id = -5; }},
      {"nothing before it", [](Graph& g) { std::swap(g.nodes[0], g.nodes[1]); }},
      {"nothing before it", [](Graph& g) { g.nodes[0].arguments[0].value = ValueArg{99}; }},
      {"already defined", [](Graph& g) { g.nodes[1].outputs = g.nodes[0].outputs; }},
      {"repeated argument", [](Graph& g) { g.nodes[0].arguments[1].name = "input"; }},
      {"called 'w0'", [](Graph& g) { g.leaves[2].target = "w0"; }},
      {"unusable weight path", [](Graph& g) { g.leaves[1].weight.path = "../secret"; }},
      {"has 12 bytes", [](Graph& g) { g.leaves[1].weight.bytes = 12; }},
      {"made by nothing", [](Graph& g) { g.outputs[0].value = 1000; }},
      {"does not exist", [](Graph& g) { g.loss_output = 7; }},
      {"no floating scalar", [](Graph& g) { g.outputs[0].value = g.nodes[0].outputs[0]; }},
      {"buffer update",
       [](Graph& g) {
         g.buffer_updates = {{"w0", 1}};
       }},
      {"atomic group", [](Graph& g) { g.nodes[0].atomic_group = -3; }},
  };
  for (const auto& [message, change] : cases) {
    Graph graph = good;
    change(graph);
    const Status status = validate(graph);
    ASSERT_FALSE(status.ok()) << message;
    if (std::string(message) != "no floating scalar") {
      EXPECT_THAT(status.error().message, HasSubstr(message));
    }
  }
}

TEST(Graph, RefusesOperatorsOffTheList) {
  Graph graph = *chain_graph(2);
  graph.nodes[1].op = "aten::nonzero";
  EXPECT_TRUE(validate_structure(graph).ok());
  const Status status = validate(graph);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kRefused);
  EXPECT_EQ(status.error().op, "aten::nonzero");
}

TEST(Graph, TiedLeavesMustShareTheirWeight) {
  Graph graph = *testing::tied_skip_graph();
  for (Leaf& leaf : graph.leaves) {
    if (leaf.target == "head") leaf.weight.path = "data/weights/other";
  }
  EXPECT_THAT(validate(graph).error().message, HasSubstr("are tied"));
}

TEST(Graph, RandomGraphsAreValid) {
  Rng rng(5);
  for (int i = 0; i < 50; ++i) {
    const auto graph = testing::random_graph(rng, 5 + i);
    ASSERT_TRUE(graph.ok()) << graph.error().text();
  }
}

}  // namespace
}  // namespace weft::opdag
