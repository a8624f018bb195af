// The table of the job file: every key declared once, with its type, bounds, default and help.
// Reading, writing, the refusal of unknown keys and docs/job-file.md follow from it.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "job/spec.h"

namespace weft::job {

// One key of a section S; path is dotted and relative to the section: "train.checkpoint.every".
template <typename S>
struct Key {
  std::string path;
  std::string type;  // for people: "number, above 0"
  std::string help;
  bool required = false;
  bool is_path = false;  // a file, relative to the job file
  std::function<Status(S&, const nlohmann::json&)> read;
  std::function<nlohmann::json(const S&)> write;  // null: left out
};

const std::vector<Key<JobSpec>>& job_keys();
const std::vector<Key<Binding>>& binding_keys();   // of [data.bind] INPUT = { ... }
const std::vector<Key<ArrayFile>>& array_keys();   // of [data.arrays.NAME]
const std::vector<Key<ParamGroup>>& group_keys();  // of [[group]]

// The table of docs/job-file.md in Markdown, one row a key.
std::string keys_markdown();

// Checks between keys; run by every reader.
Status check_spec(const JobSpec& spec);

}  // namespace weft::job
