// Readers for the pieces of models/*.json (torch/_export/serde/schema.py, major version 8). They
// throw nlohmann::json exceptions on a wrong structure; import.cpp turns those into kCorrupt.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "opdag/graph.h"

namespace weft::opdag {

using Json = nlohmann::json;

// The largest models describe themselves in some 20 MiB; parsed, it takes up to 15 times that.
inline constexpr size_t kMaxJsonBytes = size_t{128} << 20;

// Parses within bounds of size and nesting depth.
Result<Json> parse_json(std::string_view text, const std::string& name);

// The member of a union ("as_int", value): the first one that is not null.
std::pair<std::string, const Json*> union_member(const Json& object);

// torch._export.serde ScalarType; kRefused for those weft has no type for (float8, complex32).
Result<DType> read_dtype(const Json& code);
std::string read_device(const Json& device);

// kRefused with the dimension's name when a size is symbolic. what: "input 'x'".
Result<TensorMeta> read_meta(const Json& meta, const std::string& what);

// A whole number in range; nlohmann's get<> would also convert 1e300, which is undefined.
int64_t read_integer(const Json& number);

// A double; torch writes infinities and NaN as strings.
double read_double(const Json& number);

// "torch.ops.aten.add.Tensor" -> "aten::add.Tensor", ".default" dropped.
std::string read_target(const std::string& target);

// Names of the flattened outputs by the treespec of module_call_graph: "loss", "logits",
// "past.0.1", "out.0"; empty when it is not understood.
std::vector<std::string> output_names(const std::string& out_spec);

// "s77" of a symbolic size's expression.
std::string symbol_name(const std::string& expression);

// What to tell a user whose graph has a symbolic dimension.
Error dynamic_shape(const std::string& what, const std::string& expression);

}  // namespace weft::opdag
