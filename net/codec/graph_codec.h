// opdag::Graph to and from its protobuf form (net/proto/graph.proto). Decoding bounds sizes and
// ends in opdag::validate, so a graph from the wire is as trustworthy as one from a file.
//
// Lossless: decode_graph(encode_graph(g)) == g for every valid g, bit for bit in floating numbers.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "opdag/graph.h"

namespace weft::net {

inline constexpr size_t kMaxGraphBytes = size_t{32} << 20;  // GPT-2 XL is below 2 MiB

std::string encode_graph(const opdag::Graph& graph);
// kTooLarge over kMaxGraphBytes; kCorrupt for bytes that are no graph; else what validate says.
Result<opdag::Graph> decode_graph(std::string_view bytes);

}  // namespace weft::net
