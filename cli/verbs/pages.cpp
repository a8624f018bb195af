#include "cli/verbs/pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace weft::cli {

using nlohmann::json;

namespace {

Error not_a_page(const std::string& target) {
  return make_error(Code::kCorrupt, fmt::format("the broker's answer to {} is no page", target),
                    "use a weft of the broker's version");
}

}  // namespace

Status for_each_page(const GetPage& get, const std::string& path,
                     const std::vector<std::string>& lists, const UsePage& use) {
  int64_t after = 0;
  for (bool first = true;; first = false) {
    const std::string target = fmt::format("{}?after={}", path, after);
    WEFT_TRY(json page, get(target));
    bool empty = true;
    for (const std::string& list : lists) {
      if (!page.is_object() || !page.contains(list) || !page[list].is_array()) {
        return not_a_page(target);
      }
      empty = empty && page[list].empty();
    }
    const auto next = page.find("next");
    if (next == page.end() || !next->is_number_integer()) return not_a_page(target);
    const auto last = next->get<int64_t>();
    if (!empty || first) use(std::move(page));
    if (empty) return {};
    if (last <= after) return not_a_page(target);  // it would give the same page for ever
    after = last;
  }
}

Result<json> all_pages(const GetPage& get, const std::string& path,
                       const std::vector<std::string>& lists) {
  json all;
  WEFT_TRY_STATUS(for_each_page(get, path, lists, [&](json&& page) {
    if (all.is_null()) {
      all = std::move(page);
      return;
    }
    for (const std::string& list : lists) {
      auto& rows = page[list].get_ref<json::array_t&>();
      auto& to = all[list].get_ref<json::array_t&>();
      std::move(rows.begin(), rows.end(), std::back_inserter(to));
    }
    all["next"] = page["next"];
  }));
  return all;
}

}  // namespace weft::cli
