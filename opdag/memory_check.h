// Whether a graph can run in a given memory at all, told from its declared shapes before anything
// is allocated. A lower bound, no estimate: what passes may still be too large together.
#pragma once

#include <cstdint>
#include <vector>

#include "opdag/cut.h"
#include "opdag/graph.h"

namespace weft::opdag {

// kTooLarge, with the tensor and the node that makes it, if one tensor that a node of the stage
// makes needs more than memory_bytes, or if the stage's parameters and buffers together do.
// Views count as the memory they span, repeated elements once.
Status check_memory(const Graph& graph, const Stage& stage, uint64_t memory_bytes);
// Of the whole graph.
Status check_memory(const Graph& graph, uint64_t memory_bytes);

}  // namespace weft::opdag
