// Whether a submission can run at all: data, weights, batch, stages.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "broker/planner/planner.h"
#include "broker/submission.h"
#include "job/token_file.h"
#include "opdag/cut.h"

namespace weft::broker {
namespace {

const job::Binding* binding_of(const job::JobSpec& spec, const std::string& input) {
  for (const job::Binding& binding : spec.data.bindings) {
    if (binding.input == input) return &binding;
  }
  return nullptr;
}

class Checker {
 public:
  Checker(const Submission& submission, const JobGraphs& graphs, const net::BlobStore& blobs,
          bool dry_run)
      : submission_(submission),
        spec_(submission.spec),
        graphs_(graphs),
        blobs_(blobs),
        dry_run_(dry_run) {}

  Status check() {
    WEFT_TRY_STATUS(check_spec());
    WEFT_TRY_STATUS(check_stored());
    WEFT_TRY_STATUS(check_bindings());
    WEFT_TRY_STATUS(check_weights(graphs_.graph));
    WEFT_TRY_STATUS(check_weights(graphs_.eval_graph));
    WEFT_TRY([[maybe_unused]] const int32_t count, micro_batches_of(graphs_.graph, spec_));
    WEFT_TRY_STATUS(check_samples("train", spec_.train.batch, "one step"));
    if (evaluates()) {
      WEFT_TRY(const int64_t micro_batch, exported_batch(graphs_.eval_graph, spec_));
      WEFT_TRY_STATUS(check_samples("eval", micro_batch, "one micro-batch"));
    }
    return check_stages();
  }

  // Whole micro-batches of the eval set; 0 without one.
  Result<int64_t> eval_micro_batches() {
    if (!evaluates()) return int64_t{0};
    WEFT_TRY(const int64_t micro_batch, exported_batch(graphs_.eval_graph, spec_));
    int64_t fewest = INT64_MAX;
    for (const opdag::Leaf& leaf : graphs_.eval_graph.leaves) {
      if (leaf.kind != opdag::LeafKind::kUserInput) continue;
      const opdag::TensorMeta& meta = graphs_.eval_graph.value(leaf.value).meta;
      const job::Binding& binding = *binding_of(spec_, leaf.target);
      WEFT_TRY(const int64_t samples, samples_of("eval", binding, meta));
      if (samples < 0) {
        return make_error(Code::kNotFound,
                          fmt::format("the evaluation data of input {} (column {}) is not stored",
                                      binding.input, binding.column),
                          "upload it again and resume the job");
      }
      fewest = std::min(fewest, samples);
    }
    if (fewest == INT64_MAX) return int64_t{0};
    if (fewest < micro_batch) {
      return make_error(Code::kInvalid,
                        fmt::format("the evaluation data has {} samples and one micro-batch needs "
                                    "{}",
                                    fewest, micro_batch),
                        "use more evaluation data");
    }
    return fewest / micro_batch;
  }

 private:
  bool evaluates() const {
    return std::any_of(submission_.data.begin(), submission_.data.end(),
                       [](const auto& entry) { return entry.first.starts_with("eval"); });
  }

  Status check_spec() {
    if (spec_.train.steps <= 0) {
      return make_error(Code::kInvalid,
                        fmt::format("train.steps is {}; at least 1", spec_.train.steps));
    }
    const bool any_trainable =
        std::any_of(graphs_.graph.leaves.begin(), graphs_.graph.leaves.end(), [](const auto& leaf) {
          return leaf.kind == opdag::LeafKind::kParameter && leaf.trainable;
        });
    if (!any_trainable) {
      return make_error(Code::kInvalid, "no parameter of the model is trainable",
                        "unfreeze some: see [[group]] in docs/job-file.md");
    }
    if (graphs_.graph.loss_output == opdag::kNone) {
      return make_error(Code::kInvalid, "the graph has no loss output",
                        "set loss in the job file: docs/job-file.md");
    }
    return {};
  }

  Status check_stored() {
    if (dry_run_) return {};
    for (const job::BlobRef& blob : blobs_of(submission_)) {
      auto size = blobs_.size_of(blob.sha256);
      if (!blobs_.has(blob.sha256) || !size.ok()) {
        return make_error(Code::kNotFound, fmt::format("blob {} is not stored", blob.sha256),
                          "upload it first: PUT /api/v1/blobs/" + blob.sha256);
      }
      if (*size != blob.bytes) {
        return make_error(Code::kInvalid,
                          fmt::format("blob {} has {} bytes, the submission says {}", blob.sha256,
                                      *size, blob.bytes));
      }
    }
    return {};
  }

  Status check_bindings() {
    for (const opdag::Graph* graph : {&graphs_.graph, &graphs_.eval_graph}) {
      for (const opdag::Leaf& leaf : graph->leaves) {
        if (leaf.kind != opdag::LeafKind::kUserInput) continue;
        if (binding_of(spec_, leaf.target) == nullptr) {
          return make_error(
              Code::kInvalid,
              fmt::format("no data column is bound to the model's input {}", leaf.target),
              fmt::format("bind {} in [data] of the job file", leaf.target));
        }
      }
    }
    return {};
  }

