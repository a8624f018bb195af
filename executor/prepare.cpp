#include "executor/prepare.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/os/file.h"
#include "executor/worker_jail.h"
#include "job/names.h"
#include "job/plan.h"
#include "opdag/cut.h"
#include "opdag/derive.h"
#include "opdag/import.h"
#include "opdag/op_table.h"
#include "opdag/text.h"

namespace weft::executor {
namespace {

struct Options {
  std::string model, eval_model, out;
  job::PipelineSchedule schedule = job::PipelineSchedule::k1F1B;
  int32_t stages = 1;
};

Result<Options> parse(int argc, char** argv) {
  Options options;
  for (int i = 2; i < argc; ++i) {
    const std::string name = argv[i];
    if (!name.starts_with("--")) {
      options.model = name;
      continue;
    }
    if (i + 1 >= argc) return make_error(Code::kInvalid, fmt::format("{} needs a value", name));
    const std::string value = argv[++i];
    if (name == "--out") {
      options.out = value;
    } else if (name == "--eval-model") {
      options.eval_model = value;
    } else if (name == "--schedule" && job::value_of<job::PipelineSchedule>(value)) {
      options.schedule = *job::value_of<job::PipelineSchedule>(value);
    } else if (name == "--stages") {
      const auto parsed =
          std::from_chars(value.data(), value.data() + value.size(), options.stages);
      if (parsed.ec != std::errc() || options.stages < 1) {
        return make_error(Code::kInvalid, fmt::format("{} stages", value));
      }
    } else {
      return make_error(Code::kInvalid, fmt::format("unknown option {} {}", name, value));
    }
  }
  if (options.model.empty() || options.out.empty()) {
    return make_error(Code::kInvalid, "a model and --out are needed");
  }
  return options;
}

Result<job::Plan> make_plan(const opdag::Graph& graph, const Options& options) {
  std::vector<double> weights;
  for (const auto& unit : opdag::cut_units(graph)) {
    double flops = 1;
    for (const int32_t index : unit) {
      const auto cost = opdag::node_cost(graph, graph.nodes.at(static_cast<size_t>(index)));
      flops += cost.flops_forward + cost.flops_backward + cost.bytes_forward;
    }
    weights.push_back(flops);
  }
  job::Plan plan;
  WEFT_TRY(plan.partition, opdag::split_contiguous(graph, weights, options.stages));
  plan.schedule = options.schedule;
  plan.reason = "equal costs";
  for (int32_t stage = 0; stage < options.stages; ++stage) {
    job::StagePlan described;
    described.replicas = {fmt::format("peer-{}", stage)};
    plan.stages.push_back(std::move(described));
  }
  return plan;
}

// Weights of every leaf, as files named by their paths; prefix is no part of the archive's entries.
Status write_weights(const opdag::Graph& graph, const opdag::Archive& archive,
                     const std::string& prefix, const os::Path& out,
                     std::set<std::string>& written) {
  for (const opdag::Leaf& leaf : graph.leaves) {
    if (leaf.kind == opdag::LeafKind::kUserInput || !written.insert(leaf.weight.path).second) {
      continue;
    }
    WEFT_TRY(const auto bytes, archive.entry(leaf.weight.path.substr(prefix.size())));
    const os::Path path = out / leaf.weight.path;
    WEFT_TRY_STATUS(os::make_directories(path.parent_path()));
    WEFT_TRY_STATUS(os::write_file_atomic(path, bytes.bytes()));
  }
  return {};
}

// The module as exported in eval mode, with weights of its own under "eval/".
Result<opdag::Graph> separate_eval(const Options& options, const os::Path& out,
                                   std::set<std::string>& written) {
  const std::string prefix = "eval/";
  WEFT_TRY(const auto archive, opdag::Archive::open(options.eval_model));
  WEFT_TRY(const auto imported, opdag::import_graph(archive));
  WEFT_TRY(auto graph, opdag::prune_to(imported, {}));
  WEFT_TRY(graph, opdag::derive_eval(graph));
  for (opdag::Leaf& leaf : graph.leaves) {
    if (leaf.kind != opdag::LeafKind::kUserInput) leaf.weight.path = prefix + leaf.weight.path;
  }
  WEFT_TRY_STATUS(write_weights(graph, archive, prefix, out, written));
  return graph;
}

Status prepare(const Options& options) {
  WEFT_TRY(const auto archive, opdag::Archive::open(options.model));
  WEFT_TRY(const auto imported, opdag::import_graph(archive));
  WEFT_TRY(const auto graph, opdag::prune_to(imported, {}));
  WEFT_TRY(auto eval, opdag::derive_eval(graph));
  WEFT_TRY(const auto plan, make_plan(graph, options));
  const os::Path out = options.out;
  WEFT_TRY_STATUS(os::make_directories(out));
  std::set<std::string> written;
  WEFT_TRY_STATUS(write_weights(graph, archive, "", out, written));
  if (!options.eval_model.empty()) {
    WEFT_TRY(eval, separate_eval(options, out, written));
  }
  nlohmann::json described = {{"plan", job::plan_to_json(plan)}, {"weights", written}};
  WEFT_TRY_STATUS(os::write_file_atomic(out / "graph.txt", opdag::to_text(graph)));
  WEFT_TRY_STATUS(os::write_file_atomic(out / "eval.txt", opdag::to_text(eval)));
  return os::write_file_atomic(out / "plan.json", described.dump());
}

}  // namespace

int prepare_command(int argc, char** argv, os::JailMode jail) {
  const auto options = parse(argc, argv);
  if (!options) {
    fmt::print(stderr, "weft-worker prepare: {}\n", options.error().text());
    return 2;
  }
  auto done = os::make_directories(options->out);
  if (done) done = enter_command_jail(jail, {options->model, options->eval_model}, {options->out});
  if (done) done = prepare(*options);
  if (done) return 0;
  fmt::print(stderr, "weft-worker prepare: {}\n", done.error().text());
  return 1;
}

}  // namespace weft::executor
