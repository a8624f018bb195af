// Cuts: how a graph is divided into stages, and what each stage then is. Pure. Functions that take
// a Partition check it (the Result ones) or expect a checked one (tied_uses).
//
// A legal cut has convex stages (no path leaves a stage and comes back) and an acyclic graph of
// stages, numbered in a topological order of it; units (see cut_units) stay whole. Leaves are never
// edges: each stage reads its own. Nor is what is computed from nothing (from_nothing.h): each
// stage that reads it runs its makers, whichever is theirs, and no path leads through them.
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

// kInvalid names two nodes and the reason; every stage has a node.
Status check_partition(const Graph& graph, const Partition& partition);

// A tensor that crosses stages: from its producer's stage straight to one consumer stage. A value
// used by two stages makes two edges; two consumers inside one stage share one.
struct Edge {
  int32_t id = 0;  // position in StageGraph::edges
  ValueId value = kNone;
  int32_t from = 0;  // stages
  int32_t to = 0;
  bool needs_grad = false;  // a gradient (or an explicit "none") comes back
  int64_t bytes = 0;        // of one micro-batch, forward
  bool operator==(const Edge&) const = default;
};

struct StageGraph {
  int32_t stages = 1;
  std::vector<Edge> edges;  // sorted by (from, to, value)
  int32_t loss_stage = 0;   // without a loss: the stage of the first output
  bool operator==(const StageGraph&) const = default;
  std::vector<int32_t> consumers_of(int32_t stage) const;  // distinct, ascending
  std::vector<int32_t> producers_of(int32_t stage) const;
};

Result<StageGraph> stage_graph(const Graph& graph, const Partition& partition);

// One stage of a graph: the nodes it runs in graph order and what crosses its border.
struct Stage {
  int32_t index = 0;
  std::vector<int32_t> nodes;  // indices into graph.nodes, ascending
  // Indices into graph.leaves, ascending: those its nodes read, buffers it updates, and leaves that
  // are graph outputs it owns (the lowest stage that reads such a leaf, or else stage 0). Stage 0
  // also has the parameters and persistent buffers that nothing reads or writes, under any name.
  std::vector<int32_t> leaves;
  std::vector<Edge> inputs;
  std::vector<Edge> outputs;
  std::vector<int32_t> graph_outputs;  // indices into graph.outputs it computes
  bool operator==(const Stage&) const = default;
};

Result<Stage> extract_stage(const Graph& graph, const Partition& partition, int32_t index);

// The unit of every cut: sets of nodes that must stay together, each ascending, in a topological
// order of the units (ties: the smaller first node first). Together stay the nodes of an atomic
// group; a producer and its users where the value is no tensor (a list taken whole, a scalar); all
// that write, update or read a buffer that anything writes; what lies on a path between two nodes
// of a unit. What is computed from nothing stands with the first unit that reads it.
std::vector<std::vector<int32_t>> cut_units(const Graph& graph);

// Splits into `stages` contiguous runs of the unit order with the least largest weight (exact);
// among such splits the one with the fewest bytes over its borders, summed per border. Then units
// that only make or view values move to their first user's stage where that sends less and
// overloads nobody. weights[i]: cost of unit i, finite and not negative. Fewer units than stages:
// kInvalid. slack: how much larger than the least largest weight a stage may be (0.05: 5 %), where
// that saves bytes.
Result<Partition> split_contiguous(const Graph& graph, const std::vector<double>& unit_weights,
                                   int32_t stages, double slack = 0);

// The contiguous split that ends stage k before unit ends[k] (strictly ascending, the last is the
// number of units), with the same move of units that only make or view values, wherever that sends
// less. Ends that are out of order or range: kInvalid.
Result<Partition> split_at(const Graph& graph, const std::vector<int32_t>& ends);

// A uniformly seeded legal cut, not contiguous in general: a random topological order of the units
// cut at random places. Fewer units than stages: kInvalid ("more stages than nodes").
Result<Partition> random_partition(const Graph& graph, int32_t stages, Rng& rng);

// A weight that nodes of several stages use: either parameters with one tied group (GPT-2's
// embedding and head: two leaves, one file), or one parameter leaf read in several stages (a
// twice-used tower). Each such stage holds a copy; the owner, its lowest stage, sums the gradients
// of all in stage order, steps, and publishes the weights.
struct TiedUse {
  std::vector<int32_t> leaves;  // indices into graph.leaves, ascending; leaves[0] names the weight
  int32_t tied_group = kNone;   // of those leaves; kNone: a single leaf without a group
  bool trainable = true;        // any of the leaves is; if not, nothing is exchanged in training
  int32_t owner = 0;            // the lowest of stages
  std::vector<int32_t> stages;  // ascending, at least two, includes the owner
  bool operator==(const TiedUse&) const = default;
};
// Ascending by leaves[0]. A weight used within one stage only is not listed.
std::vector<TiedUse> tied_uses(const Graph& graph, const Partition& partition);

}  // namespace weft::opdag
