#include "opdag/memory_check.h"

#include <fmt/format.h>

#include <numeric>

namespace weft::opdag {
namespace {

constexpr double kGiB = 1 << 30;

// Bytes from the first to the last element; a validated graph has them all below 2^46.
double bytes_of(const TensorMeta& meta) {
  const auto extent = strided_extent(meta.sizes, meta.strides);
  return static_cast<double>(extent.value_or(0)) * static_cast<double>(dtype_bytes(meta.dtype));
}

std::string shape_text(const TensorMeta& meta) {
  std::string text(dtype_name(meta.dtype));
  text += " [";
  for (size_t i = 0; i < meta.sizes.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", meta.sizes[i]);
  }
  return text + "]";
}

class MemoryChecker {
 public:
  MemoryChecker(const Graph& graph, uint64_t memory_bytes)
      : graph_(graph), memory_(static_cast<double>(memory_bytes)) {}

  Status node(const Node& node) const {
    for (const ValueId id : outputs_of(graph_, node)) {
      WEFT_TRY_STATUS(made(node, graph_.value(id)));
    }
    return {};
  }

  Status weights(const std::vector<int32_t>& leaves) const {
    double total = 0;
    for (const int32_t index : leaves) {
      const Leaf& leaf = graph_.leaves.at(static_cast<size_t>(index));
      if (leaf.kind != LeafKind::kUserInput) total += bytes_of(graph_.value(leaf.value).meta);
    }
    if (total <= memory_) return {};
    return make_error(Code::kTooLarge,
                      fmt::format("the weights need {:.4g} GiB, the memory here is {:.4g} GiB",
                                  total / kGiB, memory_ / kGiB),
                      "cut the model into more stages, or use a machine with more memory");
  }

 private:
  Status made(const Node& node, const Value& value) const {
    const double bytes = bytes_of(value.meta);
    if (bytes <= memory_) return {};
    Error error = make_error(
        Code::kTooLarge,
        fmt::format("node {} ({}) makes '{}', {}: {:.4g} GiB, the memory here is {:.4g} GiB",
                    node.id, node.op, value.name, shape_text(value.meta), bytes / kGiB,
                    memory_ / kGiB),
        "use a smaller batch, or a machine with more memory");
    error.node = fmt::format("{}", node.id);
    error.op = node.op;
    return error;
  }

  const Graph& graph_;
  const double memory_;
};

}  // namespace

Status check_memory(const Graph& graph, const Stage& stage, uint64_t memory_bytes) {
  const MemoryChecker checker(graph, memory_bytes);
  for (const int32_t index : stage.nodes) {
    WEFT_TRY_STATUS(checker.node(graph.nodes.at(static_cast<size_t>(index))));
  }
  return checker.weights(stage.leaves);
}

Status check_memory(const Graph& graph, uint64_t memory_bytes) {
  Stage whole;
  whole.nodes.resize(graph.nodes.size());
  whole.leaves.resize(graph.leaves.size());
  std::iota(whole.nodes.begin(), whole.nodes.end(), 0);
  std::iota(whole.leaves.begin(), whole.leaves.end(), 0);
  return check_memory(graph, whole, memory_bytes);
}

}  // namespace weft::opdag
