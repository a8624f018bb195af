// weft job submit JOB.toml [--dry-run] [--watch] [--set key=value]
#include <fmt/format.h>

#include "cli/api_client.h"
#include "cli/submit/submission.h"
#include "cli/watch/watch_job.h"
#include "net/blob/blob_store.h"

namespace weft::cli {
namespace {

using nlohmann::json;

struct Options {
  std::string file;
  std::vector<std::string> overrides;
  bool dry_run = false;
  bool watch = false;
};

Status upload_all(ApiClient& client, const Submission& submission, const Globals& globals) {
  uint64_t total = 0, sent = 0;
  for (const UploadFile& file : submission.files()) {
    total += file.bytes;
    WEFT_TRY(uint64_t bytes, net::upload_blob(client.http(), file.sha256, file.path));
    sent += bytes;
  }
  if (!globals.json()) {
    fmt::print("{} files, {} ({} new to the broker)\n", submission.files().size(),
               human_bytes(static_cast<double>(total)), human_bytes(static_cast<double>(sent)));
  }
  return {};
}

void print_plan(const json& answer) {
  fmt::print("plan: {}\n", answer.value("reason", ""));
  std::vector<std::vector<std::string>> rows = {
      {"STAGE", "PEERS", "FLOPS/MICRO-BATCH", "PARAMETERS", "MEMORY"}};
  int index = 0;
  for (const json& stage : answer.at("plan").at("stages")) {
    std::string peers;
    for (const json& peer : stage.at("replicas")) {
      peers += (peers.empty() ? "" : ",") + peer.get<std::string>();
    }
    rows.push_back({std::to_string(index++), peers, human_count(stage.value("flops", 0.0)),
                    human_bytes(stage.value("parameter_bytes", 0.0)),
                    human_bytes(stage.value("memory_bytes", 0.0))});
  }
  print_table(rows);
}

Status submit(const Options& options, Globals& globals) {
  WEFT_TRY(job::JobSpec spec, job::load_job_file(options.file, options.overrides));
  WEFT_TRY(Submission submission, Submission::prepare(spec));
  for (const std::string& warning : submission.warnings()) warn(warning);
  WEFT_TRY(ApiClient client, ApiClient::open(globals));
  WEFT_TRY_STATUS(upload_all(client, submission, globals));
  if (options.dry_run) {
    WEFT_TRY(json answer, client.call("POST", "/api/v1/plans", submission.body()));
    for (const json& warning : answer.value("warnings", json::array())) {
      warn(warning.get<std::string>());
    }
    if (globals.json()) {
      print_json(answer);
    } else {
      print_plan(answer);
    }
    return {};
  }
  WEFT_TRY(json created, client.call("POST", "/api/v1/jobs", submission.body()));
  const std::string id = created.at("id").get<std::string>();
  if (globals.json() && !options.watch) print_json(created);
  if (!globals.json()) fmt::print("job {} ({})\n", id, created.value("name", ""));
  if (!options.watch) return {};
  return watch_job(client, id, globals);
}

}  // namespace

void add_job_submit(CLI::App& job, Globals& globals) {
  auto options = std::make_shared<Options>();
  auto* verb = job.add_subcommand("submit", "submit a job file");
  verb->add_option("file", options->file, "TOML job file, see docs/job-file.md")->required();
  verb->add_option("--set", options->overrides, "override a key: --set train.lr=3e-4");
  verb->add_flag("--dry-run", options->dry_run,
                 "check everything and show the plan, start nothing");
  verb->add_flag("--watch", options->watch, "follow the job until it ends");
  verb->callback(
      [options, &globals] { run_verb(globals, [&] { return submit(*options, globals); }); });
}

}  // namespace weft::cli
