// Bytes of values in training: what autocast makes of them, what a message of them is.
#include <algorithm>
#include <array>
#include <string_view>

#include "broker/planner/cost.h"
#include "opdag/op_table.h"

namespace weft::broker {
namespace {

constexpr double kHalf = 2, kSingle = 4, kDouble = 8;

std::string_view base_name(std::string_view op) {
  op.remove_prefix(std::min(op.size(), op.find("::") + 2));
  return op.substr(0, op.find('.'));
}

// Operators that autocast runs in float32 on CUDA (ATen/autocast_mode.h); on CPUs there are fewer.
bool runs_in_single(std::string_view base) {
  static constexpr std::array kNames = {"acos",
                                        "asin",
                                        "cdist",
                                        "cosh",
                                        "cosine_similarity",
                                        "cumprod",
                                        "cumsum",
                                        "dist",
                                        "erfinv",
                                        "exp",
                                        "expm1",
                                        "group_norm",
                                        "huber_loss",
                                        "kl_div",
                                        "l1_loss",
                                        "layer_norm",
                                        "log",
                                        "log10",
                                        "log1p",
                                        "log2",
                                        "log_softmax",
                                        "logsumexp",
                                        "mse_loss",
                                        "nll_loss",
                                        "nll_loss2d",
                                        "nll_loss_nd",
                                        "norm",
                                        "pdist",
                                        "pow",
                                        "prod",
                                        "reciprocal",
                                        "renorm",
                                        "rsqrt",
                                        "sinh",
                                        "smooth_l1_loss",
                                        "softmax",
                                        "softplus",
                                        "sum",
                                        "tan",
                                        "native_layer_norm",
                                        "_softmax",
                                        "_log_softmax",
                                        "cross_entropy_loss",
                                        "binary_cross_entropy_with_logits"};
  return std::find(kNames.begin(), kNames.end(), base) != kNames.end();
}

bool runs_in_half(const opdag::OpInfo* info, std::string_view base) {
  if (info == nullptr) return false;
  if (info->cost_class == opdag::CostClass::kConv) return true;
  if (info->cost_class == opdag::CostClass::kAttention) return true;
  if (info->cost_class != opdag::CostClass::kMatmul) return false;
  const bool decomposition = base.starts_with("linalg_") && base != "linalg_matmul" &&
                             base != "linalg_vecdot" && base != "linalg_multi_dot";
  return !decomposition && base != "cdist";
}

bool casts(std::string_view base) {
  return base == "to" || base == "_to_copy" || base == "type_as" || base == "float" ||
         base == "double";
}

// Bytes of an element of a floating value as the export has it, under a precision.
double exported_width(DType dtype, job::Precision precision) {
  const auto width = static_cast<double>(dtype_bytes(dtype));
  return precision == job::Precision::kFp64 && width == kSingle ? kDouble : width;
}

double elements_of(const opdag::TensorMeta& meta) {
  return static_cast<double>(element_count(meta.sizes).value_or(0));
}

double sent_elements(const opdag::TensorMeta& meta) {
  double elements = 1;
  for (size_t i = 0; i < meta.sizes.size(); ++i) {
    const bool repeats = i < meta.strides.size() && meta.strides[i] == 0 && meta.sizes[i] > 0;
    elements *= repeats ? 1 : static_cast<double>(meta.sizes[i]);
  }
  return elements;
}

bool autocasts(job::Precision precision) {
  return precision == job::Precision::kBf16 || precision == job::Precision::kFp16;
}

// Bytes of an element, by value; autocast's types follow the nodes in order.
std::vector<double> widths(const opdag::Graph& graph, job::Precision precision) {
  std::vector<double> width(graph.values.size(), 0.0);
  for (const opdag::Value& value : graph.values) {
    if (value.kind != opdag::ValueKind::kTensor) continue;
    width[static_cast<size_t>(value.id)] = dtype_is_floating(value.meta.dtype)
                                               ? exported_width(value.meta.dtype, precision)
                                               : static_cast<double>(dtype_bytes(value.meta.dtype));
  }
  if (!autocasts(precision)) return width;
  for (const opdag::Node& node : graph.nodes) {
    const std::string_view base = base_name(node.op);
    if (casts(base)) continue;
    double widest = 0;
    for (const opdag::ValueId id : opdag::inputs_of(node)) {
      if (id == opdag::kNone) continue;
      const opdag::Value& value = graph.value(id);
      const bool list = value.kind == opdag::ValueKind::kTensorList;
      // A scalar tensor does not widen the others.
      if (list || !dtype_is_floating(value.meta.dtype) || value.meta.sizes.empty()) continue;
      widest = std::max(widest, width[static_cast<size_t>(id)]);
      if (base == "batch_norm") break;  // its statistics are float32, its result is not
    }
    double out = widest;
    if (runs_in_half(opdag::find_op(node.op), base)) out = kHalf;
    if (runs_in_single(base)) out = kSingle;
    if (out == 0) continue;
    const auto set = [&](opdag::ValueId id) {
      if (id == opdag::kNone || !dtype_is_floating(graph.value(id).meta.dtype)) return;
      if (graph.value(id).kind == opdag::ValueKind::kTensor) width[static_cast<size_t>(id)] = out;
    };
    for (const opdag::ValueId id : node.outputs) {
      set(id);
      if (id == opdag::kNone) continue;
      for (const opdag::ValueId part : graph.value(id).elements) set(part);
    }
  }
  return width;
}

// A floating type of another width than the export's is the one that the precision makes.
DType dtype_of(DType exported, double width, job::Precision precision) {
  if (!dtype_is_floating(exported) || width == static_cast<double>(dtype_bytes(exported))) {
    return exported;
  }
  if (width == kDouble) return DType::kFloat64;
  if (width == kSingle) return DType::kFloat32;
  return precision == job::Precision::kFp16 ? DType::kFloat16 : DType::kBFloat16;
}

}  // namespace

ValueBytes value_bytes(const opdag::Graph& graph, job::Precision precision) {
  const std::vector<double> width = widths(graph, precision);
  ValueBytes bytes;
  bytes.kept.assign(graph.values.size(), 0.0);
  bytes.sent = bytes.kept;
  bytes.dtype.assign(graph.values.size(), DType::kFloat32);
  for (const opdag::Value& value : graph.values) {
    if (value.kind != opdag::ValueKind::kTensor) continue;
    const auto at = static_cast<size_t>(value.id);
    bytes.kept[at] = width[at] * elements_of(value.meta);
    bytes.sent[at] = width[at] * sent_elements(value.meta);
    bytes.dtype[at] = dtype_of(value.meta.dtype, width[at], precision);
  }
  return bytes;
}

bool only_views(const opdag::Graph& graph, const opdag::Node& node) {
  const opdag::OpInfo* info = opdag::find_op(node.op);
  if (info == nullptr || !info->view) return false;
  if (info->random) return !opdag::draws_random(node);  // dropout that drops nothing
  if (info->cost_class != opdag::CostClass::kView) return false;
  const std::vector<opdag::ValueId> inputs = opdag::inputs_of(node);
  if (inputs.empty() || node.outputs.empty() || node.outputs.front() == opdag::kNone) return true;
  const opdag::Value &from = graph.value(inputs.front()), &to = graph.value(node.outputs.front());
  return to.kind != opdag::ValueKind::kTensor || from.meta.dtype == to.meta.dtype;
}

std::vector<double> node_stash(const opdag::Graph& graph, job::Precision precision,
                               const ValueBytes& bytes) {
  constexpr double kIndex = 8;
  std::vector<double> stash(graph.nodes.size(), 0.0);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const opdag::Node& node = graph.nodes[i];
    const opdag::OpInfo* info = opdag::find_op(node.op);
    const std::string_view base = base_name(node.op);
    const bool places = base.starts_with("max_pool") || base.starts_with("adaptive_max_pool");
    if (!only_views(graph, node)) {
      for (const opdag::ValueId id : node.outputs) {
        if (id == opdag::kNone) continue;
        stash[i] += bytes.kept[static_cast<size_t>(id)];
        if (places) stash[i] += kIndex * elements_of(graph.value(id).meta);
      }
    }
    if (!autocasts(precision) || !runs_in_half(info, base)) continue;
    for (const opdag::ValueId id : opdag::inputs_of(node)) {
      if (id == opdag::kNone || !dtype_is_floating(graph.value(id).meta.dtype)) continue;
      const double half = kHalf * elements_of(graph.value(id).meta);
      if (bytes.kept[static_cast<size_t>(id)] > half) stash[i] += half;
    }
  }
  return stash;
}

}  // namespace weft::broker
