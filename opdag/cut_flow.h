// Flow: who makes and who reads each value, by position in graph.nodes. CutFlow knows besides what
// no cut sends. Built once per question asked about a graph; private to opdag. Expects a graph that
// has passed validate.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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

  std::vector<bool> copied;  // by node: nodes_from_nothing

  // Nodes that would be sent something of this one's if they were in other stages.
  std::span<const int32_t> sends_to(size_t node) const {
    return copied[node] ? std::span<const int32_t>() : successors[node];
  }
  // The node whose stage sends a value to those of its readers; kNone for a leaf and for what each
  // stage computes for itself.
  int32_t sender(ValueId value) const {
    const int32_t maker = producer[static_cast<size_t>(value)];
    return maker == kNone || copied[static_cast<size_t>(maker)] ? kNone : maker;
  }
};

// Of all that a node makes.
int64_t bytes_made(const Graph& graph, const Node& node);

// By value: constants, and buffers that are no part of a checkpoint, where nothing writes them.
std::vector<bool> values_as_loaded(const Graph& graph);

// Sets of node positions that no cut may part, before closure under convexity.
std::vector<std::vector<int32_t>> inseparable_sets(const Graph& graph, const Flow& flow);

}  // namespace weft::opdag
