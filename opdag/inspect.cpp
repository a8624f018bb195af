#include "opdag/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "opdag/cost_view.h"
#include "opdag/cut.h"
#include "opdag/cut_flow.h"
#include "opdag/derive.h"

namespace weft::opdag {
namespace {

void add(Cost& sum, const Cost& cost) {
  sum.flops_forward += cost.flops_forward;
  sum.flops_backward += cost.flops_backward;
  sum.bytes_forward += cost.bytes_forward;
}

void count_operators(const Graph& graph, ModelSummary& summary) {
  std::map<std::string, OperatorSummary> operators;
  std::map<CostClass, ClassSummary> classes;
  std::map<std::string, RefusedOperator> refused;
  for (const Node& node : graph.nodes) {
    const Cost cost = node_cost(graph, node);
    OperatorSummary& row = operators[node.op];
    row.op = node.op;
    ++row.count;
    row.flops_forward += cost.flops_forward;
    row.bytes_forward += cost.bytes_forward;
    add(summary.total, cost);
    if (const OpInfo* info = find_op(node.op)) {
      ClassSummary& group = classes[info->cost_class];
      group.cost_class = info->cost_class;
      ++group.nodes;
      add(group.cost, cost);
      continue;
    }
    RefusedOperator& bad = refused[node.op];
    if (bad.count++ == 0) {
      bad.op = node.op;
      bad.node = node.id;
      bad.advice = refused_op(node).next;
    }
  }
  for (auto& [name, row] : operators) summary.operators.push_back(std::move(row));
  std::sort(summary.operators.begin(), summary.operators.end(),
            [](const OperatorSummary& a, const OperatorSummary& b) {
              return std::tuple(-a.flops_forward, -a.count, a.op) <
                     std::tuple(-b.flops_forward, -b.count, b.op);
            });
  for (auto& [key, group] : classes) summary.classes.push_back(group);
  for (auto& [name, bad] : refused) summary.refused.push_back(std::move(bad));
}

void add(StorageSummary& sum, const TensorMeta& meta) {
  ++sum.tensors;
  sum.elements += element_count(meta.sizes).value_or(0);
  sum.bytes += meta_bytes(meta);
}

void count_leaves(const Graph& graph, ModelSummary& summary) {
  // Leaves are one weight when they share a tied group, or a piece of a file.
  std::map<std::tuple<std::string, int64_t, std::vector<int64_t>>, std::string> seen;
  for (const Leaf& leaf : graph.leaves) {
    const TensorMeta& meta = graph.value(leaf.value).meta;
    if (leaf.kind == LeafKind::kUserInput) {
      summary.inputs.push_back({leaf.target, meta.dtype, meta.sizes});
      continue;
    }
    if (!leaf.weight.path.empty()) {
      const auto [first, fresh] = seen.try_emplace(
          {leaf.weight.path, leaf.weight.storage_offset, leaf.weight.sizes}, leaf.target);
      if (!fresh) {
        if (leaf.kind == LeafKind::kParameter) {
          summary.tied.push_back(fmt::format("{} = {}", first->second, leaf.target));
        }
        continue;
      }
    }
    switch (leaf.kind) {
      case LeafKind::kParameter:
        add(summary.parameters, meta);
        if (leaf.trainable) add(summary.trainable, meta);
        break;
      case LeafKind::kBuffer:
        add(summary.buffers, meta);
        break;
      default:
        add(summary.constants, meta);
        break;
    }
  }
}

void list_cut_tensors(const Graph& graph, const CutFlow& flow, ModelSummary& summary) {
  const auto units = cut_units(graph);
  summary.units = static_cast<int64_t>(units.size());
  std::vector<int32_t> unit_of(graph.nodes.size(), 0);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    for (int32_t node : units[unit]) {
      unit_of[static_cast<size_t>(node)] = static_cast<int32_t>(unit);
    }
  }
  const std::vector<bool> gradient = values_with_gradient(graph);
  for (const Value& value : graph.values) {
    const int32_t from = flow.sender[static_cast<size_t>(value.id)];
    if (from == kNone || value.kind != ValueKind::kTensor) continue;
    const int32_t made = unit_of[static_cast<size_t>(from)];
    int32_t last = made;
    for (int32_t user : flow.consumers[static_cast<size_t>(value.id)]) {
      last = std::max(last, unit_of[static_cast<size_t>(user)]);
    }
    if (last == made) continue;
    const Node& node = graph.nodes[static_cast<size_t>(from)];
    summary.cut_tensors.push_back({value.name, node.op, node.id, value.meta.dtype, value.meta.sizes,
                                   meta_bytes(value.meta), gradient[static_cast<size_t>(value.id)],
                                   made, last});
  }
  std::stable_sort(summary.cut_tensors.begin(), summary.cut_tensors.end(),
                   [](const CutTensor& a, const CutTensor& b) { return a.made_in < b.made_in; });
}

// Whether a slice drops the first positions of the last dimension: labels[..., 1:].
bool drops_first(const NodeView& view) {
  const TensorMeta* in = view.tensor("self");
  if (view.base() != "slice" || in == nullptr) return false;
  const auto rank = static_cast<int64_t>(in->sizes.size());
  const int64_t dim = view.integer("dim").value_or(0);
  return view.integer("start").value_or(0) == 1 && (dim == rank - 1 || dim == -1);
}

// Follows the labels of a loss back to the input they come from, through operators that only move,
// pad or convert them.
void find_label_shift(const Graph& graph, const Flow& flow, ModelSummary& summary) {
  static const std::set<std::string_view> kMoving = {
      "view",   "reshape",         "flatten", "contiguous",  "to",        "_to_copy",
      "clone",  "slice",           "pad",     "squeeze",     "unsqueeze", "alias",
      "detach", "constant_pad_nd", "type_as", "_unsafe_view"};
  for (const Node& node : graph.nodes) {
    const std::string_view base = NodeView(graph, node).base();
    if (base != "cross_entropy_loss" && !base.starts_with("nll_loss")) continue;
    const Argument* target = node.find("target");
    const auto* value = target ? std::get_if<ValueArg>(target) : nullptr;
    bool shifted = false;
    ValueId id = value ? value->id : kNone;
    while (id != kNone && flow.producer[static_cast<size_t>(id)] != kNone) {
      const Node& maker = graph.nodes[static_cast<size_t>(flow.producer[static_cast<size_t>(id)])];
      const NodeView view(graph, maker);
      if (!kMoving.contains(view.base())) break;
      shifted = shifted || drops_first(view);
      const Argument* self = maker.find("self");
      const auto* source = self ? std::get_if<ValueArg>(self) : nullptr;
      id = source ? source->id : kNone;
    }
    const Leaf* leaf = id == kNone ? nullptr : graph.leaf_of(id);
    if (!shifted || leaf == nullptr || leaf->kind != LeafKind::kUserInput) continue;
    summary.labels_shifted_inside = true;
    summary.shifted_input = leaf->target;
    return;
  }
}

}  // namespace

std::string_view cost_class_name(CostClass cost_class) {
  switch (cost_class) {
    case CostClass::kView:
      return "view";
    case CostClass::kMemory:
      return "memory";
    case CostClass::kReduce:
      return "reduce";
    case CostClass::kMatmul:
      return "matmul";
    case CostClass::kConv:
      return "conv";
    case CostClass::kAttention:
      return "attention";
    case CostClass::kIndex:
      return "index";
    case CostClass::kCreate:
      return "create";
  }
  return "?";
}

ModelSummary summarize(const Graph& graph) {
  ModelSummary summary;
  const CutFlow flow(graph);
  summary.nodes = static_cast<int64_t>(graph.nodes.size());
  summary.warnings = graph.warnings;
  count_operators(graph, summary);
  count_leaves(graph, summary);
  for (const Output& output : graph.outputs) {
    const TensorMeta& meta = graph.value(output.value).meta;
    summary.outputs.push_back({output.name, meta.dtype, meta.sizes});
  }
  if (graph.loss_output != kNone) {
    summary.loss = graph.outputs[static_cast<size_t>(graph.loss_output)].name;
  }
  list_cut_tensors(graph, flow, summary);
  find_label_shift(graph, flow, summary);
  return summary;
}

}  // namespace weft::opdag