  Status check_weights(const opdag::Graph& graph) {
    for (const opdag::Leaf& leaf : graph.leaves) {
      if (leaf.kind == opdag::LeafKind::kUserInput) continue;
      const auto found = submission_.weights.find(leaf.weight.path);
      if (found == submission_.weights.end()) {
        // Parameters of a separate evaluation export are the trained ones, by name.
        if (&graph == &graphs_.eval_graph && graphs_.graph.find_leaf(leaf.target) != nullptr) {
          continue;
        }
        return make_error(Code::kInvalid, fmt::format("the weights of {} ({}) are not among the "
                                                      "submission's blobs",
                                                      leaf.target, leaf.weight.path));
      }
      if (found->second.bytes != leaf.weight.bytes) {
        return make_error(Code::kInvalid,
                          fmt::format("the weights of {} have {} bytes, the graph says {}",
                                      leaf.target, found->second.bytes, leaf.weight.bytes));
      }
    }
    return {};
  }

  // Columns the training graph reads of a split, and whether they hold `wanted` samples.
  Status check_samples(const std::string& split, int64_t wanted, const char* what) {
    const opdag::Graph& graph = split == "eval" ? graphs_.eval_graph : graphs_.graph;
    for (const opdag::Leaf& leaf : graph.leaves) {
      if (leaf.kind != opdag::LeafKind::kUserInput) continue;
      const job::Binding& binding = *binding_of(spec_, leaf.target);
      WEFT_TRY(const int64_t samples, samples_of(split, binding, graph.value(leaf.value).meta));
      if (samples >= 0 && samples < wanted) {
        return make_error(Code::kInvalid,
                          fmt::format("too few samples: the {} data has {} and {} needs {}", split,
                                      samples, what, wanted),
                          split == "train" ? "use more data or a smaller train.batch"
                                           : "use more evaluation data");
      }
    }
    return {};
  }

  // -1: not known in a dry run.
  Result<int64_t> samples_of(const std::string& split, const job::Binding& binding,
                             const opdag::TensorMeta& meta) {
    const bool tokens = job::is_token_column(binding.column);
    const std::string key = tokens ? split : split + "/" + binding.column;
    const auto found = submission_.data.find(key);
    if (found == submission_.data.end()) {
      return make_error(Code::kInvalid,
                        fmt::format("input {} reads column {}, but the submission has no data {}",
                                    binding.input, binding.column, key));
    }
    if (tokens) return token_samples_of(found->second, binding, meta);
    if (!blobs_.has(found->second.sha256)) return int64_t{-1};
    auto array = job::open_npy(blobs_.path_of(found->second.sha256));
    if (!array.ok()) return std::move(array).error().within("data " + key);
    if (array->sizes.empty()) {
      return make_error(Code::kInvalid, fmt::format("data {} is a scalar array", key));
    }
    const std::vector<int64_t> row(array->sizes.begin() + 1, array->sizes.end());
    const std::vector<int64_t> wanted(meta.sizes.begin() + (meta.sizes.empty() ? 0 : 1),
                                      meta.sizes.end());
    if (row != wanted) {
      return make_error(Code::kInvalid,
                        fmt::format("a row of data {} has shape [{}], input {} takes [{}]", key,
                                    fmt::join(row, ", "), binding.input, fmt::join(wanted, ", ")));
    }
    return array->sizes[0];
  }

  Result<int64_t> token_samples_of(const job::BlobRef& blob, const job::Binding& binding,
                                   const opdag::TensorMeta& meta) {
    if (meta.sizes.size() != 2 || meta.sizes[1] <= 0) {
      return make_error(Code::kInvalid,
                        fmt::format("input {} takes tokens, so its shape must be [batch, "
                                    "sequence]; it is [{}]",
                                    binding.input, fmt::join(meta.sizes, ", ")));
    }
    if (submission_.token_dtype.empty()) {
      return make_error(Code::kInvalid, "token data needs token_dtype in the submission");
    }
    const int64_t width = submission_.token_dtype == "uint32" ? 4 : 2;
    return job::token_samples(static_cast<int64_t>(blob.bytes) / width, meta.sizes[1]);
  }

  Status check_stages() {
    const size_t units = opdag::cut_units(graphs_.graph).size();
    if (spec_.pipeline.stages < 0 ||
        static_cast<size_t>(std::max(0, spec_.pipeline.stages)) > units) {
      return make_error(
          Code::kInvalid,
          fmt::format("more stages than nodes: {} stages asked, the graph can be "
                      "cut into at most {} piece{}",
                      spec_.pipeline.stages, units, units == 1 ? "" : "s"),
          fmt::format("ask for at most {} stage{}, or \"auto\"", units, units == 1 ? "" : "s"));
    }
    return {};
  }

  const Submission& submission_;
  const job::JobSpec& spec_;
  const JobGraphs& graphs_;
  const net::BlobStore& blobs_;
  const bool dry_run_;
};

}  // namespace

Status check_submission(const Submission& submission, const JobGraphs& graphs,
                        const net::BlobStore& blobs, bool dry_run) {
  return Checker(submission, graphs, blobs, dry_run).check();
}

Status settle_eval_batches(Submission& submission, const JobGraphs& graphs,
                           const net::BlobStore& blobs) {
  if (submission.spec.train.eval_batches != 0) return {};
  WEFT_TRY(submission.spec.train.eval_batches,
           Checker(submission, graphs, blobs, false).eval_micro_batches());
  return {};
}

}  // namespace weft::broker
