// Cuts against brute force: reachability by transitive closure, all splits tried.
#include "opdag/cut.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "opdag/cut_flow.h"
#include "opdag/cuts.h"
#include "opdag/from_nothing.h"
#include "tests/support/graph_builder.h"

namespace weft::opdag {
namespace {

using testing::GraphBuilder;

std::map<ValueId, int32_t> producers_of(const Graph& graph) {
  std::map<ValueId, int32_t> producer;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId id : graph.nodes[i].outputs) {
      if (id == kNone) continue;
      producer[id] = static_cast<int32_t>(i);
      for (ValueId part : graph.value(id).elements) producer[part] = static_cast<int32_t>(i);
    }
  }
  return producer;
}

using Matrix = std::vector<std::vector<bool>>;

// Who would send to whom: what is computed from nothing is sent by nobody.
Matrix node_edges(const Graph& graph) {
  const size_t n = graph.nodes.size();
  const std::vector<bool> from_nothing = nodes_from_nothing(graph);
  Matrix edge(n, std::vector<bool>(n, false));
  const auto producer = producers_of(graph);
  for (size_t i = 0; i < n; ++i) {
    for (ValueId id : inputs_of(graph.nodes[i])) {
      const auto found = producer.find(id);
      if (found == producer.end() || from_nothing[static_cast<size_t>(found->second)]) continue;
      edge[static_cast<size_t>(found->second)][i] = true;
    }
  }
  return edge;
}

Matrix closure(Matrix reach) {
  const size_t n = reach.size();
  for (size_t k = 0; k < n; ++k) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; reach[i][k] && j < n; ++j) {
        if (reach[k][j]) reach[i][j] = true;
      }
    }
  }
  return reach;
}

// The definition: every stage convex and not empty, the graph of stages acyclic and numbered in a
// topological order, atomic groups whole. (The random graphs write no buffers.)
bool legal(const Graph& graph, const Partition& partition) {
  const size_t n = graph.nodes.size();
  const auto stages = static_cast<size_t>(partition.stages);
  const auto stage = [&](size_t i) { return static_cast<size_t>(partition.stage_of[i]); };
  const Matrix edge = node_edges(graph), reach = closure(edge);
  std::vector<bool> used(stages, false);
  for (size_t i = 0; i < n; ++i) used[stage(i)] = true;
  if (std::count(used.begin(), used.end(), false) > 0) return false;
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = 0; b < n; ++b) {
      if (graph.nodes[a].atomic_group != kNone &&
          graph.nodes[a].atomic_group == graph.nodes[b].atomic_group && stage(a) != stage(b)) {
        return false;
      }
      for (size_t c = 0; c < n; ++c) {
        if (stage(a) == stage(c) && stage(b) != stage(a) && reach[a][b] && reach[b][c])
          return false;
      }
    }
  }
  Matrix between(stages, std::vector<bool>(stages, false));
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = 0; b < n; ++b) {
      if (edge[a][b] && stage(a) != stage(b)) between[stage(a)][stage(b)] = true;
    }
  }
  for (size_t a = 0; a < stages; ++a) {
    for (size_t b = 0; b <= a; ++b) {
      if (between[a][b]) return false;
    }
  }
  between = closure(between);
  for (size_t a = 0; a < stages; ++a) {
    if (between[a][a]) return false;
  }
  return true;
}

Graph random_graph_of(uint64_t seed, int nodes) {
  Rng rng(seed);
  auto graph = testing::random_graph(rng, nodes);
  RC_ASSERT(graph.ok());
  return std::move(graph).value();
}

RC_GTEST_PROP(Cut, RandomPartitionsAreLegal, (uint64_t seed)) {
  const Graph graph = random_graph_of(seed, 24);
  const auto units = cut_units(graph);
  Rng rng(seed + 1);
  for (int32_t stages = 1; stages <= std::min<int32_t>(6, static_cast<int32_t>(units.size()));
       ++stages) {
    const auto partition = random_partition(graph, stages, rng);
    RC_ASSERT(partition.ok());
    RC_ASSERT(partition->stages == stages);
    RC_ASSERT(legal(graph, *partition));
    RC_ASSERT(check_partition(graph, *partition).ok());
  }
}

