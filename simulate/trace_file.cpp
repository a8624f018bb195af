// Churn traces: rows of `time_ms,add|remove,node`, as recorded from real spot markets.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "simulate/scenario.h"

namespace weft::simulate {

Result<std::vector<TraceRow>> parse_trace(std::string_view text, const std::string& source) {
  std::vector<TraceRow> rows;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line[0] == '#') continue;
    const size_t first = line.find(','), second = line.find(',', first + 1);
    int64_t time_ms = -1;
    const bool cells = first != std::string_view::npos && second != std::string_view::npos;
    const auto parsed = cells ? std::from_chars(line.data(), line.data() + first, time_ms)
                              : std::from_chars_result{};
    const std::string_view what = cells ? line.substr(first + 1, second - first - 1) : "";
    const std::string node(cells ? line.substr(second + 1) : "");
    if (!cells || parsed.ptr != line.data() + first || time_ms < 0 || node.empty() ||
        (what != "add" && what != "remove")) {
      return make_error(
          Code::kInvalid,
          fmt::format("{}, line {}: not a row of time_ms,add|remove,node", source, number),
          "give the time in whole milliseconds from the start");
    }
    rows.push_back({static_cast<double>(time_ms) / 1e3, what == "add", node});
  }
  if (rows.empty()) return make_error(Code::kInvalid, source + " has no rows");
  std::stable_sort(rows.begin(), rows.end(),
                   [](const TraceRow& a, const TraceRow& b) { return a.at_s < b.at_s; });
  return rows;
}

}  // namespace weft::simulate
