// Which consumers of a value form one gradient sum, and which values need that care: the rules
// both ends of an edge derive alike, so that the fold of a value's gradients (program.h) does not
// depend on the cut. Pure; no torch.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "opdag/cut.h"
#include "opdag/graph.h"

namespace weft::executor {

// Positions in graph.nodes that read a value, ascending.
std::vector<int32_t> consumer_positions(const opdag::Graph& graph, opdag::ValueId value);

// Values with a gradient and several consumer nodes. Values made and read within one atomic group
// (unproven aliasing) are left out: their consumers read them directly, and no cut parts them.
std::set<opdag::ValueId> fan_out_values(const opdag::Graph& graph,
                                        const std::vector<bool>& with_gradient);

// The separate sums that stage edge.to sends back over an edge that needs a gradient, in
// descending order of their nodes; each is a list of positions, ascending. Usually one: all its
// consumers. But where other stages' consumers come after one of its own, adding its own up first
// would change the fold, and they are sent apart.
std::vector<std::vector<int32_t>> gradient_groups(const opdag::Graph& graph,
                                                  const opdag::Partition& partition,
                                                  const opdag::Edge& edge, bool fans_out);

}  // namespace weft::executor