RC_GTEST_PROP(Cut, CheckAgreesWithTheDefinition, (uint64_t seed)) {
  const Graph graph = random_graph_of(seed, 8);
  Rng rng(seed);
  // Legal cuts with a few nodes moved: near the border between legal and not.
  for (int round = 0; round < 30; ++round) {
    const auto units = cut_units(graph);
    const auto stages = static_cast<int32_t>(1 + rng.below(std::min<uint64_t>(4, units.size())));
    auto partition = random_partition(graph, stages, rng);
    RC_ASSERT(partition.ok());
    for (uint64_t moves = rng.below(4); moves > 0; --moves) {
      partition->stage_of[rng.below(graph.nodes.size())] =
          static_cast<int32_t>(rng.below(static_cast<uint64_t>(stages)));
    }
    RC_ASSERT(check_partition(graph, *partition).ok() == legal(graph, *partition));
  }
}

RC_GTEST_PROP(Cut, UnitsPartTheNodesInOrder, (uint64_t seed)) {
  const Graph graph = random_graph_of(seed, 20);
  std::set<int32_t> seen;
  std::vector<int32_t> unit_of(graph.nodes.size());
  const auto units = cut_units(graph);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    RC_ASSERT(std::is_sorted(units[unit].begin(), units[unit].end()));
    for (int32_t node : units[unit]) {
      RC_ASSERT(seen.insert(node).second);
      unit_of[static_cast<size_t>(node)] = static_cast<int32_t>(unit);
    }
  }
  RC_ASSERT(seen.size() == graph.nodes.size());
  // One unit a stage is itself a legal cut. Without a group every node is a unit, but for those
  // that are computed from nothing, which stand with a reader.
  RC_ASSERT(legal(graph, {static_cast<int32_t>(units.size()), unit_of}));
  if (std::all_of(graph.nodes.begin(), graph.nodes.end(),
                  [](const Node& node) { return node.atomic_group == kNone; })) {
    const std::vector<bool> from_nothing = nodes_from_nothing(graph);
    const Flow flow(graph);
    size_t alone = 0;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const bool unread = flow.successors[i].empty();
      if (!from_nothing[i] || unread) ++alone;
      RC_ASSERT(
          !from_nothing[i] || unread ||
          std::any_of(flow.successors[i].begin(), flow.successors[i].end(), [&](int32_t user) {
            return unit_of[static_cast<size_t>(user)] == unit_of[i];
          }));
    }
    RC_ASSERT(units.size() == alone);
  }
}

double largest_load(const std::vector<std::vector<int32_t>>& units,
                    const std::vector<double>& weights, const Partition& partition) {
  std::vector<double> load(static_cast<size_t>(partition.stages), 0);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    load[static_cast<size_t>(partition.stage_of[static_cast<size_t>(units[unit][0])])] +=
        weights[unit];
  }
  return *std::max_element(load.begin(), load.end());
}

// Least largest run over all borders, by trying every one.
double brute_force(const std::vector<double>& weights, size_t from, int32_t stages) {
  if (stages == 1) {
    double sum = 0;
    for (size_t i = from; i < weights.size(); ++i) sum += weights[i];
    return sum;
  }
  double best = std::numeric_limits<double>::infinity(), run = 0;
  for (size_t end = from + 1; end + static_cast<size_t>(stages) - 1 <= weights.size(); ++end) {
    run += weights[end - 1];
    best = std::min(best, std::max(run, brute_force(weights, end, stages - 1)));
  }
  return best;
}

RC_GTEST_PROP(Cut, SplitContiguousIsOptimalAndLegal, (uint64_t seed)) {
  const Graph graph = random_graph_of(seed, 9);
  Rng rng(seed);
  const auto units = cut_units(graph);
  std::vector<double> weights;
  for (size_t i = 0; i < units.size(); ++i) weights.push_back(static_cast<double>(rng.below(10)));
  for (int32_t stages = 1; stages <= std::min<int32_t>(5, static_cast<int32_t>(units.size()));
       ++stages) {
    const auto partition = split_contiguous(graph, weights, stages);
    RC_ASSERT(partition.ok());
    RC_ASSERT(legal(graph, *partition));
    RC_ASSERT(largest_load(units, weights, *partition) == brute_force(weights, 0, stages));
  }
}

