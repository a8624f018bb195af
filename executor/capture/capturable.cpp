#include "executor/capture/capturable.h"

#include <fmt/format.h>

#include <set>
#include <string_view>

#include "executor/tape/rule.h"
#include "opdag/op_table.h"

namespace weft::executor {
namespace {

// Beside the operators that have a backward rule: kernels that neither wait for the card nor need
// its numbers on the host.
const std::set<std::string_view>& vouched() {
  static const std::set<std::string_view> names{
      "aten::__and__.Tensor",
      "aten::__or__.Tensor",
      "aten::amax",
      "aten::arange",
      "aten::arange.start",
      "aten::arange.start_step",
      "aten::argmax",
      "aten::bitwise_and.Tensor",
      "aten::bitwise_not",
      "aten::bitwise_or.Tensor",
      "aten::clamp",
      "aten::clamp_max",
      "aten::clamp_min",
      "aten::constant_pad_nd",
      "aten::cumsum",
      "aten::detach",
      "aten::diff",
      "aten::elu",
      "aten::eq.Scalar",
      "aten::eq.Tensor",
      "aten::erf",
      "aten::full",
      "aten::full_like",
      "aten::gather",
      "aten::ge.Scalar",
      "aten::ge.Tensor",
      "aten::gt.Scalar",
      "aten::gt.Tensor",
      "aten::hardtanh",
      "aten::index.Tensor",
      "aten::index_select",
      "aten::le.Scalar",
      "aten::le.Tensor",
      "aten::lift_fresh_copy",
      "aten::logical_and",
      "aten::logical_not",
      "aten::logical_or",
      "aten::lt.Scalar",
      "aten::lt.Tensor",
      "aten::maximum",
      "aten::minimum",
      "aten::ne.Scalar",
      "aten::ne.Tensor",
      "aten::new_full",
      "aten::new_ones",
      "aten::new_zeros",
      "aten::ones",
      "aten::ones_like",
      "aten::pad",
      "aten::pixel_shuffle",
      "aten::pow.Tensor_Tensor",
      "aten::reciprocal",
      "aten::repeat",
      "aten::scalar_tensor",
      "aten::softplus",
      "aten::square",
      "aten::to.device",
      "aten::tril",
      "aten::triu",
      "aten::upsample_bilinear2d.vec",
      "aten::upsample_nearest2d.vec",
      "aten::zeros",
      "aten::zeros_like",
  };
  return names;
}

// Kernels that take the generator's seed from the card's memory where they are captured.
bool draws_when_replayed(const opdag::Node& node) {
  return node.op == "aten::dropout" || node.op == "aten::scaled_dot_product_attention";
}

// Indexing by a mask counts its elements on the host.
bool indexes_by_mask(const opdag::Graph& graph, const opdag::Node& node) {
  const auto is_mask = [&graph](opdag::ValueId id) {
    if (id == opdag::kNone) return false;
    const DType type = graph.value(id).meta.dtype;
    return type == DType::kBool || type == DType::kUint8;
  };
  const auto* indices = node.find("indices");
  if (indices == nullptr) return false;
  const auto* list = std::get_if<opdag::ValueListArg>(indices);
  if (list == nullptr) return true;
  for (opdag::ValueId id : list->ids) {
    if (is_mask(id)) return true;
  }
  return false;
}

}  // namespace

std::string why_not_capturable(const opdag::Graph& graph, const std::vector<int32_t>& nodes) {
  for (int32_t position : nodes) {
    const opdag::Node& node = graph.nodes[static_cast<size_t>(position)];
    const auto says = [&node](std::string_view what) {
      return fmt::format("{} (node {}) {}", node.op, node.id, what);
    };
    if (opdag::draws_random(node) && !draws_when_replayed(node)) {
      return says("draws random numbers");
    }
    if (node.atomic_group != opdag::kNone) return says("may write in place");
    if (node.op == "aten::index.Tensor" && indexes_by_mask(graph, node)) {
      return says("indexes by a mask");
    }
    const bool known = tape::find_rule(node.op) != nullptr || vouched().contains(node.op);
    if (!known) return says("is not known to run without the host");
    for (opdag::ValueId id : node.outputs) {
      const bool number = id != opdag::kNone && graph.value(id).kind != opdag::ValueKind::kTensor &&
                          graph.value(id).kind != opdag::ValueKind::kTensorList;
      if (number) return says("gives a number of the host");
    }
  }
  return {};
}

}  // namespace weft::executor
