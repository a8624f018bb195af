#include "opdag/functional.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "opdag/derive.h"
#include "opdag/functional_alias.h"
#include "opdag/op_table.h"

namespace weft::opdag {
namespace {

// "aten::add_.Tensor" -> {"aten::add_", ".Tensor"}
std::pair<std::string_view, std::string_view> split_overload(std::string_view op) {
  const size_t dot = op.find('.');
  return dot == op.npos ? std::pair{op, std::string_view{}}
                        : std::pair{op.substr(0, dot), op.substr(dot)};
}

// "aten::__iand__": Python's augmented assignments.
bool is_augmented(std::string_view base) {
  return base.starts_with("aten::__i") && base.ends_with("__");
}

std::string without_underscore(std::string_view op) {
  const auto [base, overload] = split_overload(op);
  if (is_augmented(base)) {
    return fmt::format("aten::__{}{}", base.substr(sizeof("aten::__i") - 1), overload);
  }
  return fmt::format("{}{}", base.substr(0, base.size() - 1), overload);
}

// The functional form of an in-place operator; "" when the table has none.
std::string functional_of(std::string_view op) {
  const OpInfo* info = find_op(op);
  if (info != nullptr && !info->functional.empty()) return std::string(info->functional);
  const std::string name = without_underscore(op);
  return find_op(name) != nullptr ? name : "";
}

// In-place operators that change a tensor's geometry or history, not its elements.
bool is_metadata_only(std::string_view op) {
  static const std::set<std::string_view> kNames = {
      "aten::detach_",      "aten::unsqueeze_",    "aten::squeeze_",
      "aten::squeeze_.dim", "aten::squeeze_.dims", "aten::transpose_",
      "aten::t_",           "aten::swapaxes_",     "aten::swapdims_"};
  return kNames.contains(op);
}

// Disjoint sets.
class Sets {
 public:
  explicit Sets(size_t n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), size_t{0}); }
  size_t find(size_t x) {
    while (parent_[x] != x) x = parent_[x] = parent_[parent_[x]];
    return x;
  }
  void join(size_t a, size_t b) { parent_[find(a)] = find(b); }

 private:
  std::vector<size_t> parent_;
};

size_t at(ValueId id) {
  return static_cast<size_t>(id);
}

bool is_contiguous(const TensorMeta& meta) {
  const std::vector<int64_t> strides = contiguous_strides(meta.sizes);
  for (size_t i = 0; i < strides.size(); ++i) {
    if (meta.sizes[i] > 1 && meta.strides[i] != strides[i]) return false;
  }
  return true;
}

// Whether the functional form gives a tensor of self's own dtype.
bool keeps_dtype(const Graph& graph, const Node& node, const TensorMeta& self) {
  static const std::set<std::string_view> kBoolean = {
      "aten::eq_",          "aten::ne_",         "aten::lt_",          "aten::le_",
      "aten::gt_",          "aten::ge_",         "aten::logical_and_", "aten::logical_or_",
      "aten::logical_not_", "aten::logical_xor_"};
  if (kBoolean.contains(split_overload(node.op).first)) return self.dtype == DType::kBool;
  static const std::set<std::string_view> kSelectors = {"mask", "index", "indices"};
  const auto category = [](DType dtype) {
    return dtype == DType::kBool      ? 0
           : dtype_is_complex(dtype)  ? 3
           : dtype_is_floating(dtype) ? 2
                                      : 1;
  };
  for (const NamedArgument& argument : node.arguments) {
    const auto* other = std::get_if<ValueArg>(&argument.value);
    if (other == nullptr || kSelectors.contains(argument.name)) continue;
    const TensorMeta& meta = graph.value(other->id).meta;
    const bool weak =
        meta.sizes.empty() && !self.sizes.empty() && category(meta.dtype) <= category(self.dtype);
    if (meta.dtype != self.dtype && !weak) return false;
  }
  return true;
}

class Rewriter {
 public:
  Rewriter(Graph& graph, NodeId next_id) : graph_(graph), next_id_(next_id) {}