RC_GTEST_PROP(Cut, StagesHoldEverythingOnce, (uint64_t seed)) {
  const Graph graph = random_graph_of(seed, 20);
  Rng rng(seed);
  const auto stages =
      static_cast<int32_t>(1 + rng.below(std::min<uint64_t>(5, cut_units(graph).size())));
  const auto partition = random_partition(graph, stages, rng);
  RC_ASSERT(partition.ok());
  const auto border = stage_graph(graph, *partition);
  RC_ASSERT(border.ok());
  const auto producer = producers_of(graph);
  const std::vector<bool> from_nothing = nodes_from_nothing(graph);
  std::set<int32_t> nodes, outputs;
  size_t inputs = 0, sent = 0;
  const auto all = Cuts(graph).stages(*partition);
  RC_ASSERT(all.ok() && all->size() == static_cast<size_t>(stages));
  for (int32_t index = 0; index < stages; ++index) {
    const auto stage = extract_stage(graph, *partition, index);
    RC_ASSERT(stage.ok());
    RC_ASSERT((*all)[static_cast<size_t>(index)] == *stage);
    std::set<ValueId> have;
    for (int32_t leaf : stage->leaves) have.insert(graph.leaves[static_cast<size_t>(leaf)].value);
    for (const Edge& edge : stage->inputs) {
      RC_ASSERT(have.insert(edge.value).second);
      RC_ASSERT(edge.from < index && edge.to == index);
      RC_ASSERT(border->edges[static_cast<size_t>(edge.id)] == edge);
    }
    inputs += stage->inputs.size();
    sent += stage->outputs.size();
    // The stage can run: every input is a leaf it has, an edge, or made before.
    for (int32_t node : stage->nodes) {
      const bool first = nodes.insert(node).second;
      RC_ASSERT(first || from_nothing[static_cast<size_t>(node)]);
      for (ValueId id : inputs_of(graph.nodes[static_cast<size_t>(node)]))
        RC_ASSERT(have.contains(id));
      for (ValueId id : graph.nodes[static_cast<size_t>(node)].outputs) {
        have.insert(id);
        for (ValueId part : graph.value(id).elements) have.insert(part);
      }
    }
    for (const Edge& edge : stage->outputs) RC_ASSERT(have.contains(edge.value));
    for (int32_t output : stage->graph_outputs) {
      RC_ASSERT(outputs.insert(output).second);
      RC_ASSERT(have.contains(graph.outputs[static_cast<size_t>(output)].value));
    }
  }
  RC_ASSERT(nodes.size() == graph.nodes.size());
  RC_ASSERT(outputs.size() == graph.outputs.size());
  RC_ASSERT(inputs == border->edges.size() && sent == border->edges.size());
  const ValueId loss = graph.outputs[static_cast<size_t>(graph.loss_output)].value;
  RC_ASSERT(border->loss_stage == partition->stage_of[static_cast<size_t>(producer.at(loss))]);
}

TEST(Cut, HalvesOfTwinTowersThatWaitForEachOther) {
  auto graph = testing::twin_tower_graph();
  ASSERT_TRUE(graph.ok());
  // left: 0 1 2, right: 3 4 5, join: 6 7. Stage 0 takes the start of left and the end of right:
  // each half is convex, but 0 needs 1 for the right tower and 1 needs 0 for the left.
  Partition partition{2, {0, 0, 1, 1, 1, 0, 1, 1}};
  EXPECT_FALSE(legal(*graph, partition));
  const Status status = check_partition(*graph, partition);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("wait for each other"), std::string::npos)
      << status.error().message;
  EXPECT_TRUE(check_partition(*graph, {2, {0, 0, 0, 1, 1, 1, 1, 1}}).ok());
  const Status order = check_partition(*graph, {2, {1, 1, 1, 1, 1, 1, 0, 0}});
  ASSERT_FALSE(order.ok());
  EXPECT_NE(order.error().message.find("topological"), std::string::npos);
}

