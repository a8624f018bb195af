// Which compression to plan and simulate with, as a TOML table: docs/planning.md, "Compression".
// Pure; errors name the table and the key.
#pragma once

#include <string>
#include <string_view>

#include "base/toml.h"
#include "broker/planner/compression.h"

namespace weft::broker {

// kInvalid for a policy that does not exist names those that do.
Result<Compression> read_compression(const toml::table& table, const std::string& what);
// A file that is such a table.
Result<Compression> parse_compression(std::string_view toml, const std::string& source);

}  // namespace weft::broker
