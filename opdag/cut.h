// Cuts: how a graph is divided into stages, and what each stage then is. Pure.
//
// A legal cut has convex stages (no path leaves a stage and comes back) and an acyclic graph of
// stages, numbered in a topological order of it; atomic groups stay whole.
#pragma once

#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "opdag/graph.h"

namespace weft::opdag {

// stage_of[i]: stage of graph.nodes[i].
struct Partition {
  int32_t stages = 1;
  std::vector<int32_t> stage_of;
  bool operator==(const Partition&) const = default;
};

Status check_partition(const Graph& graph, const Partition& partition);

// A tensor that crosses stages: from its producer's stage straight to one consumer stage. A value
// used by two stages makes two edges; two consumers inside one stage share one.
struct Edge {
  int32_t id = 0;       // position in StageGraph::edges
  ValueId value = kNone;
  int32_t from = 0;     // stages
  int32_t to = 0;
  bool needs_grad = false;  // a gradient (or an explicit "none") comes back
  int64_t bytes = 0;        // of one micro-batch, forward
  bool operator==(const Edge&) const = default;
};

struct StageGraph {
  int32_t stages = 1;
  std::vector<Edge> edges;  // sorted by (from, to, value)
  int32_t loss_stage = 0;
  bool operator==(const StageGraph&) const = default;
  std::vector<int32_t> consumers_of(int32_t stage) const;  // distinct, ascending
  std::vector<int32_t> producers_of(int32_t stage) const;
};

Result<StageGraph> stage_graph(const Graph& graph, const Partition& partition);

// One stage of a graph: the nodes it runs in graph order and what crosses its border.
struct Stage {
  int32_t index = 0;
  std::vector<int32_t> nodes;        // indices into graph.nodes, ascending
  std::vector<int32_t> leaves;       // indices into graph.leaves that its nodes read (or that are graph outputs it owns)
  std::vector<Edge> inputs;
  std::vector<Edge> outputs;
  std::vector<int32_t> graph_outputs;  // indices into graph.outputs it computes
};

Result<Stage> extract_stage(const Graph& graph, const Partition& partition, int32_t index);

// Contiguous blocks of nodes that must stay together, in topological order: atomic groups closed
// under convexity. The unit of every cut.
std::vector<std::vector<int32_t>> cut_units(const Graph& graph);

// Cheap ops that only make or reshape tiny values are pulled to their consumers where legal.
// Splits into `stages` contiguous runs of the unit order with the least largest weight;
// weights[i]: cost of unit i. Exact (dynamic programme). Fewer units than stages: kInvalid.
Result<Partition> split_contiguous(const Graph& graph, const std::vector<double>& unit_weights,
                                   int32_t stages);

// A uniformly seeded legal cut, not contiguous in general: a random topological order of the units
// cut at random places. Fewer units than stages: kInvalid ("more stages than nodes").
Result<Partition> random_partition(const Graph& graph, int32_t stages, Rng& rng);

// Tied parameters across stages: which stages use each group; the lowest stage owns it.
struct TiedUse {
  int32_t tied_group = kNone;
  int32_t owner = 0;
  std::vector<int32_t> stages;  // ascending, includes the owner
};
std::vector<TiedUse> tied_uses(const Graph& graph, const Partition& partition);

}  // namespace weft::opdag
