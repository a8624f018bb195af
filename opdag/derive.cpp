#include "opdag/derive.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "opdag/op_table.h"

namespace weft::opdag {
namespace {

size_t at(ValueId id) {
  return static_cast<size_t>(id);
}

bool is_none(const Argument* argument) {
  return argument == nullptr || std::holds_alternative<NoneArg>(*argument);
}

void set_argument(Node& node, std::string_view name, Argument value) {
  for (NamedArgument& argument : node.arguments) {
    if (argument.name == name) {
      argument.value = std::move(value);
      return;
    }
  }
  node.arguments.push_back({std::string(name), std::move(value)});
}

// The nodes that the wanted values depend on. An atomic group is needed as a whole: its in-place
// operators act on values without being read.
class Needed {
 public:
  explicit Needed(const Graph& graph) : graph_(graph), nodes_(graph.nodes.size(), false) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      if (graph.nodes[i].atomic_group != kNone) groups_[graph.nodes[i].atomic_group].push_back(i);
    }
  }

  void want(ValueId id) {
    std::vector<ValueId> open{id};
    while (!open.empty()) {
      const ValueId next = open.back();
      open.pop_back();
      const int32_t index = graph_.node_index(graph_.value(next).producer);
      if (index == kNone) {
        leaves_.insert(next);
        continue;
      }
      add(static_cast<size_t>(index), open);
    }
  }

  bool node(size_t index) const { return nodes_[index]; }
  bool leaf(ValueId id) const { return leaves_.contains(id); }

 private:
  void add(size_t index, std::vector<ValueId>& open) {
    if (nodes_[index]) return;
    nodes_[index] = true;
    for (ValueId id : inputs_of(graph_.nodes[index])) open.push_back(id);
    const int32_t group = graph_.nodes[index].atomic_group;
    if (group == kNone) return;
    for (size_t member : groups_[group]) {
      if (!nodes_[member]) add(member, open);
    }
  }

  const Graph& graph_;
  std::map<int32_t, std::vector<size_t>> groups_;
  std::vector<bool> nodes_;
  std::set<ValueId> leaves_;
};

enum class Unread { kDrop, kKeepState };

// What a state dict of the module holds.
bool is_state(const Leaf& leaf) {
  return leaf.kind == LeafKind::kParameter || (leaf.kind == LeafKind::kBuffer && leaf.persistent);
}

// Drops the nodes and leaves that outputs and buffer updates do not need, except other names of a
// tied weight that is read: exports and checkpoints carry all of them.
Status keep_needed(Graph& graph, Unread unread) {
  Needed needed(graph);
  for (const Output& output : graph.outputs) needed.want(output.value);
  for (const BufferUpdate& update : graph.buffer_updates) needed.want(update.value);
  std::set<std::string_view> updated;
  for (const BufferUpdate& update : graph.buffer_updates) updated.insert(update.target);
  std::vector<Node> nodes;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (needed.node(i)) nodes.push_back(std::move(graph.nodes[i]));
  }
  graph.nodes = std::move(nodes);
  std::set<int32_t> tied;
  for (const Leaf& leaf : graph.leaves) {
    if (leaf.tied_group != kNone && needed.leaf(leaf.value)) tied.insert(leaf.tied_group);
  }
  std::erase_if(graph.leaves, [&](const Leaf& leaf) {
    return !needed.leaf(leaf.value) && !tied.contains(leaf.tied_group) &&
           !(unread == Unread::kKeepState && is_state(leaf)) &&
           !(leaf.kind != LeafKind::kUserInput && updated.contains(leaf.target));
  });
  return validate_structure(graph);
}

bool keeps_training_without_buffers(const OpInfo& info, const Node& node) {
  return !info.writes_buffers.empty() &&
         std::all_of(info.writes_buffers.begin(), info.writes_buffers.end(),
                     [&](std::string_view name) { return is_none(node.find(name)); });
}

std::string list_of(const std::vector<Output>& outputs) {
  std::string text;
  for (const Output& output : outputs) text += (text.empty() ? "" : ", ") + output.name;
  return text.empty() ? "none" : text;
}

Result<size_t> find_output(const Graph& graph, const std::string& name) {
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    if (graph.outputs[i].name == name) return i;
  }
  return make_error(Code::kNotFound, fmt::format("the graph has no output '{}'", name),
                    "its outputs are: " + list_of(graph.outputs));
}

