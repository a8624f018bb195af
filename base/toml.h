// The door to toml++: parsing with errors as values. Private to files that read TOML.
#pragma once

#define TOML_HEADER_ONLY 0
#define TOML_SHARED_LIB 1
#include <toml++/toml.h>

#include <string>
#include <string_view>

#include "base/result.h"

namespace weft {

// source: what error messages call the text ("job.toml"); they carry line and column.
Result<toml::table> parse_toml(std::string_view text, const std::string& source);

}  // namespace weft
