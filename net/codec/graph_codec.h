// opdag::Graph to and from its protobuf form. Decoding bounds sizes and ends in opdag::validate, so
// a graph from the wire is as trustworthy as one from a file.
#pragma once

#include <string>

#include "opdag/graph.h"

namespace weft::net {

std::string encode_graph(const opdag::Graph& graph);
Result<opdag::Graph> decode_graph(std::string_view bytes);

}  // namespace weft::net
