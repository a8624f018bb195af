// Request targets taken apart and percent-decoded. Pure. Private to net/http.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace weft::net {

struct Target {
  std::string path;
  std::map<std::string, std::string> query;
};
// Nothing for a target that is not an absolute path, that hides control characters or broken
// escapes, or that carries more than 64 query fields.
std::optional<Target> parse_target(std::string_view target);

}  // namespace weft::net
