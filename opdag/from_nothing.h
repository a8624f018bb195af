// What a graph computes from nothing: causal masks, position ids, tables of rotations; all that is
// made of literals, of constants, and of buffers that neither change nor belong to a checkpoint. No
// cut sends such a value: each stage that reads one computes it for itself. Pure.
#pragma once

#include <vector>

#include "opdag/graph.h"

namespace weft::opdag {

// By position in graph.nodes: nodes that every stage runs which reads what they make. All that such
// a node reads is made by others of its kind, or is a constant or such a buffer; it is
// deterministic and draws no random number; no cut must keep it with other nodes (cut_units); and
// computing it, with all that it needs, takes less than being sent its results. At most
// kMostFromNothing nodes, the first ones. Expects a graph that has passed validate.
std::vector<bool> nodes_from_nothing(const Graph& graph);

inline constexpr int32_t kMostFromNothing = 4096;

}  // namespace weft::opdag