TEST(Cut, BadPartitionsAreExplained) {
  auto graph = testing::chain_graph(2);  // 5 nodes
  ASSERT_TRUE(graph.ok());
  EXPECT_FALSE(check_partition(*graph, {0, {0, 0, 0, 0, 0}}).ok());
  EXPECT_FALSE(check_partition(*graph, {1, {0, 0}}).ok());
  EXPECT_FALSE(check_partition(*graph, {2, {0, 0, 0, 0, 0}}).ok());
  EXPECT_FALSE(check_partition(*graph, {2, {0, 0, 0, 0, 2}}).ok());
  EXPECT_FALSE(check_partition(*graph, {2, {0, 0, 0, 0, -1}}).ok());
  Rng rng(1);
  const auto many = random_partition(*graph, 6, rng);
  ASSERT_FALSE(many.ok());
  EXPECT_EQ(many.error().code, Code::kInvalid);
  EXPECT_NE(many.error().message.find("more stages than nodes"), std::string::npos);
  EXPECT_FALSE(split_contiguous(*graph, {1, 1, 1, 1, 1}, 6).ok());
  EXPECT_FALSE(split_contiguous(*graph, {1, 1, 1, 1}, 2).ok());
  EXPECT_FALSE(split_contiguous(*graph, {1, 1, 1, 1, -1}, 2).ok());
  EXPECT_FALSE(extract_stage(*graph, {1, {0, 0, 0, 0, 0}}, 1).ok());
}

