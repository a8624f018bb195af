// Text form of a graph: one node a line, complete (parse_text(to_text(g)) == g), stable, made for
// logs, tests, and for handing a graph to weft-worker without protobuf. Grammar in opdag/README.md.
#pragma once

#include <string>
#include <string_view>

#include "opdag/graph.h"

namespace weft::opdag {

std::string to_text(const Graph& graph);
// Bounded in input size (64 MiB), depth and counts; the result has passed validate.
Result<Graph> parse_text(std::string_view text);

}  // namespace weft::opdag
