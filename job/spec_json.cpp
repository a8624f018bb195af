// The JSON form of a job: the layout of the job file, key by key, read and written by its table.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/config.h"
#include "job/spec_keys.h"

namespace weft::job {
namespace {

using nlohmann::json;

constexpr size_t kMaxBindings = 256, kMaxArrays = 64, kMaxGroups = 1024;

std::vector<std::string> all_paths() {
  std::vector<std::string> paths = {"data.bind", "data.arrays", "group"};
  for (const auto& key : job_keys()) paths.push_back(key.path);
  return paths;
}

std::string leaf_of(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}

Error unknown_key(const std::string& path, const std::vector<std::string>& siblings,
                  const std::string& prefix) {
  std::string meant;
  if (auto nearest = nearest_name(leaf_of(path), siblings)) {
    meant = prefix + *nearest;
  } else {  // the right key in the wrong section?
    for (const std::string& known : all_paths()) {
      if (leaf_of(known) == leaf_of(path)) meant = known;
    }
  }
  std::string next = "docs/job-file.md lists all keys";
  if (!meant.empty()) next = fmt::format("did you mean \"{}\"?", meant);
  return make_error(Code::kInvalid, fmt::format("unknown key \"{}\"", path), std::move(next));
}

// Reads an object whose keys are all in one table, without sections.
template <typename S>
Result<S> read_flat(const json& object, const std::vector<Key<S>>& keys, const std::string& path) {
  if (!object.is_object()) {
    return make_error(Code::kInvalid, fmt::format("{} must be a table", path));
  }
  S section;
  std::vector<std::string> names;
  for (const Key<S>& key : keys) names.push_back(key.path);
  for (const auto& [name, value] : object.items()) {
    const auto key = std::find_if(keys.begin(), keys.end(),
                                  [&](const Key<S>& known) { return known.path == name; });
    if (key == keys.end()) return unknown_key(path + "." + name, names, path + ".");
    if (Status status = key->read(section, value); !status.ok()) {
      return std::move(status).error().within(path + "." + name);
    }
  }
  for (const Key<S>& key : keys) {
    if (key.required && !object.contains(key.path)) {
      return make_error(Code::kInvalid, fmt::format("{}.{} is missing", path, key.path));
    }
  }
  return section;
}

Error too_many(const char* what, size_t count, size_t most) {
  return make_error(Code::kTooLarge,
                    fmt::format("{} {}, at most {} are allowed", count, what, most));
}

Status read_bindings(JobSpec& spec, const json& value) {
  if (!value.is_object()) return make_error(Code::kInvalid, "data.bind must be a table");
  if (value.size() > kMaxBindings) return too_many("bindings", value.size(), kMaxBindings);
  for (const auto& [input, entry] : value.items()) {
    const json full = entry.is_string() ? json{{"column", entry}} : entry;
    WEFT_TRY(Binding binding, read_flat(full, binding_keys(), "data.bind." + input));
    binding.input = input;
    spec.data.bindings.push_back(std::move(binding));
  }
  return {};
}

Status read_arrays(JobSpec& spec, const json& value) {
  if (!value.is_object()) return make_error(Code::kInvalid, "data.arrays must be a table");
  if (value.size() > kMaxArrays) return too_many("arrays", value.size(), kMaxArrays);
  for (const auto& [name, entry] : value.items()) {
    WEFT_TRY(ArrayFile array, read_flat(entry, array_keys(), "data.arrays." + name));
    array.name = name;
    spec.data.arrays.push_back(std::move(array));
  }
  return {};
}

Status read_groups(JobSpec& spec, const json& value) {
  if (!value.is_array()) return make_error(Code::kInvalid, "group must be a list: [[group]]");
  if (value.size() > kMaxGroups) return too_many("groups", value.size(), kMaxGroups);
  for (size_t i = 0; i < value.size(); ++i) {
    WEFT_TRY(ParamGroup group, read_flat(value[i], group_keys(), fmt::format("group[{}]", i)));
    spec.groups.push_back(std::move(group));
  }
  return {};
}

class Reader {
 public:
  Result<JobSpec> read(const json& document) {
    if (!document.is_object()) return make_error(Code::kInvalid, "a job must be a table of keys");
    WEFT_TRY_STATUS(section(document, ""));
    for (const auto& key : job_keys()) {
      if (key.required && !seen_.count(key.path)) {
        return make_error(Code::kInvalid, fmt::format("{} is missing", key.path),
                          fmt::format("add it to the job file: {}", key.help));
      }
    }
    WEFT_TRY_STATUS(check_spec(spec_));
    return std::move(spec_);
  }

 private:
  Status section(const json& object, const std::string& prefix) {
    for (const auto& [name, value] : object.items()) {
      WEFT_TRY_STATUS(entry(prefix + name, value, prefix));
    }
    return {};
  }

  Status entry(const std::string& path, const json& value, const std::string& prefix) {
    if (path == "data.bind") return read_bindings(spec_, value);
    if (path == "data.arrays") return read_arrays(spec_, value);
    if (path == "group") return read_groups(spec_, value);
    bool is_section = false;
    for (const auto& key : job_keys()) {
      if (key.path == path) {
        seen_.insert(path);
        Status status = key.read(spec_, value);
        return status.ok() ? Status() : Status(std::move(status).error().within(path));
      }
      is_section = is_section || key.path.rfind(path + ".", 0) == 0;
    }
    if (!is_section) return unknown_key(path, siblings(prefix), prefix);
    if (!value.is_object()) {
      return make_error(Code::kInvalid, fmt::format("{0} must be a table: [{0}]", path));
    }
    return section(value, path + ".");
  }

  // Names that may stand directly under a prefix.
  static std::vector<std::string> siblings(const std::string& prefix) {
    std::set<std::string> names;
    for (const std::string& path : all_paths()) {
      if (path.rfind(prefix, 0) != 0) continue;
      const std::string rest = path.substr(prefix.size());
      names.insert(rest.substr(0, rest.find('.')));
    }
    return {names.begin(), names.end()};
  }

  JobSpec spec_;
  std::set<std::string> seen_;
};

template <typename S>
json write_flat(const S& section, const std::vector<Key<S>>& keys) {
  json object = json::object();
  for (const Key<S>& key : keys) {
    if (json value = key.write(section); !value.is_null()) object[key.path] = std::move(value);
  }
  return object;
}

json& slot(json& document, const std::string& path) {
  json* at = &document;
  for (size_t begin = 0;;) {
    const size_t dot = path.find('.', begin);
    at = &(*at)[path.substr(begin, dot - begin)];
    if (dot == std::string::npos) return *at;
    begin = dot + 1;
  }
}

}  // namespace

json spec_to_json(const JobSpec& spec) {
  json document = json::object();
  for (const auto& key : job_keys()) slot(document, key.path) = key.write(spec);
  json bind = json::object(), arrays = json::object(), groups = json::array();
  for (const Binding& b : spec.data.bindings) bind[b.input] = write_flat(b, binding_keys());
  for (const ArrayFile& a : spec.data.arrays) arrays[a.name] = write_flat(a, array_keys());
  for (const ParamGroup& g : spec.groups) groups.push_back(write_flat(g, group_keys()));
  document["data"]["bind"] = std::move(bind);
  document["data"]["arrays"] = std::move(arrays);
  document["group"] = std::move(groups);
  return document;
}

Result<JobSpec> spec_from_json(const json& document) {
  return Reader().read(document);
}

}  // namespace weft::job
