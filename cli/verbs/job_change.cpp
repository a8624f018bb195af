// weft job cancel | resume | delete
#include <fmt/format.h>

#include "cli/api_client.h"
#include "cli/watch/watch_job.h"

namespace weft::cli {
namespace {

using nlohmann::json;

std::string path_of(const std::string& id, const char* tail) {
  return "/api/v1/jobs/" + path_segment(id) + tail;
}

Status change(const std::string& method, const std::string& target, const json& body,
              Globals& globals) {
  WEFT_TRY(ApiClient client, ApiClient::open(globals));
  WEFT_TRY(json answer, client.call(method, target, body));
  if (globals.json()) {
    print_json(answer);
  } else if (answer.contains("state")) {
    fmt::print("job {} {}\n", answer.value("id", ""), answer.value("state", ""));
  }
  return {};
}

void add_cancel(CLI::App& job, Globals& globals) {
  auto id = std::make_shared<std::string>();
  auto reason = std::make_shared<std::string>();
  auto* verb = job.add_subcommand("cancel", "stop a job; its checkpoints stay");
  verb->add_option("job", *id, "id or name")->required();
  verb->add_option("--reason", *reason, "kept with the job");
  verb->callback([=, &globals] {
    run_verb(globals, [&] {
      const json body = reason->empty() ? json::object() : json{{"reason", *reason}};
      return change("POST", path_of(*id, "/cancel"), body, globals);
    });
  });
}

struct ResumeOptions {
  std::string id;
  int stages = 0;
  int64_t steps = 0;
  bool watch = false;
};

Status resume(const ResumeOptions& options, Globals& globals) {
  json body = json::object();
  if (options.stages > 0) body["stages"] = options.stages;
  if (options.steps > 0) body["steps"] = options.steps;
  WEFT_TRY_STATUS(change("POST", path_of(options.id, "/resume"), body, globals));
  if (!options.watch) return {};
  WEFT_TRY(ApiClient client, ApiClient::open(globals));
  return watch_job(client, options.id, globals);
}

void add_resume(CLI::App& job, Globals& globals) {
  auto options = std::make_shared<ResumeOptions>();
  auto* verb = job.add_subcommand("resume", "go on from the last complete checkpoint");
  verb->add_option("job", options->id, "id or name")->required();
  verb->add_option("--stages", options->stages, "another number of stages");
  verb->add_option("--steps", options->steps, "another total number of steps");
  verb->add_flag("--watch", options->watch, "follow it until it ends");
  verb->callback([=, &globals] { run_verb(globals, [&] { return resume(*options, globals); }); });
}

void add_delete(CLI::App& job, Globals& globals) {
  auto id = std::make_shared<std::string>();
  auto* verb = job.add_subcommand("delete", "forget an ended job and its checkpoints");
  verb->add_option("job", *id, "id or name")->required();
  verb->callback([=, &globals] {
    run_verb(globals, [&] { return change("DELETE", path_of(*id, ""), nullptr, globals); });
  });
}

}  // namespace

void add_job_change(CLI::App& job, Globals& globals) {
  add_cancel(job, globals);
  add_resume(job, globals);
  add_delete(job, globals);
}

}  // namespace weft::cli
