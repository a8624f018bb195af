// Which stages may be captured. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "opdag/graph.h"

namespace weft::executor {

// Empty: every node may be captured. Else why not: a node that writes in place, draws random
// numbers other than for dropout, may read the device's numbers on the host, or that nobody has
// vouched for.
std::string why_not_capturable(const opdag::Graph& graph, const std::vector<int32_t>& nodes);

}  // namespace weft::executor