  Status run() {
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

 private:
  const TensorMeta& meta(ValueId id) const { return graph_.value(id).meta; }
  ValueId root(ValueId id) const { return map_.root[at(id)]; }
  const Alias& alias(ValueId id) const { return map_.of[at(id)]; }
  bool known(ValueId id) const { return at(id) < map_.root.size(); }

  // ---- what is safe ---------------------------------------------------------------------------

  // By root: a gradient may flow through some alias of it.
  void find_gradients() {
    const std::vector<bool> flows = values_with_gradient(graph_);
    gradient_.assign(graph_.values.size(), false);
    for (const Value& value : graph_.values) {
      if (flows[at(value.id)]) gradient_[at(root(value.id))] = true;
    }
    for (const Node& node : graph_.nodes) {
      const ValueId self = is_in_place(node.op) ? written_by(node) : kNone;
      if (self == kNone) continue;
      for (ValueId id : inputs_of(node)) {
        if (flows[at(id)]) gradient_[at(root(self))] = true;
      }
    }
  }

  bool can_write_through(ValueId id) const {
    for (; alias(id).kind != AliasKind::kRoot; id = alias(id).parent) {
      const Alias& step = alias(id);
      if (step.kind == AliasKind::kOpaque) return false;
      if (step.kind == AliasKind::kDetach && gradient_[at(root(id))]) return false;
      if (step.kind == AliasKind::kReshape && !is_contiguous(meta(step.parent))) return false;
    }
    return true;
  }

  bool provable(const Node& node) const {
    const ValueId self = written_by(node);
    if (self == kNone || node.outputs.size() > 1) return false;
    const Value& base = graph_.value(root(self));
    const Leaf* leaf = graph_.leaf_of(base.id);
    if (leaf != nullptr &&
        (leaf->kind == LeafKind::kParameter || leaf->kind == LeafKind::kUserInput)) {
      return false;
    }
    if (!is_dense(base.meta) || !can_write_through(self)) return false;
    if (node.op == "aten::copy_") {
      const Argument* source = node.find("src");
      return source != nullptr && std::holds_alternative<ValueArg>(*source);
    }
    return !functional_of(node.op).empty() && keeps_dtype(graph_, node, meta(self));
  }

  void find_unsafe() {
    Sets sets(graph_.values.size());
    std::set<ValueId> doubtful;
    for (const auto& [a, b] : map_.maybe) {
      sets.join(at(root(a)), at(root(b)));
      doubtful.insert({root(a), root(b)});
    }
    std::set<size_t> bad;
    std::set<size_t> written;
    for (const Node& node : graph_.nodes) {
      if (!is_in_place(node.op)) continue;
      const ValueId self = written_by(node);
      if (self == kNone) continue;  // stays as it is; the operator table has the last word
      written.insert(sets.find(at(root(self))));
      if (!provable(node)) bad.insert(sets.find(at(root(self))));
    }
    for (ValueId id : doubtful) {
      if (written.contains(sets.find(at(id)))) bad.insert(sets.find(at(id)));
    }
    unsafe_.assign(graph_.values.size(), kNone);
    for (const Value& value : graph_.values) {
      const size_t set = sets.find(at(root(value.id)));
      if (bad.contains(set)) unsafe_[at(value.id)] = static_cast<int32_t>(set);
    }
  }

  // ---- rewriting ------------------------------------------------------------------------------

  ValueId fresh(const std::string& name, TensorMeta meta) {
    Value value;
    value.id = static_cast<ValueId>(graph_.values.size());
    value.name = name.substr(0, kMaxNameBytes);
    value.meta = std::move(meta);
    graph_.values.push_back(std::move(value));
    return graph_.values.back().id;
  }

  ValueId make(std::string op, std::vector<NamedArgument> arguments, const std::string& name,
               TensorMeta meta) {
    Node node;
    node.id = next_id_++;
    node.op = std::move(op);
    node.arguments = std::move(arguments);
    node.outputs = {fresh(name, std::move(meta))};
    made_.insert(node.id);
    out_.push_back(std::move(node));
    return out_.back().outputs[0];
  }

  // The value that now stands for `id`: itself, or what later writes to its memory made of it.
  ValueId read(ValueId id) {
    if (!known(id) || unsafe_[at(id)] != kNone) return id;
    const int64_t now = root_version_[at(root(id))];
    if (alias(id).kind == AliasKind::kRoot || version_[at(id)] == now) return current_[at(id)];
    const ValueId parent = read(alias(id).parent);
    current_[at(id)] = alias(id).kind == AliasKind::kIdentity ? parent : view_again(id, parent);
    version_[at(id)] = now;
    return current_[at(id)];
  }

  // Takes the view `id` of its parent's new value.
  ValueId view_again(ValueId id, ValueId parent) {
    const Alias& step = alias(id);
    const std::string name = graph_.value(id).name;
    const TensorMeta out = meta(id);
    if (step.kind == AliasKind::kSelect) {
      return make("aten::select.int",
                  {{"self", ValueArg{parent}}, {"dim", step.dim0}, {"index", step.start}}, name,
                  out);
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

  void rewire(NamedArgument& argument) {
    if (auto* one = std::get_if<ValueArg>(&argument.value)) {
      one->id = read(one->id);
    } else if (auto* list = std::get_if<ValueListArg>(&argument.value)) {
      for (ValueId& id : list->ids) {
        if (id != kNone) id = read(id);
      }
    }
  }

  void emit(const Node& original) {
    Node node = original;
    for (NamedArgument& argument : node.arguments) rewire(argument);
    const ValueId self = is_in_place(node.op) ? written_by(original) : kNone;
    if (self != kNone && unsafe_[at(self)] == kNone) {
      write(original, std::move(node), self);
      return;
    }
    for (ValueId id : node.outputs) {
      if (id == kNone) continue;
      settle(id);
      for (ValueId element : graph_.value(id).elements) {
        if (element != kNone) settle(element);
      }
    }
    const OpInfo* info = find_op(node.op);
    if (info != nullptr && info->view && !node.outputs.empty()) made_.insert(node.id);
    out_.push_back(std::move(node));
  }

  void settle(ValueId id) { version_[at(id)] = root_version_[at(root(id))]; }

  // An in-place node on `self`: computes the new content of self, then of its base and all between.
  void write(const Node& original, Node node, ValueId self) {
    std::vector<ValueId> path;  // self's ancestors, with their content before the write
    for (ValueId id = self; alias(id).kind != AliasKind::kRoot; id = alias(id).parent) {
      path.push_back(alias(id).parent);
    }
    std::vector<ValueId> before;
    for (ValueId id : path) before.push_back(read(id));
    ValueId content = node.op == "aten::copy_" ? copied(original, self)
                                               : computed(std::move(node), original, self);
    const int64_t now = ++root_version_[at(root(self))];
    ValueId child = self;
    assign(self, content, now);
    for (size_t i = 0; i < path.size(); ++i) {
      content = written_back(alias(child), content, before[i], path[i]);
      child = path[i];
      assign(child, content, now);
    }
    if (!path.empty()) forget_odd_strides(self, path, now);
  }

  void assign(ValueId id, ValueId content, int64_t now) {
    current_[at(id)] = content;
    version_[at(id)] = now;
  }

  // The result on a strided view has its own strides; later reads take the view of the new base,
  // which has the strides the export saw.
  void forget_odd_strides(ValueId self, const std::vector<ValueId>& path, int64_t now) {
    ValueId id = self;
    for (ValueId parent : path) {
      if (meta(current_[at(id)]).strides != meta(id).strides) version_[at(id)] = now - 1;
      id = parent;
    }
  }

  ValueId computed(Node node, const Node& original, ValueId self) {
    node.op = functional_of(original.op);
    for (NamedArgument& argument : node.arguments) {
      if (argument.name == "self" && node.op.find("dropout") != std::string::npos) {
        argument.name = "input";
      }
    }
    TensorMeta out = meta(self);
    out.strides = dense_strides(out);
    out.storage_offset = 0;
    if (node.outputs.empty() || node.outputs[0] == kNone) {
      node.outputs = {fresh(graph_.value(self).name + "_", out)};
    } else {
      graph_.values[at(node.outputs[0])].meta = out;
    }
    const ValueId made = node.outputs[0];
    out_.push_back(std::move(node));
    return made;
  }

  // copy_ makes self equal its source, broadcast and cast; without either the source itself.
  ValueId copied(const Node& original, ValueId self) {
    const ValueId source = std::get<ValueArg>(*original.find("src")).id;
    ValueId content = read(source);
    const std::string name = graph_.value(self).name + "_copy";
    TensorMeta out = meta(self);
    out.strides = dense_strides(out);
    out.storage_offset = 0;
    if (meta(content).dtype != out.dtype) {
      TensorMeta cast = meta(content);
      cast.dtype = out.dtype;
      cast.strides = dense_strides(cast);
      cast.storage_offset = 0;
      content = make("aten::to.dtype",
                     {{"self", ValueArg{content}}, {"dtype", DTypeArg{out.dtype}}}, name, cast);
    }
    if (meta(content).sizes != out.sizes) {
      IntListArg sizes;
      TensorMeta wide = meta(content);
      const size_t rank = out.sizes.size(), missing = rank - std::min(rank, wide.sizes.size());
      std::vector<int64_t> strides(rank, 0);
      for (size_t i = 0; i < rank; ++i) {
        sizes.items.push_back({out.sizes[i], kNone});
        if (i >= missing && wide.sizes[i - missing] == out.sizes[i]) {
          strides[i] = wide.strides[i - missing];
        }
      }
      wide.sizes = out.sizes;
      wide.strides = strides;
      content = make("aten::expand", {{"self", ValueArg{content}}, {"size", std::move(sizes)}},
                     name, wide);
    }
    // A source kept in place may change later; other strides would show in later views.
    const bool shared = known(source) && unsafe_[at(source)] != kNone;
    if (shared || meta(content).strides != out.strides) {
      std::vector<NamedArgument> arguments{{"self", ValueArg{content}}};
      if (is_contiguous(out)) {
        arguments.push_back({"memory_format", MemoryFormatArg{"contiguous_format"}});
      }
      content = make("aten::clone", std::move(arguments), name, out);
    }
    return content;
  }

  // The parent's new content, given the child's new content and the parent's old one.
  ValueId written_back(const Alias& step, ValueId child, ValueId before, ValueId parent) {
    const std::string name = graph_.value(parent).name;
    TensorMeta out = meta(parent);
    out.strides = dense_strides(out);
    out.storage_offset = 0;
    switch (step.kind) {
      case AliasKind::kReshape: {
        IntListArg sizes;
        for (int64_t size : out.sizes) sizes.items.push_back({size, kNone});
        return make("aten::reshape", {{"self", ValueArg{child}}, {"shape", std::move(sizes)}}, name,
                    out);
      }
      case AliasKind::kUnsqueeze:
        return make("aten::squeeze.dim", {{"self", ValueArg{child}}, {"dim", step.dim0}}, name,
                    out);
      case AliasKind::kSqueeze:
        return make("aten::unsqueeze", {{"self", ValueArg{child}}, {"dim", step.dim0}}, name, out);
      case AliasKind::kPermute: {
        IntListArg inverse;
        inverse.items.resize(step.dims.size());
        for (size_t i = 0; i < step.dims.size(); ++i) {
          inverse.items[static_cast<size_t>(step.dims[i])].literal = static_cast<int64_t>(i);
        }
        return make("aten::permute", {{"self", ValueArg{child}}, {"dims", std::move(inverse)}},
                    name, out);
      }
      case AliasKind::kSelect:
        out = meta(before);
        return make("aten::select_scatter",
                    {{"self", ValueArg{before}},
                     {"src", ValueArg{child}},
                     {"dim", step.dim0},
                     {"index", step.start}},
                    name, out);
      case AliasKind::kSlice:
        out = meta(before);
        return make("aten::slice_scatter",
                    {{"self", ValueArg{before}},
                     {"src", ValueArg{child}},
                     {"dim", step.dim0},
                     {"start", step.start},
                     {"end", step.end},
                     {"step", step.step}},
                    name, out);
      default:
        return child;
    }
  }

  // ---- what follows ---------------------------------------------------------------------------

  void update_buffers() {
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
  void drop_dead_views() {
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

  void group_unsafe() {
    std::map<int32_t, std::vector<size_t>> touching;  // by unsafe set
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      std::vector<ValueId> ids = inputs_of(graph_.nodes[i]);
      for (ValueId id : graph_.nodes[i].outputs) {
        if (id == kNone) continue;
        ids.push_back(id);
        for (ValueId element : graph_.value(id).elements) {
          if (element != kNone) ids.push_back(element);
        }
      }
      for (ValueId id : ids) {
        if (known(id) && unsafe_[at(id)] != kNone) touching[unsafe_[at(id)]].push_back(i);
      }
    }
    std::vector<std::vector<size_t>> groups;
    for (auto& [set, nodes] : touching) groups.push_back(std::move(nodes));
    join_groups(graph_, groups);
  }

 public:
  // Gives the nodes of each list one atomic group; lists (and groups before) that share a node are
  // one.
  static void join_groups(Graph& graph, const std::vector<std::vector<size_t>>& lists) {
    Sets sets(graph.nodes.size());
    std::map<int32_t, size_t> old;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const int32_t group = graph.nodes[i].atomic_group;
      if (group != kNone) sets.join(i, old.emplace(group, i).first->second);
    }
    std::vector<bool> grouped(graph.nodes.size(), false);
    for (const auto& list : lists) {
      for (size_t i : list) {
        sets.join(i, list.front());
        grouped[i] = true;
      }
    }
    std::map<size_t, int32_t> number;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      if (!grouped[i] && graph.nodes[i].atomic_group == kNone) continue;
      const auto next = static_cast<int32_t>(number.size());
      graph.nodes[i].atomic_group = number.emplace(sets.find(i), next).first->second;
    }
  }

 private:
  Graph& graph_;
  NodeId next_id_;
  AliasMap map_;
  std::vector<bool> gradient_;         // by root
  std::vector<int32_t> unsafe_;        // by value: its unprovable set, or kNone
  std::vector<ValueId> current_;       // by value: what stands for it now
  std::vector<int64_t> version_;       // by value: root version current_ belongs to
  std::vector<int64_t> root_version_;  // by root: writes so far
  const std::vector<Node>* originals_ = nullptr;
  std::vector<Node> out_;
  std::set<NodeId> made_;  // views: nodes that may go when nobody reads them
};

}  // namespace

bool is_in_place(std::string_view op) {
  const std::string_view base = split_overload(op).first;
  if (is_augmented(base)) return true;
  return base.starts_with("aten::") && base.ends_with("_") && !base.ends_with("__");
}

Status make_functional(Graph& graph, NodeId next_id) {
  return Rewriter(graph, next_id).run();
}

void group_written_buffers(Graph& graph) {
  const auto index_of = [&] {
    std::map<ValueId, std::vector<size_t>> readers;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for (ValueId id : inputs_of(graph.nodes[i])) readers[id].push_back(i);
    }
    return readers;
  }();
  std::vector<std::vector<size_t>> lists;
  for (const Node& node : graph.nodes) {
    const OpInfo* info = find_op(node.op);
    if (info == nullptr) continue;
    for (std::string_view name : info->writes_buffers) {
      const Argument* argument = node.find(name);
      const auto* value = argument == nullptr ? nullptr : std::get_if<ValueArg>(argument);
      if (value == nullptr) continue;
      const auto readers = index_of.find(value->id);
      if (readers != index_of.end()) lists.push_back(readers->second);
    }
  }
  std::map<ValueId, size_t> producer;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId id : graph.nodes[i].outputs) {
      if (id != kNone) producer[id] = i;
    }
  }
  for (const BufferUpdate& update : graph.buffer_updates) {
    const Leaf* leaf = nullptr;
    for (const Leaf& l : graph.leaves) {
      if (l.target == update.target && l.kind != LeafKind::kUserInput) leaf = &l;
    }
    if (leaf == nullptr) continue;
    std::vector<size_t> list;
    if (const auto readers = index_of.find(leaf->value); readers != index_of.end()) {
      list = readers->second;
    }
    if (const auto made = producer.find(update.value); made != producer.end()) {
      list.push_back(made->second);
    }
    lists.push_back(std::move(list));
  }
  for (auto& list : lists) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  std::erase_if(lists, [](const auto& list) { return list.size() < 2; });
  Rewriter::join_groups(graph, lists);
}

}  // namespace weft::opdag
