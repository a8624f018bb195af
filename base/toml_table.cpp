#include "base/toml_table.h"

#include <fmt/format.h>

#include <cmath>

namespace weft {

const toml::node* TomlTable::find(const char* key) {
  known_.insert(key);
  return table_.get(key);
}

void TomlTable::refuse(std::string message) {
  if (error_.empty()) error_ = fmt::format("{}: {}", what_, message);
}

double TomlTable::number(const char* key, double fallback, double least, double most) {
  const toml::node* node = find(key);
  if (node == nullptr) return fallback;
  const auto value = node->value<double>();
  if (value && std::isfinite(*value) && *value >= least && *value <= most) return *value;
  refuse(fmt::format("{} must be a number from {:g} to {:g}", key, least, most));
  return fallback;
}

int64_t TomlTable::integer(const char* key, int64_t fallback, int64_t least, int64_t most) {
  const toml::node* node = find(key);
  if (node == nullptr) return fallback;
  const auto value = node->value_exact<int64_t>();
  if (value && *value >= least && *value <= most) return *value;
  refuse(fmt::format("{} must be a whole number from {} to {}", key, least, most));
  return fallback;
}

std::string TomlTable::text(const char* key, const std::string& fallback) {
  const toml::node* node = find(key);
  if (node == nullptr) return fallback;
  if (const auto value = node->value<std::string>()) return *value;
  refuse(fmt::format("{} must be a text", key));
  return fallback;
}

const toml::table* TomlTable::table(const char* key) {
  const toml::node* node = find(key);
  if (node == nullptr) return nullptr;
  if (const toml::table* inner = node->as_table()) return inner;
  refuse(fmt::format("{} must be a table", key));
  return nullptr;
}

std::vector<const toml::table*> TomlTable::tables(const char* key) {
  find(key);
  auto found = toml_tables(table_, key, what_);
  if (found.ok()) return std::move(found).value();
  if (error_.empty()) error_ = found.error().message;
  return {};
}

Status TomlTable::status(const std::string& next) {
  for (const auto& [key, node] : table_) {
    if (!known_.contains(std::string(key.str()))) refuse(fmt::format("unknown key {}", key.str()));
  }
  if (error_.empty()) return {};
  return make_error(Code::kInvalid, error_, next);
}

Result<std::vector<const toml::table*>> toml_tables(const toml::table& document, const char* key,
                                                    const std::string& source) {
  std::vector<const toml::table*> tables;
  const toml::node* node = document.get(key);
  if (node == nullptr) return tables;
  if (const toml::array* array = node->as_array()) {
    for (const toml::node& item : *array) {
      if (item.as_table() == nullptr) break;
      tables.push_back(item.as_table());
    }
    if (tables.size() == array->size()) return tables;
  }
  return make_error(Code::kInvalid, fmt::format("{}: {} must be tables", source, key),
                    fmt::format("write each as [[{}]]", key));
}

}  // namespace weft