TEST(Cut, AtomicGroupTakesInWhatLiesBetween) {
  auto graph = testing::chain_graph(3);  // 0 .. 6
  ASSERT_TRUE(graph.ok());
  graph->nodes[1].atomic_group = graph->nodes[4].atomic_group = 3;
  const auto units = cut_units(*graph);
  ASSERT_EQ(units.size(), 4u);
  EXPECT_EQ(units[1], (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_FALSE(check_partition(*graph, {2, {0, 0, 0, 1, 1, 1, 1}}).ok());
}

// x -> norm -> w0 -> norm (same buffers) -> w1 -> mean
TEST(Cut, WritersOfOneBufferStayTogether) {
  GraphBuilder b;
  ValueId x = b.input("x", {4, 8});
  const ValueId mean = b.buffer("mean", {8}), var = b.buffer("var", {8});
  const auto norm = [&](ValueId in) {
    return b.op("aten::batch_norm",
                {{"input", ValueArg{in}},
                 {"running_mean", ValueArg{mean}},
                 {"running_var", ValueArg{var}},
                 {"training", true},
                 {"momentum", 0.1},
                 {"eps", 1e-5},
                 {"cudnn_enabled", true}},
                {4, 8});
  };
  x = norm(b.linear(norm(x), "w0", 8));
  x = b.linear(x, "w1", 8);
  b.loss(b.mean(x));
  auto graph = b.build();
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const auto units = cut_units(*graph);
  ASSERT_EQ(units.size(), 3u);
  EXPECT_EQ(units[0], (std::vector<int32_t>{0, 1, 2}));
}

TEST(Cut, AnUpdateStaysWithTheReadersOfItsBuffer) {
  GraphBuilder b;
  const ValueId x = b.input("x", {4, 8}), count = b.buffer("count", {4, 8});
  const ValueId read = b.mul(x, count);  // 0
  const ValueId other = b.tanh(x);       // 1
  const ValueId next = b.add(count, x);  // 2
  b.loss(b.mean(b.add(read, other)));
  b.graph.buffer_updates.push_back({"count", next});
  auto graph = b.build();
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  EXPECT_FALSE(check_partition(*graph, {2, {0, 0, 1, 1, 1}}).ok());
  EXPECT_TRUE(check_partition(*graph, {2, {0, 1, 0, 1, 1}}).ok());
  const auto stage = extract_stage(*graph, {2, {0, 1, 0, 1, 1}}, 0);
  ASSERT_TRUE(stage.ok());
  EXPECT_EQ(stage->leaves, (std::vector<int32_t>{0, 1}));
}

TEST(Cut, PartsOfAListCrossOneByOne) {
  GraphBuilder b;
  const ValueId x = b.input("x", {4, 8}), w = b.parameter("w", {8, 8});
  const auto parts = b.split2(b.linear(x, w));
  const ValueId left = b.tanh(parts[0]);
  b.loss(b.mean(b.mul(left, parts[1])));
  auto graph = b.build();
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const auto border = stage_graph(*graph, {3, {0, 0, 1, 2, 2}});
  ASSERT_TRUE(border.ok());
  ASSERT_EQ(border->edges.size(), 3u);
  EXPECT_EQ(border->edges[0].value, parts[0]);
  EXPECT_EQ(border->edges[1].value, parts[1]);
  EXPECT_EQ(border->edges[1].to, 2);
  EXPECT_EQ(border->edges[1].bytes, 4 * 4 * 4);
  EXPECT_TRUE(border->edges[1].needs_grad);
  EXPECT_EQ(border->consumers_of(0), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(border->producers_of(2), (std::vector<int32_t>{0, 1}));
}

TEST(Cut, TiedUsesNameTheirOwnerAndStages) {
  auto graph = testing::tied_skip_graph();
  ASSERT_TRUE(graph.ok());
  const auto last = static_cast<int32_t>(graph->nodes.size()) - 1;
  Partition partition{3, std::vector<int32_t>(graph->nodes.size(), 1)};
  partition.stage_of[0] = 0;
  partition.stage_of[static_cast<size_t>(last)] =
      partition.stage_of[static_cast<size_t>(last - 1)] = 2;
  ASSERT_TRUE(check_partition(*graph, partition).ok());
  const auto uses = tied_uses(*graph, partition);
  ASSERT_EQ(uses.size(), 1u);
  EXPECT_EQ(uses[0].owner, 0);
  EXPECT_EQ(uses[0].stages, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(uses[0].leaves.size(), 2u);
  EXPECT_TRUE(uses[0].trainable);
  EXPECT_TRUE(tied_uses(*graph, {1, std::vector<int32_t>(graph->nodes.size(), 0)}).empty());
}

TEST(Cut, OneLeafReadInTwoStagesIsTiedToo) {
  auto graph = testing::twin_tower_graph();
  ASSERT_TRUE(graph.ok());
  const auto uses = tied_uses(*graph, {2, {0, 0, 0, 1, 1, 1, 1, 1}});
  ASSERT_EQ(uses.size(), 2u);
  for (const TiedUse& use : uses) {
    EXPECT_EQ(use.leaves.size(), 1u);
    EXPECT_EQ(use.tied_group, kNone);
    EXPECT_EQ(use.stages, (std::vector<int32_t>{0, 1}));
  }
}

// A mask spread first and used last does not travel through the cut; what it needs from nothing
// goes along.
TEST(Cut, CheapMakersFollowTheirUsers) {
  GraphBuilder b;
  const ValueId like = b.full({4, 8}, 0);
  const ValueId mask =
      b.op("aten::expand_as",
           {{"self", ValueArg{b.input("mask", {1, 8})}}, {"other", ValueArg{like}}}, {4, 8});
  ValueId x = b.input("x", {4, 8});
  for (int i = 0; i < 4; ++i) x = b.linear(x, "w" + std::to_string(i), 8);
  b.loss(b.mean(b.mul(x, mask)));
  auto graph = b.build();
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const auto partition = split_contiguous(*graph, {0, 1, 1, 1, 1, 0, 0}, 2);
  ASSERT_TRUE(partition.ok());
  EXPECT_EQ(partition->stage_of, (std::vector<int32_t>{1, 1, 0, 0, 1, 1, 1, 1}));
}

// 4 KiB cross the balanced border of this graph, 128 bytes one a little aside.
TEST(Cut, SlackBuysFewerBytes) {
  GraphBuilder b;
  ValueId x = b.input("x", {4, 8});
  x = b.linear(x, "w0", 256);
  x = b.linear(x, "w1", 8);
  x = b.linear(x, "w2", 256);
  b.loss(b.mean(x));
  auto graph = b.build();
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const std::vector<double> weights{10, 1, 9, 0};
  EXPECT_EQ(split_contiguous(*graph, weights, 2)->stage_of, (std::vector<int32_t>{0, 1, 1, 1}));
  EXPECT_EQ(split_contiguous(*graph, weights, 2, 0.1)->stage_of,
            (std::vector<int32_t>{0, 0, 1, 1}));
}

// A long chain: the exact split stays fast, and recursion would overflow.
TEST(Cut, LargeGraphsAreNoTrouble) {
  GraphBuilder b;
  ValueId x = b.input("x", {4, 8});
  for (int i = 0; i < 20000; ++i) x = b.tanh(x);
  b.loss(b.mean(x));
  auto graph = b.build();
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(cut_units(*graph).size(), 20001u);
  const auto partition = split_contiguous(*graph, std::vector<double>(20001, 1.0), 8);
  ASSERT_TRUE(partition.ok());
  EXPECT_LE(std::count(partition->stage_of.begin(), partition->stage_of.end(), 3), 2501);
}

}  // namespace
}  // namespace weft::opdag
