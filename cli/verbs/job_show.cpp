// weft job list | get | logs | events | metrics | explain
#include <fmt/format.h>

#include <map>

#include "cli/api_client.h"
#include "cli/verbs/pages.h"

namespace weft::cli {
namespace {

using nlohmann::json;
using Print = std::function<void(const json&)>;

std::string path_of(const std::string& id, const std::string& tail = {}) {
  return "/api/v1/jobs/" + path_segment(id) + tail;
}

std::string loss_text(const json& job, const char* key) {
  return job.contains(key) && job[key].is_number() ? fmt::format("{:.4f}", job[key].get<double>())
                                                   : "-";
}

void print_jobs(const json& answer) {
  std::vector<std::vector<std::string>> rows = {
      {"ID", "NAME", "STATE", "STEP", "LOSS", "EVAL", "STAGES", "CREATED", "REASON"}};
  for (const json& job : answer.at("jobs")) {
    rows.push_back({job.value("id", ""), job.value("name", ""), job.value("state", ""),
                    fmt::format("{}/{}", job.value("step", 0), job.value("steps", 0)),
                    loss_text(job, "loss"), loss_text(job, "eval_loss"),
                    std::to_string(job.value("stages", 0)),
                    ago(job.value("created_ms", int64_t{0})), job.value("reason", "")});
  }
  print_table(rows);
}

void print_fields(const json& object) {
  for (const auto& [key, value] : object.items()) {
    if (key == "spec") continue;
    fmt::print("{:<22} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  }
}

void print_events(const json& answer) {
  for (const json& event : answer.at("events")) {
    fmt::print("{:<10} {:<12} {}\n", ago(event.value("time_ms", int64_t{0})),
               event.value("kind", ""), event.value("message", ""));
  }
}

void print_logs(const json& answer) {
  for (const json& line : answer.at("lines")) {
    fmt::print("[stage {}] {}\n", line.value("stage", 0), line.value("text", ""));
  }
}

void print_metrics(const json& answer) {
  std::vector<std::vector<std::string>> rows = {{"STEP", "LOSS", "GRAD-NORM", "LR", "SECONDS"}};
  for (const json& step : answer.at("steps")) {
    rows.push_back({std::to_string(step.value("step", 0)), loss_text(step, "loss"),
                    loss_text(step, "grad_norm"), fmt::format("{:.3g}", step.value("lr", 0.0)),
                    fmt::format("{:.3f}", step.value("seconds", 0.0))});
  }
  print_table(rows);
  for (const json& eval : answer.at("evals")) {
    fmt::print("eval at step {}: loss {}\n", eval.value("step", 0), loss_text(eval, "loss"));
  }
}

// What the planner expects of each stage, and of the step beside what was seen.
void print_plan(const json& answer) {
  const json plan = answer.value("plan", json());
  if (!plan.is_object() || !plan.contains("stages")) return;
  std::vector<std::vector<std::string>> rows = {{"STAGE", "PEER", "NODES", "COMPUTE", "SEND",
                                                 "RECEIVE", "MEMORY", "IN FLIGHT", "KEEPS",
                                                 "PARAMETERS"}};
  const json peers = answer.value("peers", json::array());
  std::map<int64_t, int64_t> nodes;
  for (const json& stage : plan.at("partition").at("stage_of")) ++nodes[stage.get<int64_t>()];
  for (size_t s = 0; s < plan.at("stages").size(); ++s) {
    const json& stage = plan.at("stages")[s];
    const auto seconds = [&](const char* key) {
      const double value = stage.value(key, 0.0);
      return value > 0 ? fmt::format("{:.3g} s", value) : std::string("-");
    };
    const std::string peer = s < peers.size() ? peers[s].get<std::string>()
                                              : stage.at("replicas").at(0).get<std::string>();
    rows.push_back({std::to_string(s), peer, std::to_string(nodes[static_cast<int64_t>(s)]),
                    seconds("compute_s"), seconds("send_s"), seconds("receive_s"),
                    human_bytes(stage.value("memory_bytes", 0.0)),
                    std::to_string(stage.value("in_flight", 0)),
                    stage.value("recompute", false) ? "inputs" : "all",
                    human_bytes(stage.value("parameter_bytes", 0.0))});
  }
  print_table(rows);
  const double predicted = plan.value("step_s", 0.0);
  const json observed = answer.value("observed_step_s", json());
  fmt::print("{}, gap {}; a step: {} predicted, {} observed; the stages' times are of a step\n",
             plan.value("schedule", ""), plan.value("gap", 1),
             predicted > 0 ? fmt::format("{:.3g} s", predicted) : "not",
             observed.is_number() ? fmt::format("{:.3g} s", observed.get<double>()) : "none");
}

void print_explain(const json& answer) {
  fmt::print("{}\n", answer.value("reason", ""));
  print_plan(answer);
  for (const json& decision : answer.value("decisions", json::array())) {
    fmt::print("{:<10} {}: {}\n", ago(decision.value("time_ms", int64_t{0})),
               decision.value("decision", ""), decision.value("reason", ""));
  }
}

void add_show(CLI::App& job, Globals& globals, const char* name, const char* help,
              const std::string& tail, const Print& print) {
  auto id = std::make_shared<std::string>();
  auto* verb = job.add_subcommand(name, help);
  verb->add_option("job", *id, "id or name")->required();
  verb->callback([id, tail, print, &globals] {
    run_verb(globals, [&]() -> Status {
      WEFT_TRY(ApiClient client, ApiClient::open(globals));
      WEFT_TRY(json answer, client.get(path_of(*id, tail)));
      if (globals.json()) {
        print_json(answer);
      } else {
        print(answer);
      }
      return {};
    });
  });
}

// Whole lists, not their first pages. Rows of a table wait for the last, the others are printed as
// they come.
void add_list(CLI::App& job, Globals& globals, const char* name, const char* help,
              const std::vector<std::string>& lists, bool table, const Print& print) {
  auto id = std::make_shared<std::string>();
  auto* verb = job.add_subcommand(name, help);
  verb->add_option("job", *id, "id or name")->required();
  const std::string tail = fmt::format("/{}", name);
  verb->callback([id, tail, lists, table, print, &globals] {
    run_verb(globals, [&]() -> Status {
      WEFT_TRY(ApiClient client, ApiClient::open(globals));
      const auto get = [&client](const std::string& target) { return client.get(target); };
      const std::string path = path_of(*id, tail);
      if (!globals.json() && !table) return for_each_page(get, path, lists, print);
      WEFT_TRY(const json answer, all_pages(get, path, lists));
      if (globals.json()) {
        print_json(answer);
      } else {
        print(answer);
      }
      return {};
    });
  });
}

}  // namespace

void add_job_show(CLI::App& job, Globals& globals) {
  auto* list = job.add_subcommand("list", "every job, newest first");
  list->callback([&globals] {
    run_verb(globals, [&]() -> Status {
      WEFT_TRY(ApiClient client, ApiClient::open(globals));
      WEFT_TRY(json answer, client.get("/api/v1/jobs"));
      if (globals.json()) {
        print_json(answer);
      } else {
        print_jobs(answer);
      }
      return {};
    });
  });
  add_show(job, globals, "get", "one job, whole", "", print_fields);
  add_list(job, globals, "events", "what happened to a job", {"events"}, false, print_events);
  add_list(job, globals, "logs", "what its workers logged", {"lines"}, false, print_logs);
  add_list(job, globals, "metrics", "loss and speed of every step", {"steps", "evals"}, true,
           print_metrics);
  add_show(job, globals, "explain", "why its plan is as it is", "/explain", print_explain);
}

}  // namespace weft::cli
