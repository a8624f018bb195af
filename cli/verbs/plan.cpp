// weft plan JOB.toml [--peers FILE --links FILE] [--compression FILE] [--evaluate PLAN.json]
// [--svg FILE]
#include <fmt/format.h>

#include "base/os/file.h"
#include "broker/planner/compression_file.h"
#include "broker/planner/links_file.h"
#include "broker/planner/report_json.h"
#include "cli/api_client.h"
#include "cli/plan/plan_svg.h"
#include "cli/submit/training_graphs.h"
#include "job/json_read.h"

namespace weft::cli {
namespace {

using nlohmann::json;

struct Options {
  std::string file, peers, links, compression, evaluate, svg;
  std::vector<std::string> overrides;
  double memory_share = broker::PlannerOptions{}.memory_share;
};

// What a peer measured of itself, and what real runs taught; as before where it has not.
Status add_profile(ApiClient& client, broker::PlannerPeer& peer) {
  WEFT_TRY(const json whole, client.get("/api/v1/peers/" + path_segment(peer.id)));
  const auto profile = whole.find("profile");
  if (profile == whole.end() || profile->is_null()) return {};
  WEFT_TRY(job::DeviceProfile read, job::profile_from_json(*profile));
  peer.profile = std::make_shared<const job::DeviceProfile>(std::move(read));
  const json correction = whole.value("correction", json::object());
  const double planned = correction.value("planned", correction.value("factor", 1.0));
  if (planned > 0) peer.correction = planned;
  return {};
}

// What the broker has measured of the ways between its idle peers.
Status add_measured_links(ApiClient& client, broker::PlannerWorld& world) {
  WEFT_TRY(const json answer, client.get("/api/v1/links?peers=idle"));
  for (const json& link : answer.at("links")) {
    if (!link.at("bandwidth_mbit_s").is_number()) continue;
    world.links.push_back({link.value("from", ""), link.value("to", ""),
                           link.value("latency_ms", 0.0), link.value("bandwidth_mbit_s", 0.0)});
  }
  for (const json& line : answer.at("lines")) {
    const auto rate = [&](const char* key) {
      return line.at(key).is_number() ? line.at(key).get<double>() : 0;
    };
    const auto peers = line.at("peers").get<std::vector<std::string>>();
    if (peers.empty()) continue;
    world.access.push_back({peers.front(), peers, rate("up_mbit_s"), rate("down_mbit_s"),
                            line.value("up_assumed", false), line.value("down_assumed", false)});
  }
  return {};
}

// The idle peers of the broker the user is logged in to, and what it knows of their links.
Result<broker::PlannerWorld> world_of_broker(const Globals& globals) {
  Result<ApiClient> client = ApiClient::open(globals);
  if (!client.ok()) {
    Error error = std::move(client).error();
    error.next += "; or plan without a broker: --peers peers.toml --links links.csv";
    return error;
  }
  WEFT_TRY(const json answer, client->get("/api/v1/peers"));
  broker::PlannerWorld world;
  for (const json& peer : answer.at("peers")) {
    if (!peer.value("spare", false)) continue;
    broker::PlannerPeer idle;
    idle.id = peer.value("id", "");
    idle.cores = peer.value("cores", 1u);
    idle.card = job::is_card(peer.value("device", ""));
    idle.memory_bytes = peer.value("memory_bytes", uint64_t{0});
    const auto free = peer.find("free_memory_bytes");
    if (free != peer.end() && free->is_number_unsigned()) idle.free_memory_bytes = *free;
    WEFT_TRY_STATUS(add_profile(*client, idle));
    world.peers.push_back(std::move(idle));
    world.site_of.emplace_back();
  }
  WEFT_TRY_STATUS(add_measured_links(*client, world));
  return world;
}

Result<broker::PlannerWorld> world_of(const Options& options, const Globals& globals) {
  broker::PlannerWorld world;
  constexpr uint64_t kMost = uint64_t{256} << 20;
  if (!options.peers.empty()) {
    WEFT_TRY(const std::string text, os::read_file(options.peers, kMost));
    WEFT_TRY(world, broker::parse_peers(text, options.peers));
  } else if (options.links.empty()) {
    return world_of_broker(globals);
  }
  if (!options.links.empty()) {
    WEFT_TRY(const std::string text, os::read_file(options.links, kMost));
    WEFT_TRY_STATUS(broker::add_links(text, options.links, world));
  }
  return world;
}

// What -o json printed, or the plan alone.
Result<job::Plan> read_plan(const std::string& path) {
  constexpr uint64_t kMost = uint64_t{64} << 20;
  WEFT_TRY(const std::string text, os::read_file(path, kMost));
  WEFT_TRY(const json document, job::parse_json(text, path));
  const bool whole = document.is_object() && document.contains("plan");
  return job::plan_from_json(whole ? document.at("plan") : document);
}

// Of ways that are compressed; nothing where none is.
void print_codecs(const broker::PlanReport& report) {
  std::vector<std::vector<std::string>> rows = {
      {"FROM", "TO", "TENSORS", "WIRE", "CODEC", "ENCODE", "DECODE", "SEND"}};
  for (const broker::WayPrediction& way : report.prediction.ways) {
    if (way.codecs.empty()) continue;
    rows.push_back({std::to_string(way.from), std::to_string(way.to), human_bytes(way.bytes),
                    human_bytes(way.wire_bytes), fmt::format("{}", fmt::join(way.codecs, ", ")),
                    fmt::format("{:.3g} ms", 1e3 * way.encode_s),
                    fmt::format("{:.3g} ms", 1e3 * way.decode_s),
                    fmt::format("{:.3g} ms", 1e3 * way.seconds)});
  }
  if (rows.size() > 1) print_table(rows);
}

void print_report(const broker::PlanReport& report) {
  fmt::print("plan: {}\n", report.plan.reason);
  std::vector<std::vector<std::string>> rows = {{"STAGE", "PEER", "COMPUTE", "SEND", "RECEIVE",
                                                 "MEMORY", "IN FLIGHT", "KEEPS", "BUSY",
                                                 "PARAMETERS"}};
  for (size_t s = 0; s < report.plan.stages.size(); ++s) {
    const job::StagePlan& stage = report.plan.stages[s];
    const broker::StagePrediction& row = report.prediction.stages[s];
    rows.push_back({std::to_string(s), stage.replicas.at(0),
                    report.timed ? fmt::format("{:.3g} ms", 1e3 * row.compute_s) : "-",
                    fmt::format("{:.3g} ms", 1e3 * row.send_s),
                    fmt::format("{:.3g} ms", 1e3 * row.receive_s),
                    human_bytes(static_cast<double>(stage.memory_bytes)),
                    std::to_string(row.in_flight), stage.recompute ? "inputs" : "all",
                    report.timed ? fmt::format("{:.0f} %", 100 * row.busy) : "-",
                    human_bytes(static_cast<double>(stage.parameter_bytes))});
  }
  print_table(rows);
  fmt::print("times are of a micro-batch\n");
  print_codecs(report);
  for (const broker::PlanLeftOut& left : report.left_out) {
    fmt::print("left out {}: {}\n", left.peer, left.why);
  }
}

Status plan(const Options& options, Globals& globals) {
  WEFT_TRY(const job::JobSpec asked, job::load_job_file(options.file, options.overrides));
  WEFT_TRY(const TrainingGraphs graphs, load_training_graphs(asked));
  for (const std::string& warning : graphs.warnings) warn(warning);
  WEFT_TRY(const broker::PlannerWorld world, world_of(options, globals));
  broker::PlannerOptions planner;
  planner.access = world.access;
  planner.memory_share = options.memory_share;
  if (!options.compression.empty()) {
    WEFT_TRY(const std::string text, os::read_file(options.compression, uint64_t{1} << 20));
    WEFT_TRY(planner.compression, broker::parse_compression(text, options.compression));
  }
  Result<broker::PlanReport> report = Error{};
  if (options.evaluate.empty()) {
    report = broker::plan_job(graphs.train, graphs.spec, world.peers, world.links, planner);
  } else {
    WEFT_TRY(const job::Plan given, read_plan(options.evaluate));
    report =
        broker::evaluate_plan(graphs.train, graphs.spec, given, world.peers, world.links, planner);
  }
  if (!report.ok()) return std::move(report).error();
  report->notes.insert(report->notes.end(), world.notes.begin(), world.notes.end());
  if (!options.svg.empty()) {
    const std::string picture = plan_svg(*report);
    WEFT_TRY_STATUS(os::write_file_atomic(options.svg, std::string_view(picture)));
  }
  if (globals.json()) {
    print_json(broker::report_to_json(*report, graphs.train));
  } else {
    print_report(*report);
    for (const std::string& note : world.notes) fmt::print("note: {}\n", note);
  }
  return {};
}

}  // namespace

void add_plan(CLI::App& app, Globals& globals) {
  auto options = std::make_shared<Options>();
  auto* verb = app.add_subcommand(
      "plan", "which peers would run what of a job, how fast, and why; starts nothing");
  verb->add_option("file", options->file, "TOML job file, see docs/job-file.md")->required();
  verb->add_option("--peers", options->peers,
                   "TOML file of peers, see docs/planning.md; else those of --links, else the "
                   "broker's idle ones");
  verb->add_option("--links", options->links, "CSV of measured links: pairs or a matrix");
  verb->add_option("--compression", options->compression,
                   "TOML file of an assumed codec, to see what one would bring; else none");
  verb->add_option("--evaluate", options->evaluate,
                   "judge this plan (JSON, as -o json prints it) instead of making one");
  verb->add_option("--svg", options->svg, "also draw peers, sites, stages and links here");
  verb->add_option("--memory-share", options->memory_share,
                   "share of a peer's memory a stage may plan with")
      ->check(CLI::Range(0.01, 1.0));
  verb->add_option("--set", options->overrides, "override a key: --set pipeline.stages=3");
  verb->callback(
      [options, &globals] { run_verb(globals, [&] { return plan(*options, globals); }); });
}

}  // namespace weft::cli
