// weft checkpoint list | export JOB --out model.safetensors
#include <fmt/format.h>

#include <filesystem>

#include "cli/api_client.h"
#include "job/checkpoint.h"
#include "job/safetensors.h"
#include "net/blob/blob_store.h"

namespace weft::cli {
namespace {

using nlohmann::json;

std::string path_of(const std::string& id) {
  return "/api/v1/jobs/" + path_segment(id) + "/checkpoints";
}

Status list(const std::string& id, Globals& globals) {
  WEFT_TRY(ApiClient client, ApiClient::open(globals));
  WEFT_TRY(json answer, client.get(path_of(id)));
  if (globals.json()) {
    print_json(answer);
    return {};
  }
  std::vector<std::vector<std::string>> rows = {{"STEP", "STATE", "SHARDS", "SIZE", "STORED"}};
  for (const json& checkpoint : answer.at("checkpoints")) {
    double bytes = 0;
    for (const json& shard : checkpoint.at("shards")) bytes += shard.value("bytes", 0.0);
    rows.push_back({std::to_string(checkpoint.value("step", 0)),
                    checkpoint.value("complete", false) ? "complete" : "partial",
                    std::to_string(checkpoint.at("shards").size()), human_bytes(bytes),
                    ago(checkpoint.value("time_ms", int64_t{0}))});
  }
  print_table(rows);
  return {};
}

struct ExportOptions {
  std::string job, out;
  int64_t step = -1;
};

Result<json> choose(const json& answer, const ExportOptions& options) {
  const json* best = nullptr;
  for (const json& checkpoint : answer.at("checkpoints")) {
    if (!checkpoint.value("complete", false)) continue;
    const int64_t step = checkpoint.at("step").get<int64_t>();
    if (options.step >= 0 ? step == options.step
                          : best == nullptr || step > best->at("step").get<int64_t>()) {
      best = &checkpoint;
    }
  }
  if (best != nullptr) return *best;
  return make_error(
      Code::kNotFound,
      options.step >= 0
          ? fmt::format("job {} has no complete checkpoint of step {}", options.job, options.step)
          : fmt::format("job {} has no complete checkpoint yet", options.job),
      "see `weft checkpoint list`");
}

// Shards go through a store beside the output, so that an interrupted export resumes.
Status export_to(const ExportOptions& options, Globals& globals) {
  WEFT_TRY(Context context, find_context(globals.context));
  ApiClient client(context);
  WEFT_TRY(json answer, client.get(path_of(options.job)));
  WEFT_TRY(json checkpoint, choose(answer, options));
  const os::Path folder = options.out + ".parts";
  WEFT_TRY(net::BlobStore store, net::BlobStore::open(folder));
  net::HttpClientOptions source;
  source.host = context.host;
  source.port = context.port;
  source.ca_fingerprint = context.ca_fingerprint;
  source.bearer_token = context.token;
  std::vector<job::Safetensors> shards;
  for (const json& shard : checkpoint.at("shards")) {
    const std::string name = shard.at("sha256").get<std::string>();
    WEFT_TRY_STATUS(net::fetch_blob(store, name, shard.at("bytes").get<uint64_t>(), {source}));
    WEFT_TRY(job::Safetensors content, job::read_safetensors(store.path_of(name)));
    shards.push_back(std::move(content));
  }
  WEFT_TRY(job::Safetensors merged, job::merge_export(shards));
  WEFT_TRY_STATUS(job::write_safetensors(options.out, merged));
  const int64_t step = checkpoint.at("step").get<int64_t>();
  if (globals.json()) {
    print_json({{"path", options.out}, {"step", step}, {"tensors", merged.tensors.size()}});
  } else {
    fmt::print("{}: {} tensors of step {}\n", options.out, merged.tensors.size(), step);
  }
  shards.clear();
  return os::remove_all(folder);
}

}  // namespace

void add_checkpoint(CLI::App& app, Globals& globals) {
  CLI::App* checkpoint = app.add_subcommand("checkpoint", "what a job has stored");
  checkpoint->require_subcommand(1);
  auto options = std::make_shared<ExportOptions>();
  auto* show = checkpoint->add_subcommand("list", "checkpoints of a job");
  show->add_option("job", options->job, "id or name")->required();
  show->callback([=, &globals] { run_verb(globals, [&] { return list(options->job, globals); }); });
  auto* exporting = checkpoint->add_subcommand(
      "export", "one safetensors file with the module's own parameter names");
  exporting->add_option("job", options->job, "id or name")->required();
  exporting->add_option("--out", options->out, "file to write")->required();
  exporting->add_option("--step", options->step, "of this step; the last complete one otherwise");
  exporting->callback(
      [=, &globals] { run_verb(globals, [&] { return export_to(*options, globals); }); });
}

}  // namespace weft::cli
