#include "cli/contexts.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/os/file.h"

namespace weft::cli {
namespace {

using nlohmann::json;

os::Path contexts_path() {
  return os::user_config_dir() / "contexts.json";
}

}  // namespace

Result<Contexts> load_contexts() {
  Contexts contexts;
  auto text = os::read_file(contexts_path(), 1 << 20);
  if (!text.ok()) {
    if (text.error().code == Code::kNotFound) return contexts;
    return text.error();
  }
  try {
    const json parsed = json::parse(*text);
    contexts.current = parsed.at("current").get<std::string>();
    for (const auto& [name, fields] : parsed.at("contexts").items()) {
      contexts.by_name[name] = {
          fields.at("host").get<std::string>(), fields.at("port").get<uint16_t>(),
          fields.at("ca_fingerprint").get<std::string>(), fields.at("token").get<std::string>()};
    }
  } catch (const json::exception& error) {
    return make_error(Code::kCorrupt,
                      fmt::format("{} is damaged: {}", contexts_path().string(), error.what()),
                      "remove it and log in again with `weft login`");
  }
  return contexts;
}

Status save_contexts(const Contexts& contexts) {
  json fields = json::object();
  for (const auto& [name, context] : contexts.by_name) {
    fields[name] = {{"host", context.host},
                    {"port", context.port},
                    {"ca_fingerprint", context.ca_fingerprint},
                    {"token", context.token}};
  }
  WEFT_TRY_STATUS(os::make_directories(os::user_config_dir(), 0700));
  const json whole = {{"current", contexts.current}, {"contexts", fields}};
  return os::write_file_atomic(contexts_path(), whole.dump(2) + "\n", 0600);
}

Status remember_context(const std::string& name, const Context& context) {
  WEFT_TRY(Contexts contexts, load_contexts());
  contexts.by_name[name] = context;
  contexts.current = name;
  return save_contexts(contexts);
}

Status forget_context(const std::string& name) {
  WEFT_TRY(Contexts contexts, load_contexts());
  contexts.by_name.erase(name);
  if (contexts.current == name) {
    contexts.current = contexts.by_name.empty() ? "" : contexts.by_name.begin()->first;
  }
  if (contexts.by_name.empty()) return os::remove_all(contexts_path());
  return save_contexts(contexts);
}

Result<Context> find_context(const std::string& name) {
  WEFT_TRY(Contexts contexts, load_contexts());
  const std::string wanted = name.empty() ? contexts.current : name;
  const auto found = contexts.by_name.find(wanted);
  if (found != contexts.by_name.end()) return found->second;
  if (wanted.empty()) {
    return make_error(Code::kNotFound, "not logged in to any cluster",
                      "start one here with `weft up --peers 4`, or use `weft login`");
  }
  return make_error(Code::kNotFound, fmt::format("no login is called {}", wanted),
                    "log in with `weft login`");
}

}  // namespace weft::cli
