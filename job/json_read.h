// Reading JSON from another process, member by member: each absent member keeps its default, each
// present one is checked for type and bounds. Errors name the member.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::job {

class JsonReader {
 public:
  // what: how errors call the object, "plan". The object must outlive the reader.
  JsonReader(const nlohmann::json& object, std::string what);

  // The first error met; later calls change nothing.
  Status status() const;
  bool ok() const { return !error_.has_value(); }

  template <typename T>
  void integer(const char* name, T& out, int64_t min = std::numeric_limits<T>::min(),
               int64_t max = bounded_max<T>()) {
    int64_t value = 0;
    if (read_integer(name, value, min, max)) out = static_cast<T>(value);
  }
  void text(const char* name, std::string& out, size_t max_bytes = 1 << 16);
  void number(const char* name, double& out);  // null reads as NaN
  void boolean(const char* name, bool& out);
  void texts(const char* name, std::vector<std::string>& out, size_t max_count = 4096);
  void integers(const char* name, std::vector<int32_t>& out, size_t max_count = 1 << 20);
  // Members of their own form; nullptr when absent (or an error was met).
  const nlohmann::json* object(const char* name);
  const nlohmann::json* array(const char* name, size_t max_count = 4096);
  void require(const char* name);
  void fail(Error error);

 private:
  template <typename T>
  static constexpr int64_t bounded_max() {
    constexpr auto kMax = std::numeric_limits<T>::max();
    if constexpr (sizeof(T) >= 8) return std::numeric_limits<int64_t>::max();
    return static_cast<int64_t>(kMax);
  }
  bool read_integer(const char* name, int64_t& out, int64_t min, int64_t max);
  const nlohmann::json* find(const char* name);
  void wrong(const char* name, const char* wanted);

  const nlohmann::json& object_;
  std::string what_;
  std::optional<Error> error_;
};

// One JSON text of another process; bounded depth, never throws.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& what);
// One line, never throws: bytes that are not UTF-8 (a path, a message of the system) are replaced.
std::string json_line(const nlohmann::json& value);
// NaN and infinities have no JSON form: null.
nlohmann::json number_to_json(double value);

}  // namespace weft::job
