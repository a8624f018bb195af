// Lists that the broker gives in pages (docs/api.md): events, logs, metrics.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace weft::cli {

using GetPage = std::function<Result<nlohmann::json>(const std::string& target)>;
using UsePage = std::function<void(nlohmann::json&& page)>;

// Gets every page of `path` up to the first in which all of `lists` are empty; that one is used
// only when it is the first.
Status for_each_page(const GetPage& get, const std::string& path,
                     const std::vector<std::string>& lists, const UsePage& use);

// All pages as one answer, with the `next` of the last.
Result<nlohmann::json> all_pages(const GetPage& get, const std::string& path,
                                 const std::vector<std::string>& lists);

}  // namespace weft::cli
