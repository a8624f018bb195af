// weft simulate: a scenario under a virtual clock; nothing is started anywhere.
#include <fmt/format.h>

#include <filesystem>

#include "base/clock.h"
#include "base/os/file.h"
#include "base/os/own_process.h"
#include "cli/app.h"
#include "cli/submit/training_graphs.h"
#include "simulate/chrome_trace.h"
#include "simulate/simulate.h"

namespace weft::cli {
namespace {

constexpr uint64_t kMostBytes = uint64_t{64} << 20;  // of a file of the user's

struct Options {
  std::string file, trace, trace_job;
  int64_t seed = -1, trace_steps = 3;
  size_t rows = 20;
};

// Beside the scenario, as job files have it.
std::string beside(const std::string& scenario, const std::string& path) {
  const std::filesystem::path own(path);
  return own.is_absolute() ? path : (std::filesystem::path(scenario).parent_path() / own).string();
}

Result<simulate::JobModel> load_model(const simulate::JobGroup& job, const std::string& scenario) {
  if (job.file.empty()) return simulate::model_of(job, nullptr);
  WEFT_TRY(const job::JobSpec asked, job::load_job_file(beside(scenario, job.file), {}));
  WEFT_TRY(TrainingGraphs graphs, load_training_graphs(asked));
  for (const std::string& warning : graphs.warnings) warn(warning);
  const simulate::JobModel loaded{std::move(graphs.train), std::move(graphs.spec)};
  return simulate::model_of(job, &loaded);
}

Status check_trace_job(const Options& options, const simulate::Scenario& scenario) {
  if (options.trace_job.empty()) return {};
  for (const simulate::JobGroup& group : scenario.jobs) {
    for (int32_t i = 0; i < group.count; ++i) {
      if (simulate::job_name(group, i) == options.trace_job) return {};
    }
  }
  return make_error(Code::kNotFound,
                    fmt::format("{} has no job \"{}\"", options.file, options.trace_job),
                    "name one as the table of results does");
}

void print_outcome(const simulate::Outcome& o, size_t rows) {
  std::vector<std::vector<std::string>> table = {{"JOB", "STATE", "STAGES", "STEPS", "STEP", "95 %",
                                                  "PREDICTED", "BUSY", "MOVES", "FAILURES",
                                                  "LOST STEPS", "TIME"}};
  for (const simulate::JobOutcome& job : o.jobs) {
    if (table.size() > rows) break;
    const bool ran = job.step_s > 0;
    const double ended = job.ended_s < 0 ? o.ended_s : job.ended_s;
    table.push_back({job.name, job.phase, std::to_string(job.stages),
                     fmt::format("{}/{}", job.steps, job.wanted),
                     ran ? fmt::format("{:.4g} s", job.step_s) : "-",
                     ran ? fmt::format("{:.4g} s", job.slow_step_s) : "-",
                     ran ? fmt::format("{:.4g} s", job.predicted_step_s) : "-",
                     ran ? fmt::format("{:.0f} %", 100 * job.busy) : "-",
                     std::to_string(job.migrations), std::to_string(job.failures),
                     std::to_string(job.computed - job.steps),
                     human_duration(ended - job.submitted_s)});
  }
  print_table(table);
  for (size_t i = 0; i + 1 < table.size(); ++i) {
    const simulate::JobOutcome& job = o.jobs[i];
    if (job.phase != "finished" && job.phase != "running") {
      fmt::print("{} is {}: {}\n", job.name, job.phase, job.reason);
    }
  }
  if (o.jobs.size() + 1 > table.size()) {
    fmt::print("... and {} more jobs (--rows)\n", o.jobs.size() + 1 - table.size());
  }
  fmt::print(
      "\n{} peers, {} at most at once; {} departures ({} announced), {} arrivals later\n"
      "{} plans ({} refused), {} more for running jobs, which moved {} times; {} resumes of "
      "failed jobs, {} steps lost\n"
      "{} sent between stages and with the broker, {} of it between sites; peers with a stage "
      "computed {:.0f} % of the time\n"
      "{} of virtual time{}, {} events in {:.1f} s ({:.1f} s of it planning), peak memory {}\n"
      "seed {}, result {}\n",
      o.peers, o.most_peers_at_once, o.departures, o.farewells, o.returns, o.plans, o.plans_refused,
      o.replans, o.migrations, o.recoveries, o.steps_lost, human_bytes(o.bytes_sent),
      human_bytes(o.bytes_between_sites), 100 * o.utilization, human_duration(o.ended_s),
      o.all_ended ? "" : " (jobs were not done)", o.events, o.wall_s, o.planning_s,
      human_bytes(static_cast<double>(os::peak_resident_bytes())), o.seed, o.hash);
  for (const std::string& note : o.notes) fmt::print("note: {}\n", note);
}

Status simulate_file(const Options& options, Globals& globals) {
  WEFT_TRY(const std::string text, os::read_file(options.file, kMostBytes));
  const auto read = [&](const std::string& path) {
    return os::read_file(beside(options.file, path), kMostBytes);
  };
  WEFT_TRY(simulate::Scenario scenario, simulate::parse_scenario(text, options.file, read));
  if (options.seed >= 0) scenario.seed = static_cast<uint64_t>(options.seed);
  std::vector<simulate::JobModel> models;
  for (const simulate::JobGroup& job : scenario.jobs) {
    WEFT_TRY(simulate::JobModel model, load_model(job, options.file));
    models.push_back(std::move(model));
  }
  WEFT_TRY_STATUS(check_trace_job(options, scenario));
  simulate::SimulateOptions simulation;
  simulation.seconds = monotonic_seconds;
  for (const simulate::ChurnSpec& churn : scenario.churn) {
    simulation.traces.emplace_back();
    if (churn.trace.empty()) continue;
    const std::string path = beside(options.file, churn.trace);
    WEFT_TRY(const std::string rows, os::read_file(path, kMostBytes));
    WEFT_TRY(simulation.traces.back(), simulate::parse_trace(rows, path));
  }
  simulate::ChromeTrace trace(options.trace_job, options.trace_steps);
  if (!options.trace.empty()) {
    simulation.on_span = [&](const std::string& job, int32_t deployment,
                             const simulate::PlaySpan& span) { trace.span(job, deployment, span); };
    simulation.on_event = [&](double time_s, const std::string& job, const std::string& kind,
                              const std::string& message) {
      trace.event(time_s, job, kind, message);
    };
  }
  WEFT_TRY(const simulate::Outcome outcome, simulate::simulate(scenario, models, simulation));
  if (!options.trace.empty()) {
    if (trace.full()) warn("the trace is full: later events are not in it; choose --trace-job");
    const std::string document = trace.finish();
    WEFT_TRY_STATUS(os::write_file_atomic(options.trace, std::string_view(document)));
  }
  if (globals.json()) {
    nlohmann::json json = simulate::outcome_to_json(outcome);
    json["peak_memory_bytes"] = os::peak_resident_bytes();
    print_json(json);
  } else {
    print_outcome(outcome, options.rows);
  }
  return {};
}

}  // namespace

void add_simulate(CLI::App& app, Globals& globals) {
  auto options = std::make_shared<Options>();
  auto* verb = app.add_subcommand(
      "simulate", "plays jobs on simulated peers with the broker's own decisions; starts nothing");
  verb->add_option("file", options->file, "TOML scenario, see docs/simulate.md")->required();
  verb->add_option("--seed", options->seed, "instead of the scenario's")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--rows", options->rows, "jobs listed one by one (20)");
  verb->add_option("--trace", options->trace,
                   "also write a Chrome trace here (chrome://tracing, ui.perfetto.dev)");
  verb->add_option("--trace-job", options->trace_job, "of one job only, by name");
  verb->add_option("--trace-steps", options->trace_steps, "steps of each deployment in it (3)")
      ->check(CLI::PositiveNumber);
  verb->callback(
      [options, &globals] { run_verb(globals, [&] { return simulate_file(*options, globals); }); });
}

}  // namespace weft::cli
