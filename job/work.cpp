#include "job/work.h"

#include <algorithm>
#include <variant>

#include "opdag/derive.h"
#include "opdag/op_table.h"

namespace weft::job {
namespace {

// In the order of OpClass.
constexpr std::array<std::string_view, kOpClasses> kNames = {
    "matrix", "convolution", "attention", "elementwise", "function",
    "random", "norm",        "reduce",    "index"};

// Elementwise operators whose arithmetic outweighs their bytes; in-place forms end in "_".
constexpr std::array<std::string_view, 30> kFunctions = {
    "gelu",  "tanh", "sigmoid", "silu",  "elu",   "selu", "celu",   "mish", "exp",    "exp2",
    "expm1", "log",  "log2",    "log10", "log1p", "pow",  "sin",    "cos",  "tan",    "asin",
    "acos",  "atan", "atan2",   "sinh",  "cosh",  "erf",  "erfinv", "erfc", "lgamma", "softplus"};

std::string_view base_name(std::string_view op) {
  op.remove_prefix(std::min(op.size(), op.find("::") + 2));
  op = op.substr(0, op.find('.'));
  if (op.size() > 1 && op.ends_with('_') && !op.ends_with("__")) op.remove_suffix(1);
  return op;
}

OpClass of_memory(std::string_view base) {
  if (std::find(kFunctions.begin(), kFunctions.end(), base) != kFunctions.end()) {
    return OpClass::kFunction;
  }
  return base == "log_sigmoid" ? OpClass::kFunction : OpClass::kElementwise;
}

// "norm" itself is a plain sum.
bool normalizes(std::string_view base) {
  return base.find("_norm") != std::string_view::npos && !base.starts_with("linalg_");
}

bool is_view(const opdag::Node& node) {
  const opdag::OpInfo* info = opdag::find_op(node.op);
  return info != nullptr && info->view && !opdag::draws_random(node);
}

// Gives its input back, though it is no view by itself: dropout in evaluation. A view that has
// bytes to move (reshape, to) is a copy.
bool aliases(const opdag::Node& node) {
  return is_view(node) && opdag::find_op(node.op)->cost_class != opdag::CostClass::kView;
}

// Of the table an embedding looks up: its gradient is filled with zeros, and added to the last.
double table_bytes(const opdag::Graph& graph, const opdag::Node& node) {
  if (!base_name(node.op).starts_with("embedding")) return 0;
  const opdag::Argument* weight = node.find("weight");
  const auto* value = weight == nullptr ? nullptr : std::get_if<opdag::ValueArg>(weight);
  if (value == nullptr) return 0;
  return static_cast<double>(opdag::meta_bytes(graph.value(value->id).meta));
}

}  // namespace

std::string_view op_class_name(OpClass op_class) {
  return kNames.at(static_cast<size_t>(op_class));
}

OpClass op_class_of(const opdag::Node& node) {
  const opdag::OpInfo* info = opdag::find_op(node.op);
  if (info == nullptr) return OpClass::kElementwise;
  const std::string_view base = base_name(node.op);
  switch (info->cost_class) {
    case opdag::CostClass::kMatmul:
      return OpClass::kMatrix;
    case opdag::CostClass::kConv:
      return OpClass::kConvolution;
    case opdag::CostClass::kAttention:
      return OpClass::kAttention;
    case opdag::CostClass::kReduce:
      return normalizes(base) ? OpClass::kNorm : OpClass::kReduce;
    case opdag::CostClass::kIndex:
    case opdag::CostClass::kCreate:
      return opdag::draws_random(node) ? OpClass::kRandom : OpClass::kIndex;
    case opdag::CostClass::kView:
    case opdag::CostClass::kMemory:
      break;
  }
  return opdag::draws_random(node) ? OpClass::kRandom : of_memory(base);
}

void ClassWork::add(const ClassWork& other) {
  operators += other.operators;
  flops_forward += other.flops_forward;
  flops_backward += other.flops_backward;
  bytes_forward += other.bytes_forward;
  bytes_backward += other.bytes_backward;
  forward_only += other.forward_only;
}

void Work::add(const Work& other) {
  for (size_t i = 0; i < kOpClasses; ++i) of_class[i].add(other.of_class[i]);
}

ClassWork Work::total() const {
  ClassWork sum;
  for (const ClassWork& part : of_class) sum.add(part);
  return sum;
}

std::vector<Work> node_work(const opdag::Graph& graph) {
  std::vector<Work> work;
  work.reserve(graph.nodes.size());
  for (const opdag::Node& node : graph.nodes) {
    const opdag::Cost cost = opdag::node_cost(graph, node);
    const double bytes = aliases(node) ? 0 : cost.bytes_forward;
    Work one;
    one.of(op_class_of(node)) = {is_view(node) && bytes == 0 ? 0.0 : 1.0, cost.flops_forward,
                                 cost.flops_backward, bytes, bytes + table_bytes(graph, node)};
    work.push_back(one);
  }
  return work;
}

std::vector<Work> training_work(const opdag::Graph& graph) {
  std::vector<Work> work = node_work(graph);
  const std::vector<bool> backward = opdag::nodes_with_backward(graph);
  for (size_t i = 0; i < work.size(); ++i) {
    if (backward[i]) continue;
    for (ClassWork& part : work[i].of_class) {
      part.flops_backward = part.bytes_backward = 0;
      part.forward_only = part.operators;
    }
  }
  return work;
}

PassSeconds seconds_of(const Work& work, const OpCosts& costs) {
  PassSeconds seconds;
  for (size_t i = 0; i < kOpClasses; ++i) {
    const ClassWork& part = work.of_class[i];
    const OpCost &forward = costs[i].forward, &backward = costs[i].backward;
    seconds.forward += forward.op_s * part.operators + forward.flop_s * part.flops_forward +
                       forward.byte_s * part.bytes_forward;
    seconds.backward += backward.op_s * (part.operators - part.forward_only) +
                        backward.flop_s * part.flops_backward +
                        backward.byte_s * part.bytes_backward;
  }
  return seconds;
}

OpCosts plain_costs(double flop_s, double byte_s, double op_s) {
  constexpr double kBackwardPasses = 2;  // over memory: the gradient is read, and written
  OpCosts costs;
  costs.fill({{op_s, flop_s, byte_s}, {kBackwardPasses * op_s, flop_s, kBackwardPasses * byte_s}});
  return costs;
}

}  // namespace weft::job