// *, ? against a name; greedy with one point to return to.
bool glob_matches(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0, star = pattern.npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n]) && pattern[p] != '*') {
      ++p;
      ++n;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (star != pattern.npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace

Result<Graph> derive_eval(const Graph& graph) {
  Graph out = graph;
  for (Node& node : out.nodes) {
    const OpInfo* info = find_op(node.op);
    if (info == nullptr) continue;
    // Normalisation that owns no running statistics uses the batch's in eval mode, too.
    if (!info->train_flag.empty() && !keeps_training_without_buffers(*info, node)) {
      set_argument(node, info->train_flag, false);
    }
    if (!info->dropout_p.empty() && node.find(info->dropout_p) != nullptr) {
      set_argument(node, info->dropout_p, 0.0);
    }
    if (info->random && info->train_flag.empty() && info->dropout_p.empty() && graph.train_mode) {
      out.warnings.push_back(fmt::format(
          "node {} ({}) draws random numbers in evaluation, too: if the module does not do so in "
          "eval mode, give the job an eval_model",
          node.id, node.op));
    }
  }
  out.buffer_updates.clear();
  out.train_mode = false;
  WEFT_TRY_STATUS(keep_needed(out, Unread::kDrop));
  return out;
}

bool derived_from(const Graph& eval, const Graph& train) {
  const auto same_node = [&](const Node& node) {
    const int32_t position = train.node_index(node.id);
    if (position == kNone) return false;
    const Node& other = train.nodes[static_cast<size_t>(position)];
    return other.op == node.op && other.outputs == node.outputs &&
           inputs_of(other) == inputs_of(node);
  };
  const auto same_leaf = [&](const Leaf& leaf) {
    const Leaf* other = at(leaf.value) < train.values.size() ? train.leaf_of(leaf.value) : nullptr;
    return other != nullptr && other->kind == leaf.kind && other->target == leaf.target;
  };
  return std::all_of(eval.nodes.begin(), eval.nodes.end(), same_node) &&
         std::all_of(eval.leaves.begin(), eval.leaves.end(), same_leaf);
}

Result<Graph> prune_to(const Graph& graph, const std::vector<std::string>& output_names) {
  std::vector<Output> wanted;
  int32_t loss = kNone;
  if (output_names.empty()) {
    if (graph.loss_output == kNone) {
      return make_error(Code::kNotFound, "the graph has no loss output to keep",
                        "its outputs are: " + list_of(graph.outputs));
    }
    wanted.push_back(graph.outputs[at(graph.loss_output)]);
    loss = 0;
  }
  for (const std::string& name : output_names) {
    WEFT_TRY(const size_t index, find_output(graph, name));
    const bool twice = std::any_of(wanted.begin(), wanted.end(),
                                   [&](const Output& output) { return output.name == name; });
    if (twice) continue;
    if (static_cast<int32_t>(index) == graph.loss_output) {
      loss = static_cast<int32_t>(wanted.size());
    }
    wanted.push_back(graph.outputs[index]);
  }

  Needed needed(graph);
  for (const Output& output : wanted) needed.want(output.value);
  // An update stays unless it needs a user input that nothing else needs: PyTorch makes it in every
  // forward, whichever output is trained on.
  std::vector<BufferUpdate> updates;
  for (const BufferUpdate& update : graph.buffer_updates) {
    Needed alone(graph);
    alone.want(update.value);
    const bool stays = std::all_of(graph.leaves.begin(), graph.leaves.end(), [&](const Leaf& leaf) {
      return leaf.kind != LeafKind::kUserInput || !alone.leaf(leaf.value) ||
             needed.leaf(leaf.value);
    });
    if (stays) updates.push_back(update);
  }

  Graph out = graph;
  out.outputs = std::move(wanted);
  out.loss_output = loss;
  out.buffer_updates = std::move(updates);
  WEFT_TRY_STATUS(keep_needed(out, Unread::kKeepState));
  return out;
}

Result<Graph> append_loss(const Graph& graph, LossKind kind, const std::string& output_name,
                          const std::string& target_input) {
  WEFT_TRY(const size_t index, find_output(graph, output_name));
  if (target_input.empty() || graph.find_leaf(target_input) != nullptr) {
    return make_error(
        Code::kExists,
        fmt::format("'{}' cannot name the loss target: the graph uses the name", target_input),
        "bind the labels under another name");
  }
  Graph out = graph;
  ValueId logits = out.outputs[index].value;
  const TensorMeta meta = out.value(logits).meta;
  if (out.value(logits).kind != ValueKind::kTensor || !dtype_is_floating(meta.dtype)) {
    return make_error(Code::kInvalid, fmt::format("output '{}' is no floating tensor", output_name),
                      "choose another output for the loss");
  }
  NodeId next = 0;
  for (const Node& node : out.nodes) next = std::max(next, node.id + 1);
  const auto value = [&](const std::string& name, DType dtype, std::vector<int64_t> sizes) {
    Value made;
    made.id = static_cast<ValueId>(out.values.size());
    made.name = name;
    made.meta.dtype = dtype;
    made.meta.strides = contiguous_strides(sizes);
    made.meta.sizes = std::move(sizes);
    made.meta.device = meta.device;
    out.values.push_back(std::move(made));
    return out.values.back().id;
  };
  const auto node = [&](const std::string& op, std::vector<NamedArgument> arguments, ValueId made) {
    Node n;
    n.id = next++;
    n.op = op;
    n.arguments = std::move(arguments);
    n.outputs = {made};
    out.nodes.push_back(std::move(n));
    return made;
  };
  const auto reshape = [&](ValueId from, const std::string& name, std::vector<int64_t> sizes) {
    IntListArg shape;
    for (int64_t size : sizes) shape.items.push_back({size, kNone});
    const ValueId made = value(name, out.value(from).meta.dtype, std::move(sizes));
    return node("aten::reshape", {{"self", ValueArg{from}}, {"shape", std::move(shape)}}, made);
  };
  const auto add_target = [&](DType dtype, std::vector<int64_t> sizes) {
    Leaf leaf;
    leaf.kind = LeafKind::kUserInput;
    leaf.target = target_input;
    leaf.value = value(target_input, dtype, std::move(sizes));
    out.leaves.push_back(leaf);
    return leaf.value;
  };

  ValueId target = kNone;
  if (kind == LossKind::kMse) {
    target = add_target(meta.dtype, meta.sizes);
  } else {
    const size_t rank = meta.sizes.size();
    if (rank < 2) {
      return make_error(Code::kInvalid,
                        fmt::format("output '{}' has {} dimensions; cross_entropy needs [rows, "
                                    "classes] or [batch, length, classes]",
                                    output_name, rank),
                        "choose another output or the loss mse");
    }
    // Images keep PyTorch's order [N, C, H, W]; rows of tokens have their classes last.
    const size_t class_dim = rank <= 3 ? rank - 1 : 1;
    std::vector<int64_t> sizes = meta.sizes;
    sizes.erase(sizes.begin() + static_cast<long>(class_dim));
    target = add_target(DType::kInt64, sizes);
    if (rank == 3) {
      const int64_t rows = meta.sizes[0] * meta.sizes[1];
      logits = reshape(logits, output_name + "_rows", {rows, meta.sizes[2]});
      target = reshape(target, target_input + "_rows", {rows});
    }
  }
  const ValueId loss = value("loss", meta.dtype, {});
  node(kind == LossKind::kMse ? "aten::mse_loss" : "aten::cross_entropy_loss",
       {{"self", ValueArg{logits}}, {"target", ValueArg{target}}}, loss);
  for (Output& output : out.outputs) {
    if (output.name == "loss") output.name = "loss.of_export";
  }
  out.loss_output = static_cast<int32_t>(out.outputs.size());
  out.outputs.push_back({"loss", loss});
  WEFT_TRY_STATUS(validate_structure(out));
  return out;
}

Result<Graph> freeze(const Graph& graph, const std::vector<std::string>& patterns) {
  Graph out = graph;
  std::set<int32_t> groups;
  for (const std::string& pattern : patterns) {
    bool used = false;
    for (Leaf& leaf : out.leaves) {
      if (leaf.kind != LeafKind::kParameter || !glob_matches(pattern, leaf.target)) continue;
      leaf.trainable = false;
      used = true;
      if (leaf.tied_group != kNone) groups.insert(leaf.tied_group);
    }
    if (!used) {
      return make_error(Code::kNotFound, fmt::format("no parameter matches '{}'", pattern),
                        "see the names with: weft model inspect");
    }
  }
  for (Leaf& leaf : out.leaves) {  // one weight under two names freezes under both
    if (groups.contains(leaf.tied_group)) leaf.trainable = false;
  }
  return out;
}

std::vector<bool> values_with_gradient(const Graph& graph) {
  std::vector<bool> flows(graph.values.size(), false);
  for (const Leaf& leaf : graph.leaves) {
    if (leaf.kind == LeafKind::kParameter && leaf.trainable &&
        dtype_can_have_gradient(graph.value(leaf.value).meta.dtype)) {
      flows[at(leaf.value)] = true;
    }
  }
  const auto mark = [&](ValueId id) {
    if (id == kNone) return;
    const Value& value = graph.value(id);
    if (value.kind == ValueKind::kTensor && dtype_can_have_gradient(value.meta.dtype)) {
      flows[at(id)] = true;
    }
  };
  for (const Node& node : graph.nodes) {
    const OpInfo* info = find_op(node.op);
    if (info != nullptr && !info->differentiable) continue;
    const std::vector<ValueId> inputs = inputs_of(node);
    if (std::none_of(inputs.begin(), inputs.end(), [&](ValueId id) { return flows[at(id)]; })) {
      continue;
    }
    for (ValueId id : node.outputs) {
      if (id == kNone) continue;
      mark(id);
      for (ValueId element : graph.value(id).elements) {
        if (element == kNone) continue;
        mark(element);
        if (flows[at(element)]) flows[at(id)] = true;
      }
    }
  }
  return flows;
}

std::vector<bool> nodes_with_backward(const Graph& graph) {
  const std::vector<bool> gradient = values_with_gradient(graph);
  std::vector<bool> result;
  for (const Node& node : graph.nodes) {
    result.push_back(std::any_of(node.outputs.begin(), node.outputs.end(),
                                 [&](ValueId id) { return id != kNone && gradient[at(id)]; }));
  }
  return result;
}

}  // namespace weft::opdag
