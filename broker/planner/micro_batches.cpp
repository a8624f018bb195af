// How many micro-batches a step has: what the export fixes, what the job asks.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "broker/planner/planner.h"

namespace weft::broker {

Result<int64_t> exported_batch(const opdag::Graph& graph, const job::JobSpec& spec) {
  std::optional<int64_t> batch;
  std::string first;
  for (const opdag::Leaf& leaf : graph.leaves) {
    if (leaf.kind != opdag::LeafKind::kUserInput) continue;
    const bool bound =
        std::any_of(spec.data.bindings.begin(), spec.data.bindings.end(),
                    [&](const job::Binding& binding) { return binding.input == leaf.target; });
    if (!bound) continue;
    const auto& sizes = graph.value(leaf.value).meta.sizes;
    if (sizes.empty()) {
      return make_error(Code::kInvalid,
                        fmt::format("input {} is a scalar, it has no batch dimension", leaf.target),
                        "export the model with batched inputs");
    }
    if (batch && *batch != sizes[0]) {
      return make_error(Code::kInvalid,
                        fmt::format("inputs {} and {} were exported with different batches: {} "
                                    "and {}",
                                    first, leaf.target, *batch, sizes[0]),
                        "export the model with one batch size");
    }
    batch = sizes[0];
    first = leaf.target;
  }
  if (!batch || *batch <= 0) {
    return make_error(Code::kInvalid, "no input of the graph is bound to data",
                      "bind columns to inputs in [data.inputs] of the job file");
  }
  return *batch;
}

Result<int32_t> micro_batches_of(const opdag::Graph& graph, const job::JobSpec& spec) {
  WEFT_TRY(const int64_t exported, exported_batch(graph, spec));
  if (spec.train.micro_batch != 0 && spec.train.micro_batch != exported) {
    return make_error(
        Code::kInvalid,
        fmt::format("train.micro_batch is {}, the export's batch is fixed at {}",
                    spec.train.micro_batch, exported),
        "leave train.micro_batch out, or export with one torch.export.Dim for dimension 0 of "
        "every input");
  }
  if (spec.train.batch <= 0 || spec.train.batch % exported != 0) {
    return make_error(
        Code::kInvalid,
        fmt::format("train.batch is {}, not a multiple of the exported batch {}", spec.train.batch,
                    exported),
        fmt::format("set train.batch to a multiple of {}, or export another batch", exported));
  }
  const int64_t count = spec.train.batch / exported;
  if (count > 65536) {
    return make_error(Code::kTooLarge, fmt::format("{} micro-batches a step; at most 65536", count),
                      "lower train.batch or export a larger batch");
  }
  return static_cast<int32_t>(count);
}

}  // namespace weft::broker
