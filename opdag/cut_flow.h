// Flow: who makes and who reads each value, by position in graph.nodes. Built once per question
// asked about a graph; private to opdag. Expects a graph that has passed validate.
#pragma once

#include <cstdint>
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

// Sets of node positions that no cut may part, before closure under convexity.
std::vector<std::vector<int32_t>> inseparable_sets(const Graph& graph, const Flow& flow);

}  // namespace weft::opdag
