#include "job/json_read.h"

#include <fmt/format.h>

#include <cmath>

namespace weft::job {
namespace {

using nlohmann::json;

bool fits_int64(const json& value) {
  return value.is_number_integer() &&
         !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
}

}  // namespace

JsonReader::JsonReader(const json& object, std::string what)
    : object_(object), what_(std::move(what)) {
  if (!object_.is_object()) {
    fail(make_error(Code::kInvalid, fmt::format("{} is not a JSON object", what_)));
  }
}

Status JsonReader::status() const {
  return error_ ? Status(*error_) : Status();
}

void JsonReader::fail(Error error) {
  if (!error_) error_ = std::move(error);
}

void JsonReader::wrong(const char* name, const char* wanted) {
  fail(make_error(Code::kInvalid, fmt::format("{}.{} is not {}", what_, name, wanted)));
}

const json* JsonReader::find(const char* name) {
  if (error_) return nullptr;
  const auto found = object_.find(name);
  return found == object_.end() ? nullptr : &*found;
}

void JsonReader::require(const char* name) {
  if (find(name) == nullptr) {
    fail(make_error(Code::kInvalid, fmt::format("{}.{} is missing", what_, name)));
  }
}

bool JsonReader::read_integer(const char* name, int64_t& out, int64_t min, int64_t max) {
  const json* value = find(name);
  if (value == nullptr) return false;
  if (!fits_int64(*value) || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    wrong(name, fmt::format("a whole number from {} to {}", min, max).c_str());
    return false;
  }
  out = value->get<int64_t>();
  return true;
}

void JsonReader::text(const char* name, std::string& out, size_t max_bytes) {
  const json* value = find(name);
  if (value == nullptr) return;
  if (!value->is_string() || value->get_ref<const std::string&>().size() > max_bytes) {
    return wrong(name, fmt::format("a text of at most {} bytes", max_bytes).c_str());
  }
  out = value->get<std::string>();
}

void JsonReader::number(const char* name, double& out) {
  const json* value = find(name);
  if (value == nullptr) return;
  if (value->is_null()) {
    out = std::nan("");
  } else if (value->is_number()) {
    out = value->get<double>();
  } else {
    wrong(name, "a number");
  }
}

void JsonReader::boolean(const char* name, bool& out) {
  const json* value = find(name);
  if (value == nullptr) return;
  if (!value->is_boolean()) return wrong(name, "true or false");
  out = value->get<bool>();
}

void JsonReader::texts(const char* name, std::vector<std::string>& out, size_t max_count) {
  const json* values = array(name, max_count);
  if (values == nullptr) return;
  out.clear();
  for (const json& value : *values) {
    if (!value.is_string()) return wrong(name, "a list of texts");
    out.push_back(value.get<std::string>());
  }
}

void JsonReader::integers(const char* name, std::vector<int32_t>& out, size_t max_count) {
  const json* values = array(name, max_count);
  if (values == nullptr) return;
  out.clear();
  out.reserve(values->size());
  for (const json& value : *values) {
    const bool fits =
        fits_int64(value) && value.get<int64_t>() >= INT32_MIN && value.get<int64_t>() <= INT32_MAX;
    if (!fits) return wrong(name, "a list of whole numbers");
    out.push_back(value.get<int32_t>());
  }
}

const json* JsonReader::object(const char* name) {
  const json* value = find(name);
  if (value == nullptr) return nullptr;
  if (value->is_object()) return value;
  wrong(name, "an object");
  return nullptr;
}

const json* JsonReader::array(const char* name, size_t max_count) {
  const json* value = find(name);
  if (value == nullptr) return nullptr;
  if (value->is_array() && value->size() <= max_count) return value;
  wrong(name, fmt::format("a list of at most {}", max_count).c_str());
  return nullptr;
}

Result<json> parse_json(std::string_view text, const std::string& what) {
  // A hostile "[[[[..." ends here and not in whoever walks the value.
  constexpr int kMaxDepth = 64;
  bool too_deep = false;
  const auto guard = [&](int depth, json::parse_event_t, json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  json value = json::parse(text, guard, false);
  if (too_deep) {
    return make_error(Code::kTooLarge, fmt::format("{} is nested deeper than {}", what, kMaxDepth));
  }
  if (value.is_discarded()) {
    return make_error(Code::kCorrupt, fmt::format("{} is not valid JSON", what));
  }
  return value;
}

std::string json_line(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

json number_to_json(double value) {
  return std::isfinite(value) ? json(value) : json();
}

}  // namespace weft::job
