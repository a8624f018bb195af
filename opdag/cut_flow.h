// Flow: who makes and who reads each value, by position in graph.nodes. CutFlow knows besides what
// no cut sends. Built once per question asked about a graph; private to opdag. Expects a graph that
// has passed validate.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "opdag/cut.h"
#include "opdag/graph.h"

namespace weft::opdag {

struct Flow {
  explicit Flow(const Graph& graph);

  std::vector<int32_t> producer;                // by value: node position, kNone for a leaf
  std::vector<std::vector<int32_t>> consumers;  // by value: node positions, ascending, each once
  // By node: nodes that read anything it makes, ascending, each once; never itself.
  std::vector<std::vector<int32_t>> successors;
};

struct CutFlow : Flow {
  explicit CutFlow(const Graph& graph);

  std::vector<std::vector<int32_t>> inseparable;  // inseparable_sets
  std::vector<bool> copied;                       // by node: nodes_from_nothing
  // By value: the node whose stage sends it to those of its readers; kNone for a leaf and for what
  // each stage computes for itself.
  std::vector<int32_t> sender;

  // Nodes that would be sent something of this one's if they were in other stages.
  std::span<const int32_t> sends_to(size_t node) const {
    return copied[node] ? std::span<const int32_t>() : successors[node];
  }
};

// Of all that a node makes.
int64_t bytes_made(const Graph& graph, const Node& node);

// By value: constants, and buffers that are no part of a checkpoint, where nothing writes them.
std::vector<bool> values_as_loaded(const Graph& graph);

// Sets of node positions that no cut may part, before closure under convexity.
std::vector<std::vector<int32_t>> inseparable_sets(const Graph& graph, const Flow& flow);

// The functions of cut.h, of a graph whose flow is known.
Status check_partition(const Graph& graph, const CutFlow& flow, const Partition& partition);
std::vector<std::vector<int32_t>> cut_units(const Graph& graph, const CutFlow& flow);
Result<Partition> split_at(const Graph& graph, const CutFlow& flow,
                           const std::vector<std::vector<int32_t>>& units,
                           const std::vector<int32_t>& ends);
Result<StageGraph> stage_graph(const Graph& graph, const CutFlow& flow, const Partition& partition);
Result<std::vector<Stage>> extract_stages(const Graph& graph, const CutFlow& flow,
                                          const Partition& partition);
std::vector<TiedUse> tied_uses(const Graph& graph, const Flow& flow, const Partition& partition);

}  // namespace weft::opdag
