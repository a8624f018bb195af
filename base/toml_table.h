// One table of a TOML file, read key by key: wrong values and unknown keys become one error that
// names the table and the key. Private to files that read TOML.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/toml.h"

namespace weft {

class TomlTable {
 public:
  // what: how errors call the table ("peers.toml, [[peer]] 3"); table must outlive the reader.
  TomlTable(const toml::table& table, std::string what) : table_(table), what_(std::move(what)) {}

  // A key that is absent gives the fallback; a wrong one, too, and is told by status().
  double number(const char* key, double fallback = 0, double least = 0, double most = 1e12);
  int64_t integer(const char* key, int64_t fallback = 0, int64_t least = 0,
                  int64_t most = int64_t{1} << 40);
  std::string text(const char* key, const std::string& fallback = {});
  bool has(const char* key) const { return table_.contains(key); }
  // A table within; nullptr if absent.
  const toml::table* table(const char* key);
  // Tables within, written as [[key]].
  std::vector<const toml::table*> tables(const char* key);
  const std::string& what() const { return what_; }

  // Adds an error that the caller has found: what is wrong, behind the table's name.
  void refuse(std::string message);

  // The first error of any read so far, or a key that nothing has asked for. next: what to do.
  Status status(const std::string& next);

 private:
  const toml::node* find(const char* key);
  const toml::table& table_;
  std::string what_, error_;
  std::set<std::string> known_;
};

// The tables of an array of tables; empty if absent.
Result<std::vector<const toml::table*>> toml_tables(const toml::table& document, const char* key,
                                                    const std::string& source);

}  // namespace weft
