// Configuration declared once: a table of settings (name, default, bounds, help) from which flags,
// environment variables, the TOML file, `config show --origin`, help texts and documentation
// follow. Precedence: flag > environment > file > default. Built in main, then only read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace weft {

enum class SettingType { kString, kInt, kBool, kPath };

struct Setting {
  std::string name;  // "heartbeat_ms": flag --heartbeat-ms, environment WEFTD_HEARTBEAT_MS
  SettingType type = SettingType::kString;
  std::string default_value;
  std::string help;
  int64_t min = INT64_MIN, max = INT64_MAX;  // of integers
  bool secret = false;                       // shown as "(set)"
};

class Config {
 public:
  // prefix: of environment variables, "WEFTD".
  Config(std::string prefix, std::vector<Setting> settings);

  // Each layer refuses unknown names (with the nearest known one) and values out of bounds.
  Status load_file(const std::string& path);  // flat TOML: name = value
  Status load_environment();                  // reads only variables the table declares
  Status set_flag(const std::string& name, const std::string& value);

  std::string text(const std::string& name) const;
  int64_t integer(const std::string& name) const;
  bool boolean(const std::string& name) const;
  // "flag", "environment WEFTD_X", "file PATH", "default".
  std::string origin(const std::string& name) const;
  // One line a setting: name = value  # origin.
  std::string show(bool with_origin) const;
  const std::vector<Setting>& settings() const { return settings_; }
  static std::string flag_name(const std::string& setting);  // "--heartbeat-ms"

 private:
  struct Entry {
    std::string value;
    std::string origin = "default";
    int priority = 0;
  };
  Status set(const std::string& name, const std::string& value, const std::string& origin,
             int priority);
  const Setting* find(const std::string& name) const;

  std::string prefix_;
  std::vector<Setting> settings_;
  std::map<std::string, Entry> entries_;
};

// The candidate with the least edit distance, if it is near enough to be meant.
std::optional<std::string> nearest_name(const std::string& name,
                                        const std::vector<std::string>& candidates);

}  // namespace weft
