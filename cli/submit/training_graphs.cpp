#include "cli/submit/training_graphs.h"

#include <fmt/format.h>

#include <algorithm>

#include "opdag/derive.h"
#include "opdag/inspect.h"

namespace weft::cli {
namespace {

constexpr const char* kLossTarget = "loss_target";

// Loss appended, everything else pruned away, frozen parameters marked.
Result<opdag::Graph> prepare_graph(opdag::Graph graph, const job::JobSpec& spec) {
  if (spec.loss == job::LossSource::kGraph) {
    if (graph.loss_output == opdag::kNone) {
      return make_error(Code::kInvalid, "the model has no scalar output to train on",
                        "export it with labels so that it returns its loss, or set loss = "
                        "\"cross_entropy\" or \"mse\" with loss_output in the job file");
    }
  } else {
    const auto kind =
        spec.loss == job::LossSource::kMse ? opdag::LossKind::kMse : opdag::LossKind::kCrossEntropy;
    WEFT_TRY(graph, opdag::append_loss(graph, kind, spec.loss_output, kLossTarget));
  }
  WEFT_TRY(graph, opdag::prune_to(graph, {}));
  std::vector<std::string> frozen;
  for (const job::ParamGroup& group : spec.groups) {
    if (group.frozen) frozen.push_back(group.match);
  }
  if (frozen.empty()) return graph;
  return opdag::freeze(graph, frozen);
}

void bind_loss_target(job::JobSpec& spec) {
  if (spec.loss == job::LossSource::kGraph) return;
  const auto bound = std::any_of(spec.data.bindings.begin(), spec.data.bindings.end(),
                                 [](const job::Binding& b) { return b.input == kLossTarget; });
  if (!bound) spec.data.bindings.push_back({kLossTarget, spec.loss_target, {}, 1.0});
}

void warn_of_double_shift(const opdag::Graph& graph, const job::JobSpec& spec,
                          std::vector<std::string>& warnings) {
  const opdag::ModelSummary summary = opdag::summarize(graph);
  if (!summary.labels_shifted_inside) return;
  for (const job::Binding& binding : spec.data.bindings) {
    if (binding.input != summary.shifted_input || binding.column != "next_tokens") continue;
    warnings.push_back(
        fmt::format("input {} is shifted by the model itself and bound to next_tokens: the labels "
                    "would be shifted twice; bind it to tokens",
                    binding.input));
  }
}

opdag::ImportOptions options_of(const job::JobSpec& spec) {
  opdag::ImportOptions options;
  if (spec.train.micro_batch > 0) options.micro_batch = spec.train.micro_batch;
  return options;
}

Result<opdag::Graph> import_eval(const opdag::Archive& archive,
                                 const opdag::ImportOptions& options) {
  WEFT_TRY(opdag::Graph graph, opdag::import_graph(archive, options));
  for (opdag::Leaf& leaf : graph.leaves) {
    if (leaf.kind != opdag::LeafKind::kUserInput) leaf.weight.path = kEvalPrefix + leaf.weight.path;
  }
  return graph;
}

}  // namespace

Result<TrainingGraphs> load_training_graphs(const job::JobSpec& spec) {
  WEFT_TRY(opdag::Archive archive, opdag::Archive::open(spec.model));
  opdag::Archive eval_archive = archive;
  WEFT_TRY(opdag::Graph imported, opdag::import_graph(archive, options_of(spec)));
  std::vector<std::string> warnings = imported.warnings;
  warn_of_double_shift(imported, spec, warnings);
  opdag::Graph eval;
  if (spec.eval_model.empty()) {
    WEFT_TRY(opdag::Graph prepared, prepare_graph(imported, spec));
    WEFT_TRY(eval, opdag::derive_eval(prepared));
  } else {
    WEFT_TRY(eval_archive, opdag::Archive::open(spec.eval_model));
    WEFT_TRY(opdag::Graph other, import_eval(eval_archive, options_of(spec)));
    WEFT_TRY(eval, prepare_graph(std::move(other), spec));
    WEFT_TRY(eval, opdag::derive_eval(eval));
  }
  WEFT_TRY(opdag::Graph train, prepare_graph(std::move(imported), spec));
  job::JobSpec bound = spec;
  bind_loss_target(bound);
  return TrainingGraphs{std::move(archive), std::move(eval_archive), std::move(train),
                        std::move(eval),    std::move(bound),        std::move(warnings)};
}

}  // namespace weft::cli
