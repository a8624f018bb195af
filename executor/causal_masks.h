// Attention masks that are constants of the graph. An export has the causal mask of a language
// model as a tensor it computes from nothing (arange, comparisons), where the module asked for
// is_causal: kernels for a mask compute what causal ones skip, and the fastest take none.
//
// What is found depends on the whole graph alone, never on the cut: every stage decides alike.
#pragma once

#include <cstdint>
#include <set>

#include "opdag/graph.h"

namespace weft::executor {

// Positions in graph.nodes of scaled_dot_product_attention with a constant mask that lets each row
// see the columns up to its own. They may run with is_causal instead. Computes the masks on the
// CPU.
std::set<int32_t> causal_attention(const opdag::Graph& graph);

}  // namespace weft::executor
