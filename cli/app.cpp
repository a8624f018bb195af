#include "cli/app.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/clock.h"

namespace weft::cli {

namespace {

Status guarded(const std::function<Status()>& body) {
  try {
    return body();
  } catch (const nlohmann::json::exception& error) {
    return make_error(Code::kCorrupt,
                      std::string("an answer of the broker is not understood: ") + error.what(),
                      "is the broker of the same version? see `weft --version`");
  }
}

}  // namespace

void run_verb(Globals& globals, const std::function<Status()>& body) {
  const Status status = guarded(body);
  if (status.ok()) return;
  const Error& error = status.error();
  globals.exit_code = error.code == Code::kRefused ? kExitRefused : kExitFailed;
  if (globals.json()) {
    print_json({{"error",
                 {{"code", code_name(error.code)},
                  {"message", error.message},
                  {"next", error.next},
                  {"node", error.node},
                  {"operator", error.op}}}});
  }
  std::fprintf(stderr, "weft: %s\n", error.message.c_str());
  if (!error.next.empty()) std::fprintf(stderr, "      %s\n", error.next.c_str());
}

void print_json(const nlohmann::json& value) {
  std::printf("%s\n", value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    if (row.size() > widths.size()) widths.resize(row.size());
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += i + 1 == row.size() ? row[i] : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    std::printf("%s\n", line.c_str());
  }
}

void warn(const std::string& message) {
  std::fprintf(stderr, "weft: warning: %s\n", message.c_str());
}

std::string human_bytes(double bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::string human_count(double count) {
  constexpr std::array kUnits = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  while (count >= 1000 && unit + 1 < kUnits.size()) {
    count /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f}{}", count, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::string human_duration(double seconds) {
  if (seconds < 0) return "-";
  const auto whole = static_cast<int64_t>(seconds);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

std::string ago(int64_t time_ms) {
  if (time_ms <= 0) return "-";
  const int64_t past_ms = SystemClock().wall_ms() - time_ms;
  return human_duration(static_cast<double>(std::max<int64_t>(past_ms, 0)) / 1000) + " ago";
}

}  // namespace weft::cli
