// A training graph as a planning problem: its cut units in their order, the bytes over every cut,
// what every run of units keeps in memory, and how long it takes on each peer. What every stage
// computes for itself (opdag/from_nothing.h) takes time in the first that reads it only: it is
// little, and estimate_stages() counts all of it. Private to the planner. Pure.
#pragma once

#include <vector>

#include "broker/planner/graph_costs.h"
#include "broker/planner/planner.h"
#include "broker/planner/problem.h"

namespace weft::broker {

struct GraphChain {
  Problem problem;            // its network is empty
  std::vector<int32_t> cuts;  // [cut of the problem]: cut units before it
};

// Long graphs are thinned to most_cuts places to cut: of neighbours of about equal work the one
// that the fewest bytes cross. costs: the graph's, in the precision of train.
GraphChain chain_of(const opdag::Graph& graph, const GraphCosts& costs, const job::TrainSpec& train,
                    const std::vector<PlannerPeer>& peers, int32_t most_cuts = 200);

}  // namespace weft::broker
