#include <fmt/format.h>

#include "executor/feed_job.h"

namespace weft::executor {

Result<std::map<std::string, job::Binding>> bind_inputs(const opdag::Graph& graph,
                                                        const job::JobSpec& spec) {
  std::map<std::string, job::Binding> bound;
  for (const job::Binding& binding : spec.data.bindings) {
    const opdag::Leaf* leaf = graph.find_leaf(binding.input);
    // An input that pruning removed needs no data; a name that never was is caught at submission.
    if (leaf == nullptr || leaf->kind != opdag::LeafKind::kUserInput) continue;
    bound[binding.input] = binding;
  }
  bool target_bound = false;
  for (const opdag::Leaf& leaf : graph.leaves) {
    if (leaf.kind != opdag::LeafKind::kUserInput || bound.contains(leaf.target)) continue;
    const bool appended_loss = spec.loss != job::LossSource::kGraph;
    if (!appended_loss || spec.loss_target.empty() || target_bound) {
      return make_error(
          Code::kInvalid,
          fmt::format("no data column is bound to the model's input {}", leaf.target),
          fmt::format("add {} to the bindings of [data] in the job file", leaf.target));
    }
    job::Binding target;
    target.input = leaf.target;
    target.column = spec.loss_target;
    bound[leaf.target] = target;
    target_bound = true;
  }
  return bound;
}

Result<BatchShape> batch_shape(const opdag::Graph& graph, const job::JobSpec& spec) {
  WEFT_TRY(const auto bindings, bind_inputs(graph, spec));
  BatchShape shape;
  std::string first_input;
  for (const auto& [input, binding] : bindings) {
    const opdag::TensorMeta& meta = graph.value(graph.find_leaf(input)->value).meta;
    if (meta.sizes.empty()) {
      return make_error(Code::kInvalid, fmt::format("input {} is a scalar: it has no batch "
                                                    "dimension to bind {} to",
                                                    input, binding.column));
    }
    if (first_input.empty()) {
      first_input = input;
      shape.micro_batch = meta.sizes[0];
    } else if (meta.sizes[0] != shape.micro_batch) {
      return make_error(Code::kInvalid,
                        fmt::format("inputs {} and {} disagree on the batch: {} and {} samples",
                                    first_input, input, shape.micro_batch, meta.sizes[0]),
                        "the first dimension of every bound input is the micro-batch");
    }
    if (!job::is_token_column(binding.column)) continue;
    if (meta.sizes.size() != 2 || (shape.sequence != 0 && shape.sequence != meta.sizes[1])) {
      return make_error(Code::kInvalid,
                        fmt::format("column {} needs inputs of one shape [batch, sequence]; {} is "
                                    "[{}]",
                                    binding.column, input, fmt::join(meta.sizes, ", ")));
    }
    shape.sequence = meta.sizes[1];
  }
  if (shape.micro_batch < 1) {
    return make_error(Code::kInvalid, "the model has no input to take its batch from",
                      "bind at least one input to a data column");
  }
  if (spec.train.batch < 1 || spec.train.batch % shape.micro_batch != 0) {
    return make_error(Code::kInvalid,
                      fmt::format("batch {} is not a multiple of the exported batch {}",
                                  spec.train.batch, shape.micro_batch),
                      fmt::format("set train.batch to a multiple of {}, or export the model with "
                                  "another batch",
                                  shape.micro_batch));
  }
  const int64_t micro_batches = spec.train.batch / shape.micro_batch;
  if (micro_batches > INT32_MAX) {
    return make_error(Code::kTooLarge, fmt::format("{} micro-batches a step", micro_batches));
  }
  shape.micro_batches = static_cast<int32_t>(micro_batches);
  return shape;
}

}  // namespace weft::executor
