#include "executor/check.h"

#include <fmt/format.h>

#include <cmath>

#include "base/os/process.h"
#include "executor/check_inputs.h"
#include "executor/convert.h"
#include "executor/local_cluster.h"
#include "opdag/derive.h"
#include "opdag/import.h"
#include "opdag/memory_check.h"

namespace weft::executor {
namespace {

struct Run {
  double loss = std::nan("");
  std::map<std::string, at::Tensor> tensors;  // gradients, or outputs
  std::vector<CheckedStage> stages;
};

struct Model {
  opdag::Graph graph;
  WeightSource weights;
  bool forward_only = false;
};

Result<Model> load_model(const CheckOptions& options) {
  WEFT_TRY(auto archive, opdag::Archive::open(options.model));
  opdag::ImportOptions import;
  if (options.micro_batch > 0) import.micro_batch = options.micro_batch;
  WEFT_TRY(opdag::Graph graph, opdag::import_graph(archive, import));
  Model model;
  model.forward_only = graph.loss_output == opdag::kNone;
  if (!model.forward_only) {
    std::vector<std::string> warnings = graph.warnings;
    WEFT_TRY(graph, opdag::prune_to(graph, {}));
    graph.warnings = std::move(warnings);
  }
  if (options.f64) {
    WEFT_TRY(graph, opdag::promote_f64(graph));
  }
  WEFT_TRY_STATUS(opdag::check_memory(graph, os::total_memory_bytes()));
  model.graph = std::move(graph);
  model.weights = [archive](const opdag::WeightRef& ref) { return archive.entry(ref.path); };
  return model;
}

Result<Run> run_model(const Model& model, const opdag::Partition& partition, Feed& feed,
                      const CheckOptions& options) {
  ClusterOptions cluster_options;
  cluster_options.runtime.plan = local_plan(partition, job::PipelineSchedule::k1F1B);
  cluster_options.runtime.train.precision =
      options.f64 ? job::Precision::kFp64 : job::Precision::kFp32;
  cluster_options.runtime.keep_gradients = true;
  cluster_options.runtime.keep_outputs = true;
  cluster_options.network.seed = cluster_options.seed = options.cut_seed;
  cluster_options.measure_memory = true;
  const opdag::Graph none;
  WEFT_TRY(auto cluster, LocalCluster::make(model.graph, model.forward_only ? model.graph : none,
                                            cluster_options, model.weights, feed));
  Run run;
  WEFT_TRY(const StepResult result,
           model.forward_only ? cluster->evaluate(0, 1) : cluster->step(0));
  run.loss = result.loss;
  run.tensors = model.forward_only ? cluster->outputs() : cluster->gradients();
  for (int32_t stage = 0; stage < cluster->stages(); ++stage) {
    run.stages.push_back({cluster->busy_s(stage), cluster->peak_bytes(stage)});
  }
  return run;
}

// Largest difference relative to the largest magnitude in `expected`; NaN against NaN is equal.
double relative_difference(const at::Tensor& expected, const at::Tensor& found) {
  if (expected.numel() == 0) return 0;
  const auto real = [](const at::Tensor& tensor) {
    return (tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor).to(at::kDouble);
  };
  const at::Tensor a = real(expected), b = real(found);
  if (at::equal(a, b)) return 0;
  const double scale = a.abs().max().item<double>();
  const double difference = (a - b).abs().max().item<double>();
  if (std::isnan(difference)) {
    return at::allclose(a, b, 0, 0, /*equal_nan=*/true) ? 0
                                                        : std::numeric_limits<double>::infinity();
  }
  return scale > 0 ? difference / scale : difference;
}

void compare(const Run& whole, const Run& cut, CheckReport& report) {
  report.loss = whole.loss;
  report.loss_cut = cut.loss;
  if (!report.forward_only && whole.loss != cut.loss &&
      !(std::isnan(whole.loss) && std::isnan(cut.loss))) {
    report.loss_difference =
        std::abs(whole.loss - cut.loss) / std::max(std::abs(whole.loss), 1e-300);
    if (std::isnan(report.loss_difference)) {
      report.loss_difference = std::numeric_limits<double>::infinity();
    }
  }
  for (const auto& [name, expected] : whole.tensors) {
    const auto found = cut.tensors.find(name);
    const double difference =
        found == cut.tensors.end() || !expected.sizes().equals(found->second.sizes())
            ? std::numeric_limits<double>::infinity()
            : relative_difference(expected, found->second);
    if (difference > report.gradient_difference || report.worst.empty()) {
      report.gradient_difference = std::max(report.gradient_difference, difference);
      report.worst = name;
    }
  }
  report.tensors = whole.tensors.size();
  report.equal = whole.tensors.size() == cut.tensors.size() &&
                 report.loss_difference <= report.tolerance &&
                 report.gradient_difference <= report.tolerance;
}

Status write_results(const Run& run, const CheckReport& report, const CheckOptions& options) {
  job::Safetensors file;
  if (!report.forward_only) {
    WEFT_TRY(file.tensors["loss"],
             view_of(at::full({}, run.loss, options.f64 ? at::kDouble : at::kFloat)));
  }
  for (const auto& [name, tensor] : run.tensors) {
    WEFT_TRY(file.tensors[report.forward_only ? name : "grad." + name], view_of(tensor));
  }
  return job::write_safetensors(options.grads, file);
}

// Names of a forward-only graph's outputs as files carry them: out.0, out.1, ...
void number_outputs(const opdag::Graph& graph, Run& run) {
  std::map<std::string, at::Tensor> numbered;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const auto found = run.tensors.find(graph.outputs[i].name);
    if (found != run.tensors.end()) numbered[fmt::format("out.{}", i)] = found->second;
  }
  run.tensors = std::move(numbered);
}

}  // namespace

Result<CheckReport> check_model(const CheckOptions& options) {
  try {
    WEFT_TRY(const Model model, load_model(options));
    Result<std::map<std::string, at::Tensor>> inputs =
        options.inputs.empty() ? random_inputs(model.graph, options.cut_seed)
                               : inputs_from_file(model.graph, options.inputs.string());
    if (!inputs.ok()) return std::move(inputs).error();
    FixedFeed feed(std::move(inputs).value());
    opdag::Partition whole_cut;
    whole_cut.stage_of.assign(model.graph.nodes.size(), 0);
    Rng rng(options.cut_seed);
    WEFT_TRY(const opdag::Partition cut, opdag::random_partition(model.graph, options.stages, rng));
    WEFT_TRY(Run whole, run_model(model, whole_cut, feed, options));
    WEFT_TRY(Run parts, run_model(model, cut, feed, options));
    CheckReport report;
    report.forward_only = model.forward_only;
    report.tolerance = options.f64 ? 1e-10 : 1e-3;
    report.warnings = model.graph.warnings;
    report.whole = whole.stages.at(0);
    report.stages = parts.stages;
    if (model.forward_only) {
      number_outputs(model.graph, whole);
      number_outputs(model.graph, parts);
    }
    compare(whole, parts, report);
    if (!options.grads.empty()) WEFT_TRY_STATUS(write_results(whole, report, options));
    return report;
  } catch (const std::exception& error) {
    return make_error(Code::kInternal, fmt::format("checking {}: {}", options.model.string(),
                                                   exception_text(error)));
  }
}

}  // namespace weft::executor
