#include "base/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/check.h"
#include "base/os/file.h"
#include "base/toml.h"

namespace weft {
namespace {

constexpr uint64_t kMaxConfigBytes = 1 << 20;
constexpr int kFromFile = 1, kFromEnvironment = 2, kFromFlag = 3;

std::string environment_name(const std::string& prefix, const std::string& setting) {
  std::string name = prefix + "_" + setting;
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

Result<std::string> normal_int(const Setting& setting, const std::string& value) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size()) {
    return make_error(Code::kInvalid,
                      fmt::format("{} = \"{}\" is not a whole number", setting.name, value));
  }
  if (number < setting.min || number > setting.max) {
    return make_error(Code::kInvalid, fmt::format("{} = {} is not between {} and {}", setting.name,
                                                  number, setting.min, setting.max));
  }
  return std::to_string(number);
}

Result<std::string> normal_bool(const Setting& setting, const std::string& value) {
  for (const char* yes : {"true", "1", "yes", "on"}) {
    if (value == yes) return std::string("true");
  }
  for (const char* no : {"false", "0", "no", "off"}) {
    if (value == no) return std::string("false");
  }
  return make_error(Code::kInvalid,
                    fmt::format("{} = \"{}\" is neither true nor false", setting.name, value));
}

std::string expanded_path(const std::string& value) {
  if (value != "~" && value.rfind("~/", 0) != 0) return value;
  const char* home = std::getenv("HOME");
  return home == nullptr ? value : home + value.substr(1);
}

// The one form a value is kept in, checked against its type and bounds.
Result<std::string> normal_value(const Setting& setting, const std::string& value) {
  switch (setting.type) {
    case SettingType::kInt:
      return normal_int(setting, value);
    case SettingType::kBool:
      return normal_bool(setting, value);
    case SettingType::kPath:
      return expanded_path(value);
    case SettingType::kString:
      break;
  }
  return value;
}

std::string shown(const Setting& setting, const std::string& value) {
  if (setting.secret) return value.empty() ? "\"\"" : "\"(set)\"";
  if (setting.type == SettingType::kInt || setting.type == SettingType::kBool) return value;
  std::string quoted = "\"";
  for (char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

Result<std::string> scalar_text(const std::string& name, const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* flag = node.as_boolean()) return std::string(flag->get() ? "true" : "false");
  return make_error(Code::kInvalid,
                    fmt::format("{} must be a text, a whole number or true/false", name));
}

// Optimal string alignment distance: insertions, deletions, substitutions, swaps of neighbours.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      size_t best = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        best = std::min(best, cost[i - 2][j - 2] + 1);
      }
      cost[i][j] = best;
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

Config::Config(std::string prefix, std::vector<Setting> settings)
    : prefix_(std::move(prefix)), settings_(std::move(settings)) {
  for (const Setting& setting : settings_) {
    Result<std::string> value = setting.default_value.empty()
                                    ? Result<std::string>(std::string())
                                    : normal_value(setting, setting.default_value);
    WEFT_CHECK(value.ok());
    WEFT_CHECK(entries_.emplace(setting.name, Entry{*value, "default", 0}).second);
  }
}

const Setting* Config::find(const std::string& name) const {
  for (const Setting& setting : settings_) {
    if (setting.name == name) return &setting;
  }
  return nullptr;
}

Status Config::set(const std::string& name, const std::string& value, const std::string& origin,
                   int priority) {
  const Setting* setting = find(name);
  if (setting == nullptr) {
    std::vector<std::string> names;
    for (const Setting& known : settings_) names.push_back(known.name);
    const auto nearest = nearest_name(name, names);
    return make_error(Code::kInvalid, fmt::format("{}: unknown setting \"{}\"", origin, name),
                      nearest ? fmt::format("did you mean \"{}\"?", *nearest)
                              : "`config show` lists all settings");
  }
  Result<std::string> normal = normal_value(*setting, value);
  if (!normal.ok()) return std::move(normal).error().within(origin);
  Entry& entry = entries_.at(name);
  if (priority >= entry.priority) entry = {*normal, origin, priority};
  return {};
}

Status Config::load_file(const std::string& path) {
  WEFT_TRY(const std::string text, os::read_file(path, kMaxConfigBytes));
  WEFT_TRY(const toml::table table, parse_toml(text, path));
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    WEFT_TRY(const std::string value, scalar_text(name, node));
    WEFT_TRY_STATUS(set(name, value, "file " + path, kFromFile));
  }
  return {};
}

Status Config::load_environment() {
  for (const Setting& setting : settings_) {
    const std::string variable = environment_name(prefix_, setting.name);
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr || *value == '\0') continue;  // an empty variable counts as unset
    WEFT_TRY_STATUS(set(setting.name, value, "environment " + variable, kFromEnvironment));
  }
  return {};
}

Status Config::set_flag(const std::string& name, const std::string& value) {
  std::string setting = name;
  if (setting.rfind("--", 0) == 0) setting.erase(0, 2);
  std::replace(setting.begin(), setting.end(), '-', '_');
  return set(setting, value, "flag", kFromFlag);
}

std::string Config::text(const std::string& name) const {
  const auto found = entries_.find(name);
  WEFT_CHECK(found != entries_.end());
  return found->second.value;
}

int64_t Config::integer(const std::string& name) const {
  const std::string value = text(name);
  int64_t number = 0;
  std::from_chars(value.data(), value.data() + value.size(), number);
  return number;
}

bool Config::boolean(const std::string& name) const {
  return text(name) == "true";
}

std::string Config::origin(const std::string& name) const {
  const auto found = entries_.find(name);
  WEFT_CHECK(found != entries_.end());
  return found->second.origin;
}

std::string Config::show(bool with_origin) const {
  std::string lines;
  for (const Setting& setting : settings_) {
    lines += fmt::format("{} = {}", setting.name, shown(setting, text(setting.name)));
    if (with_origin) lines += fmt::format("  # {}", origin(setting.name));
    lines += '\n';
  }
  return lines;
}

std::string Config::flag_name(const std::string& setting) {
  std::string flag = "--" + setting;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::optional<std::string> nearest_name(const std::string& name,
                                        const std::vector<std::string>& candidates) {
  constexpr size_t kMaxLength = 128;  // a longer name is no typing error
  if (name.empty() || name.size() > kMaxLength) return std::nullopt;
  const size_t limit = std::max<size_t>(1, (name.size() + 1) / 3);
  std::optional<std::string> best;
  size_t best_distance = limit + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kMaxLength) continue;
    size_t distance = edit_distance(name, candidate);
    const bool part =
        name.size() >= 3 &&
        (candidate.rfind(name, 0) == 0 || (candidate.size() >= 3 && name.rfind(candidate, 0) == 0));
    if (part) distance = std::min(distance, limit);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace weft
