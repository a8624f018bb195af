#include "opdag/functional.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "opdag/functional_names.h"
#include "opdag/functional_rewrite.h"
#include "opdag/op_table.h"

namespace weft::opdag {

Status Rewriter::run() {
  bool any = false;
  for (Node& node : graph_.nodes) {
    if (is_metadata_only(node.op)) node.op = without_underscore(node.op);
    any = any || is_in_place(node.op);
  }
  if (!any) return {};
  map_ = find_aliases(graph_);
  find_gradients();
  find_unsafe();
  const size_t n = graph_.values.size();
  current_.resize(n);
  std::iota(current_.begin(), current_.end(), 0);
  version_.assign(n, 0);
  root_version_.assign(n, 0);
  std::vector<Node> nodes = std::move(graph_.nodes);
  originals_ = &nodes;
  for (const Node& node : nodes) emit(node);
  for (Output& output : graph_.outputs) output.value = read(output.value);
  update_buffers();
  graph_.nodes = std::move(out_);
  drop_dead_views();
  group_unsafe();
  return {};
}

// The value that now stands for `id`: itself, or what later writes to its memory made of it.
ValueId Rewriter::read(ValueId id) {
  if (!known(id) || unsafe_[at(id)] != kNone) return id;
  const int64_t now = root_version_[at(root(id))];
  if (alias(id).kind == AliasKind::kRoot || version_[at(id)] == now) return current_[at(id)];
  const ValueId parent = read(alias(id).parent);
  current_[at(id)] = alias(id).kind == AliasKind::kIdentity ? parent : view_again(id, parent);
  version_[at(id)] = now;
  return current_[at(id)];
}

// Takes the view `id` of its parent's new value.
ValueId Rewriter::view_again(ValueId id, ValueId parent) {
  const Alias& step = alias(id);
  const std::string name = graph_.value(id).name;
  const TensorMeta out = meta(id);
  if (step.kind == AliasKind::kSelect) {
    return make("aten::select.int",
                {{"self", ValueArg{parent}}, {"dim", step.dim0}, {"index", step.start}}, name, out);
  }
  if (step.kind == AliasKind::kSlice) {
    return make("aten::slice.Tensor",
                {{"self", ValueArg{parent}},
                 {"dim", step.dim0},
                 {"start", step.start},
                 {"end", step.end},
                 {"step", step.step}},
                name, out);
  }
  const Node& original = (*originals_)[static_cast<size_t>(step.node)];
  std::vector<NamedArgument> arguments = original.arguments;
  const std::string op = original.op;
  for (NamedArgument& argument : arguments) {
    if (argument.name == step.parent_argument) {
      argument.value = ValueArg{parent};
    } else {
      rewire(argument);
    }
  }
  return make(op, std::move(arguments), name, out);
}

void Rewriter::rewire(NamedArgument& argument) {
  if (auto* one = std::get_if<ValueArg>(&argument.value)) {
    one->id = read(one->id);
  } else if (auto* list = std::get_if<ValueListArg>(&argument.value)) {
    for (ValueId& id : list->ids) {
      if (id != kNone) id = read(id);
    }
  }
}

void Rewriter::emit(const Node& original) {
  Node node = original;
  for (NamedArgument& argument : node.arguments) rewire(argument);
  const ValueId self = is_in_place(node.op) ? written_by(original) : kNone;
  if (self != kNone && unsafe_[at(self)] == kNone) {
    write(original, std::move(node), self);
    return;
  }
  for (ValueId id : outputs_of(graph_, node)) settle(id);
  const OpInfo* info = find_op(node.op);
  if (info != nullptr && info->view && !node.outputs.empty()) made_.insert(node.id);
  out_.push_back(std::move(node));
}

void Rewriter::settle(ValueId id) {
  version_[at(id)] = root_version_[at(root(id))];
}

void Rewriter::update_buffers() {
  for (BufferUpdate& update : graph_.buffer_updates) update.value = read(update.value);
  for (const Leaf& leaf : graph_.leaves) {
    if (root_version_[at(leaf.value)] == 0 || read(leaf.value) == leaf.value) continue;
    const auto same = std::find_if(graph_.buffer_updates.begin(), graph_.buffer_updates.end(),
                                   [&](const auto& u) { return u.target == leaf.target; });
    if (same == graph_.buffer_updates.end()) {
      graph_.buffer_updates.push_back({leaf.target, read(leaf.value)});
    }
  }
}

// Views the rewiring left without readers.
void Rewriter::drop_dead_views() {
  std::set<ValueId> read;
  for (const Output& output : graph_.outputs) read.insert(output.value);
  for (const BufferUpdate& update : graph_.buffer_updates) read.insert(update.value);
  std::vector<Node> kept;
  for (size_t i = graph_.nodes.size(); i-- > 0;) {
    Node& node = graph_.nodes[i];
    const bool dead = made_.contains(node.id) &&
                      std::none_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
                        if (id == kNone) return false;
                        const auto& parts = graph_.value(id).elements;
                        return read.contains(id) ||
                               std::any_of(parts.begin(), parts.end(),
                                           [&](ValueId part) { return read.contains(part); });
                      });
    if (dead) continue;
    for (ValueId id : inputs_of(node)) read.insert(id);
    kept.push_back(std::move(node));
  }
  std::reverse(kept.begin(), kept.end());
  graph_.nodes = std::move(kept);
}

Status make_functional(Graph& graph, NodeId next_id) {
  return Rewriter(graph, next_id).run();
}

}  // namespace weft::opdag
