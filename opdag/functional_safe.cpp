// Which in-place operators can be proven, and which sets of aliases cannot.
#include <set>

#include "opdag/derive.h"
#include "opdag/functional.h"
#include "opdag/functional_names.h"
#include "opdag/functional_rewrite.h"

namespace weft::opdag {
namespace {

// Whether the functional form gives a tensor of self's own dtype.
bool keeps_dtype(const Graph& graph, const Node& node, const TensorMeta& self) {
  if (gives_boolean(node.op)) return true;  // is cast back
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

}  // namespace

bool is_contiguous(const TensorMeta& meta) {
  const std::vector<int64_t> strides = contiguous_strides(meta.sizes);
  for (size_t i = 0; i < strides.size(); ++i) {
    if (meta.sizes[i] > 1 && meta.strides[i] != strides[i]) return false;
  }
  return true;
}

// By root: a gradient may flow through some alias of it.
void Rewriter::find_gradients() {
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

bool Rewriter::can_write_through(ValueId id) const {
  for (; alias(id).kind != AliasKind::kRoot; id = alias(id).parent) {
    const Alias& step = alias(id);
    if (step.kind == AliasKind::kOpaque) return false;
    if (step.kind == AliasKind::kDetach && gradient_[at(root(id))]) return false;
    if (step.kind == AliasKind::kReshape && !is_contiguous(meta(step.parent))) return false;
  }
  return true;
}

bool Rewriter::provable(const Node& node) const {
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

void Rewriter::find_unsafe() {
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

}  // namespace weft::opdag
