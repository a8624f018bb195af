// The job file: TOML to the JSON form of a job, overrides put in, paths resolved.
#include <fmt/format.h>

#include "base/os/file.h"
#include "base/toml.h"
#include "job/spec_keys.h"

namespace weft::job {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxJobFileBytes = 4 << 20;

Result<json> to_json(const toml::node& node);

Result<json> table_to_json(const toml::table& table) {
  json object = json::object();
  for (const auto& [key, node] : table) {
    Result<json> value = to_json(node);
    if (!value.ok()) return std::move(value).error().within(std::string(key.str()));
    object[std::string(key.str())] = std::move(*value);
  }
  return object;
}

Result<json> to_json(const toml::node& node) {
  if (const auto* table = node.as_table()) return table_to_json(*table);
  if (const auto* array = node.as_array()) {
    json list = json::array();
    for (const toml::node& item : *array) {
      WEFT_TRY(json value, to_json(item));
      list.push_back(std::move(value));
    }
    return list;
  }
  if (const auto* text = node.as_string()) return json(text->get());
  if (const auto* number = node.as_integer()) return json(number->get());
  if (const auto* number = node.as_floating_point()) return json(number->get());
  if (const auto* flag = node.as_boolean()) return json(flag->get());
  return make_error(Code::kInvalid, "dates and times are not used in job files");
}

// A value in TOML syntax; a bare word counts as a text, so that a shell needs no double quoting.
Result<json> override_value(const std::string& text) {
  Result<toml::table> table = parse_toml("value = " + text, "value");
  if (table.ok() && table->size() == 1) return to_json(*table->get("value"));
  if (text.find('\n') != std::string::npos) {
    return make_error(Code::kInvalid, "the value must be a single line");
  }
  return json(text);
}

Status apply_override(json& document, const std::string& text) {
  const size_t equals = text.find('=');
  const std::string path = text.substr(0, equals);
  if (equals == std::string::npos || path.empty()) {
    return make_error(Code::kInvalid, fmt::format("cannot set \"{}\"", text),
                      "write KEY=VALUE, as in train.lr=3e-4");
  }
  Result<json> value = override_value(text.substr(equals + 1));
  if (!value.ok()) return std::move(value).error().within("setting " + path);
  json* at = &document;
  for (size_t begin = 0;;) {
    const size_t dot = path.find('.', begin);
    if (!at->is_object()) {
      return make_error(Code::kInvalid, fmt::format("cannot set {}: {} is not a table", path,
                                                    path.substr(0, begin - 1)));
    }
    at = &(*at)[path.substr(begin, dot - begin)];
    if (dot == std::string::npos) break;
    if (at->is_null()) *at = json::object();
    begin = dot + 1;
  }
  *at = std::move(*value);
  return {};
}

void resolve(std::string& path, const std::string& base_dir) {
  if (path.empty() || base_dir.empty() || os::Path(path).is_absolute()) return;
  path = (os::Path(base_dir) / path).lexically_normal().string();
}

void resolve_paths(JobSpec& spec, const std::string& base_dir) {
  for (std::string* path :
       {&spec.model, &spec.eval_model, &spec.init, &spec.data.train, &spec.data.eval}) {
    resolve(*path, base_dir);
  }
  for (ArrayFile& array : spec.data.arrays) {
    resolve(array.train_path, base_dir);
    resolve(array.eval_path, base_dir);
  }
}

Result<JobSpec> parse_named(const std::string& toml, const std::string& source,
                            const std::string& base_dir,
                            const std::vector<std::string>& overrides) {
  WEFT_TRY(const toml::table table, parse_toml(toml, source));
  WEFT_TRY(json document, table_to_json(table));
  for (const std::string& text : overrides) WEFT_TRY_STATUS(apply_override(document, text));
  Result<JobSpec> spec = spec_from_json(document);
  if (!spec.ok()) return std::move(spec).error().within(source);
  resolve_paths(*spec, base_dir);
  return spec;
}

}  // namespace

Result<JobSpec> parse_job_toml(const std::string& toml, const std::string& base_dir,
                               const std::vector<std::string>& overrides) {
  return parse_named(toml, "job", base_dir, overrides);
}

Result<JobSpec> load_job_file(const std::string& path, const std::vector<std::string>& overrides) {
  WEFT_TRY(const std::string text, os::read_file(path, kMaxJobFileBytes));
  std::error_code code;
  const os::Path absolute = std::filesystem::absolute(path, code);
  if (code) return make_error(Code::kIo, fmt::format("cannot resolve {}", path));
  return parse_named(text, path, absolute.parent_path().string(), overrides);
}

}  // namespace weft::job
