#include "base/toml.h"

#include <fmt/format.h>

namespace weft {

Result<toml::table> parse_toml(std::string_view text, const std::string& source) {
  try {
    return toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    const auto& where = error.source().begin;
    return make_error(Code::kInvalid, fmt::format("{}, line {}, column {}: {}", source, where.line,
                                                  where.column, error.description()));
  } catch (const std::exception& error) {
    return make_error(Code::kInvalid, fmt::format("{}: {}", source, error.what()));
  }
}

}  // namespace weft
