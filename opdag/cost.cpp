// node_cost: FLOPs and bytes of one node from the shapes around it (methods, section 3). Matrix
// products, convolutions and attention are counted exactly; what is bound by memory gets a few
// operations an element, and its bytes tell its price.
#include <algorithm>
#include <cmath>
#include <set>

#include "opdag/cost_view.h"
#include "opdag/op_table.h"

namespace weft::opdag {
namespace {

// Size of dimension `back` from the end; 1 where there is none.
double from_end(const TensorMeta* meta, size_t back) {
  if (meta == nullptr || meta->sizes.size() < back) return 1;
  return static_cast<double>(meta->sizes[meta->sizes.size() - back]);
}

// Factorisations, inverses, solutions: a few cubes of a matrix's side.
bool is_decomposition(std::string_view base) {
  static const std::set<std::string_view> kNames = {"cholesky",
                                                    "cholesky_inverse",
                                                    "cholesky_solve",
                                                    "det",
                                                    "logdet",
                                                    "slogdet",
                                                    "inverse",
                                                    "geqrf",
                                                    "orgqr",
                                                    "ormqr",
                                                    "qr",
                                                    "svd",
                                                    "lu_solve",
                                                    "_lu_with_info",
                                                    "matrix_exp",
                                                    "matrix_power",
                                                    "pinverse",
                                                    "triangular_solve",
                                                    "nuclear_norm"};
  if (base == "linalg_vecdot" || base == "linalg_cross") return false;
  return kNames.contains(base) || base.starts_with("linalg_") || base.starts_with("_linalg_");
}

double matmul_flops(const NodeView& node) {
  const std::string_view base = node.base();
  const double out = node.output_elements();
  if (base == "linear" || base == "mm" || base == "matmul" || base == "bmm" ||
      base == "linalg_matmul" || base == "inner" || base == "grouped_mm") {
    const double bias = node.tensor("bias") ? out : 0;
    return 2 * out * from_end(node.first_tensor(), 1) + bias;
  }
  if (base == "addmm" || base == "addmm_") return 2 * out * from_end(node.tensor("mat1"), 1) + out;
  if (base == "baddbmm") return 2 * out * from_end(node.tensor("batch1"), 1) + out;
  if (base == "addbmm")
    return 2 * elements(node.tensor("batch1")) * from_end(node.tensor("batch2"), 1);
  if (base == "addmv") return 2 * elements(node.tensor("mat"));
  if (base == "cdist") return 3 * out * from_end(node.first_tensor(), 1);
  if (base == "bilinear")
    return 2 * elements(node.tensor("weight")) * out / from_end(node.output(), 1);
  if (base == "einsum") return 2 * node.einsum_points().value_or(0);
  if (base == "tensordot") {
    // out = A B / C^2 with C the contracted elements.
    const double product = elements(node.tensor("self")) * elements(node.tensor("other"));
    return 2 * std::sqrt(product * std::max(out, 1.0));
  }
  if (base == "lstm" || base == "gru" || base.starts_with("rnn_") || base.ends_with("_cell")) {
    // Every weight matrix meets every position of every sequence once.
    const TensorMeta* input = node.first_tensor();
    double weights = elements(node.tensor("w_ih")) + elements(node.tensor("w_hh"));
    for (const TensorMeta* meta : node.list("params")) {
      if (meta->sizes.size() == 2) weights += elements(meta);
    }
    return 2 * weights * elements(input) / std::max(from_end(input, 1), 1.0);
  }
  if (base == "conv_tbc") {
    const TensorMeta* weight = node.tensor("weight");
    return 2 * out * elements(weight) / std::max(from_end(weight, 1), 1.0);
  }
  if (is_decomposition(base)) {
    return 4 * elements(node.first_tensor()) * from_end(node.first_tensor(), 1);
  }
  // Vectors and what is left: every input element is used once.
  double read = 0;
  for (const TensorMeta* meta : node.tensors()) read = std::max(read, elements(meta));
  return 2 * std::max(read, out);
}

double conv_flops(const NodeView& node) {
  const TensorMeta* weight = node.tensor("weight");
  if (weight == nullptr || weight->sizes.empty() || weight->sizes[0] <= 0) return 0;
  const bool transposed =
      node.base().find("transpose") != std::string_view::npos || node.boolean("transposed", false);
  // A weight row [C, ...] meets each output element, or each input element when transposed.
  const double row = elements(weight) / static_cast<double>(weight->sizes[0]);
  const double points = transposed ? elements(node.first_tensor()) : node.output_elements();
  return 2 * points * row + (node.tensor("bias") ? node.output_elements() : 0);
}

double attention_flops(const NodeView& node) {
  const TensorMeta* query = node.tensor("query");
  const TensorMeta* key = node.tensor("key");
  const TensorMeta* value = node.tensor("value");
  const double rows = elements(query) / std::max(from_end(query, 1), 1.0);
  return 2 * rows * from_end(key, 2) * (from_end(query, 1) + from_end(value, 1));
}

double reduce_flops(const NodeView& node) {
  const std::string_view base = node.base();
  const double in = elements(node.first_tensor());
  const double out = node.output_elements();
  if (base.find("_pool") != std::string_view::npos) {
    if (base.find("adaptive") != std::string_view::npos) return in;
    double window = 1;
    const std::vector<int64_t> kernel = node.integers("kernel_size");
    const size_t dimensions = static_cast<size_t>(base[base.find("pool") + 4] - '0');
    for (size_t i = 0; i < dimensions && !kernel.empty(); ++i) {
      window *= static_cast<double>(kernel[std::min(i, kernel.size() - 1)]);
    }
    return out * window;
  }
  if (base.find("upsample") != std::string_view::npos) {
    if (base.find("nearest") != std::string_view::npos) return out;
    if (base.find("bicubic") != std::string_view::npos) return 40 * out;
    return (base.find("trilinear") != std::string_view::npos ? 16 : 8) * out;
  }
  if (base.find("fft") != std::string_view::npos || base.ends_with("stft")) {
    const double points = std::max(in, out);
    return 5 * points * std::log2(std::max(2.0, points));
  }
  if (base.find("sort") != std::string_view::npos || base == "topk" || base == "median") {
    return in * std::log2(std::max(2.0, from_end(node.first_tensor(), 1)));
  }
  const bool normalizes = base.find("norm") != std::string_view::npos ||
                          base.find("softmax") != std::string_view::npos ||
                          base == "cross_entropy_loss" || base.starts_with("var") ||
                          base.starts_with("std") || base == "logsumexp";
  return (normalizes ? 5 : 1) * in;
}

double flops_of(const NodeView& node, CostClass cost_class) {
  switch (cost_class) {
    case CostClass::kMatmul:
      return matmul_flops(node);
    case CostClass::kConv:
      return conv_flops(node);
    case CostClass::kAttention:
      return attention_flops(node);
    case CostClass::kReduce:
      return reduce_flops(node);
    case CostClass::kMemory:
      return node.output_elements();
    case CostClass::kIndex:
      return node.base().starts_with("grid_sampler") ? 8 * node.output_elements() : 0;
    case CostClass::kView:
    case CostClass::kCreate:
      return 0;
  }
  return 0;
}

double bytes_of(const NodeView& node, CostClass cost_class) {
  const double out = node.output_bytes();
  if (cost_class == CostClass::kCreate) return out;
  if (cost_class == CostClass::kView) {
    // Free, unless the element type changes or the elements must be moved.
    const TensorMeta* in = node.first_tensor();
    const TensorMeta* made = node.output();
    if (in == nullptr || made == nullptr) return 0;
    const bool moved =
        (node.base() == "contiguous" || node.base() == "reshape" || node.base() == "flatten") &&
        in->strides != contiguous_strides(in->sizes);
    return in->dtype != made->dtype || moved ? bytes(in) + out : 0;
  }
  const std::string_view base = node.base();
  if (base == "embedding" || base == "index_select" || base == "gather" || base == "index" ||
      base == "_unsafe_index" || base == "embedding_bag") {
    // Only the rows asked for are read, not the whole table.
    double read = 0;
    for (const TensorMeta* meta : node.tensors()) {
      if (!dtype_can_have_gradient(meta->dtype)) read += bytes(meta);
    }
    return read + 2 * out;
  }
  double read = 0;
  std::set<const TensorMeta*> seen;
  for (const TensorMeta* meta : node.tensors()) {
    if (seen.insert(meta).second) read += bytes(meta);
  }
  return read + out;
}

}  // namespace

Cost node_cost(const Graph& graph, const Node& node) {
  const OpInfo* info = find_op(node.op);
  if (info == nullptr) return {};
  const NodeView view(graph, node);
  Cost cost;
  cost.flops_forward = flops_of(view, info->cost_class);
  cost.bytes_forward = bytes_of(view, info->cost_class);
  if (info->differentiable) {
    // A product has two gradients, each as dear as itself; so do norms, roughly.
    const bool twice = info->cost_class != CostClass::kMemory;
    cost.flops_backward = (twice ? 2 : 1) * cost.flops_forward;
  }
  return cost;
}

}  // namespace weft::opdag
