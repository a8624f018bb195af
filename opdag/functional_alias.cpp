#include "opdag/functional_alias.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "opdag/functional.h"
#include "opdag/op_table.h"

namespace weft::opdag {
namespace {

using Names = std::set<std::string_view>;

const Names kIdentity = {"aten::alias", "aten::lift_fresh", "aten::positive"};
const Names kReshape = {"aten::view",          "aten::_unsafe_view", "aten::reshape",
                        "aten::reshape_as",    "aten::view_as",      "aten::flatten.using_ints",
                        "aten::unflatten.int", "aten::ravel",        "aten::squeeze",
                        "aten::squeeze.dims",  "aten::atleast_1d",   "aten::atleast_2d",
                        "aten::atleast_3d"};
const Names kParts = {
    "aten::split.Tensor", "aten::split.sizes",           "aten::split_with_sizes",
    "aten::chunk",        "aten::unsafe_split.Tensor",   "aten::unsafe_split_with_sizes",
    "aten::unsafe_chunk", "aten::tensor_split.sections", "aten::tensor_split.indices"};
const Names kOpaque = {"aten::expand",       "aten::expand_as",
                       "aten::broadcast_to", "aten::diagonal",
                       "aten::unfold",       "aten::real",
                       "aten::imag",         "aten::view.dtype",
                       "aten::view_as_real", "aten::view_as_complex",
                       "aten::movedim.int",  "aten::movedim.intlist",
                       "aten::moveaxis.int", "aten::moveaxis.intlist",
                       "aten::numpy_T",      "aten::adjoint",
                       "aten::as_strided",   "aten::_reshape_alias"};
const Names kCopies = {"aten::to.dtype", "aten::to.dtype_layout", "aten::to.device",
                       "aten::to.other", "aten::type_as",         "aten::contiguous"};
const Names kDropout = {"aten::dropout", "aten::feature_dropout", "aten::alpha_dropout"};

template <typename T>
std::optional<T> literal(const Node& node, std::string_view name) {
  const Argument* argument = node.find(name);
  const T* value = argument == nullptr ? nullptr : std::get_if<T>(argument);
  return value == nullptr ? std::nullopt : std::optional<T>(*value);
}

// A dimension argument, negative ones resolved; nullopt when it is not a literal in range.
std::optional<int64_t> dimension(const Node& node, std::string_view name, size_t rank,
                                 int64_t fallback) {
  const Argument* argument = node.find(name);
  int64_t dim = fallback;
  if (argument != nullptr && !std::holds_alternative<NoneArg>(*argument)) {
    const auto* given = std::get_if<int64_t>(argument);
    if (given == nullptr) return std::nullopt;
    dim = *given;
  }
  const auto size = static_cast<int64_t>(rank);
  if (dim < 0) dim += size;
  return dim >= 0 && dim < size ? std::optional(dim) : std::nullopt;
}

enum class Answer { kAlias, kNoAlias, kUnknown };

class Analysis {
 public:
  explicit Analysis(const Graph& graph) : graph_(graph) {}

  AliasMap run() {
    const size_t n = graph_.values.size();
    map_.of.resize(n);
    map_.root.resize(n);
    std::iota(map_.root.begin(), map_.root.end(), 0);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) visit(static_cast<int32_t>(i));
    return std::move(map_);
  }

 private:
  const TensorMeta& meta(ValueId id) const { return graph_.value(id).meta; }

  void link(ValueId value, Alias alias) {
    map_.root[static_cast<size_t>(value)] = map_.root[static_cast<size_t>(alias.parent)];
    map_.of[static_cast<size_t>(value)] = std::move(alias);
  }

  void visit(int32_t index) {
    const Node& node = graph_.nodes[static_cast<size_t>(index)];
    if (is_in_place(node.op)) {
      const ValueId self = written_by(node);
      if (self != kNone && !node.outputs.empty() && node.outputs[0] != kNone) {
        link(node.outputs[0], {AliasKind::kIdentity, self, index, "self", 0, 0, 0, 1, {}});
      }
      return;
    }
    const OpInfo* info = find_op(node.op);
    if (node.outputs.empty() || node.outputs[0] == kNone) return;
    if (info == nullptr || !info->view) return;
    for (const NamedArgument& argument : node.arguments) {
      const auto* parent = std::get_if<ValueArg>(&argument.value);
      if (parent == nullptr) continue;
      if (graph_.value(parent->id).kind != ValueKind::kTensor) break;
      if (!view(node, index, parent->id, argument.name)) unknown(node);
      return;
    }
    unknown(node);
  }

  // Any output may share memory with any tensor input.
  void unknown(const Node& node) {
    std::vector<ValueId> touched = inputs_of(node);
    for (ValueId id : outputs_of(graph_, node)) touched.push_back(id);
    for (ValueId id : touched) map_.maybe.emplace_back(touched.front(), id);
  }

  // False: cannot tell.
  bool view(const Node& node, int32_t index, ValueId parent, const std::string& argument) {
    const ValueId out = node.outputs[0];
    Alias alias;
    alias.parent = parent;
    alias.node = index;
    alias.parent_argument = argument;
    if (kParts.contains(node.op) || node.op == "aten::unbind.int") {
      return parts(node, std::move(alias));
    }
    if (graph_.value(out).kind != ValueKind::kTensor) return false;
    if (kCopies.contains(node.op) || kDropout.contains(node.op)) {
      const Answer answer = kDropout.contains(node.op) ? dropout(node) : copy(node, parent, out);
      alias.kind = AliasKind::kIdentity;
      if (answer == Answer::kAlias) link(out, std::move(alias));
      return answer != Answer::kUnknown;
    }
    if (node.op == "aten::rrelu") return true;  // always a copy
    if (kReshape.contains(node.op)) {
      alias.kind = AliasKind::kReshape;
      // Where a view is impossible reshape copies.
      if (can_view(meta(parent), meta(out).sizes)) link(out, std::move(alias));
      return true;
    }
    if (!classify(node, parent, alias)) return false;
    link(out, std::move(alias));
    return true;
  }

  static Answer dropout(const Node& node) {
    const auto train = literal<bool>(node, "train");
    const auto p = literal<double>(node, "p");
    if ((train && !*train) || (p && *p == 0)) return Answer::kAlias;
    return train && p ? Answer::kNoAlias : Answer::kUnknown;
  }

  // Casts return their input when there is nothing to do.
  Answer copy(const Node& node, ValueId in, ValueId out) const {
    if (meta(in).dtype != meta(out).dtype) return Answer::kNoAlias;
    if (literal<bool>(node, "copy").value_or(false)) return Answer::kNoAlias;
    if (meta(in).device != meta(out).device) return Answer::kUnknown;
    return meta(in).strides == meta(out).strides ? Answer::kAlias : Answer::kNoAlias;
  }

  bool parts(const Node& node, Alias base) {
    const std::vector<ValueId>& elements = graph_.value(node.outputs[0]).elements;
    const size_t rank = meta(base.parent).sizes.size();
    const auto dim = dimension(node, "dim", rank, 0);
    if (!dim) return false;
    base.dim0 = *dim;
    int64_t at = 0;
    for (ValueId element : elements) {
      if (element == kNone) return false;
      Alias alias = base;
      alias.start = at;
      if (node.op == "aten::unbind.int") {
        alias.kind = AliasKind::kSelect;
        at += 1;
      } else {
        alias.kind = AliasKind::kSlice;
        at += meta(element).sizes[static_cast<size_t>(*dim)];
        alias.end = at;
      }
      link(element, std::move(alias));
    }
    return true;
  }

  bool classify(const Node& node, ValueId parent, Alias& alias) const {
    const TensorMeta& in = meta(parent);
    const size_t rank = in.sizes.size();
    if (kIdentity.contains(node.op)) {
      alias.kind = AliasKind::kIdentity;
    } else if (node.op == "aten::detach") {
      alias.kind = AliasKind::kDetach;
    } else if (kOpaque.contains(node.op)) {
      alias.kind = AliasKind::kOpaque;
    } else if (node.op == "aten::unsqueeze") {
      const auto dim = dimension(node, "dim", rank + 1, 0);
      alias.kind = AliasKind::kUnsqueeze;
      alias.dim0 = dim.value_or(0);
      return dim.has_value();
    } else if (node.op == "aten::squeeze.dim") {
      const auto dim = dimension(node, "dim", rank, 0);
      if (!dim) return false;
      alias.kind =
          in.sizes[static_cast<size_t>(*dim)] == 1 ? AliasKind::kSqueeze : AliasKind::kIdentity;
      alias.dim0 = *dim;
    } else if (node.op == "aten::select.int") {
      const auto dim = dimension(node, "dim", rank, 0);
      const auto index = literal<int64_t>(node, "index");
      alias.kind = AliasKind::kSelect;
      alias.dim0 = dim.value_or(0);
      alias.start = index.value_or(0);
      return dim && index;
    } else {
      return slice(node, in, alias) || permutation(node, rank, alias);
    }
    return true;
  }

  static bool slice(const Node& node, const TensorMeta& in, Alias& alias) {
    const bool narrow = node.op == "aten::narrow";
    if (!narrow && node.op != "aten::slice.Tensor") return false;
    const auto dim = dimension(node, "dim", in.sizes.size(), 0);
    if (!dim) return false;
    const int64_t size = in.sizes[static_cast<size_t>(*dim)];
    const auto number = [&](std::string_view name, int64_t fallback) -> std::optional<int64_t> {
      const Argument* argument = node.find(name);
      if (argument == nullptr || std::holds_alternative<NoneArg>(*argument)) return fallback;
      const auto* value = std::get_if<int64_t>(argument);
      return value == nullptr ? std::nullopt : std::optional(*value);
    };
    const auto clamp = [&](int64_t at) {
      return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
    };
    const auto start = number("start", 0);
    const auto end = number(narrow ? "length" : "end", size);
    const auto step = narrow ? std::optional<int64_t>(1) : number("step", 1);
    if (!start || !end || !step || *step < 1) return false;
    alias.kind = AliasKind::kSlice;
    alias.dim0 = *dim;
    alias.start = clamp(*start);
    alias.end = narrow ? clamp(alias.start + std::max<int64_t>(*end, 0)) : clamp(*end);
    alias.end = std::max(alias.start, alias.end);
    alias.step = *step;
    return true;
  }

  static bool permutation(const Node& node, size_t rank, Alias& alias) {
    alias.kind = AliasKind::kPermute;
    alias.dims.resize(rank);
    std::iota(alias.dims.begin(), alias.dims.end(), 0);
    if (node.op == "aten::permute") {
      const auto* list = node.find("dims");
      const auto* ints = list == nullptr ? nullptr : std::get_if<IntListArg>(list);
      if (ints == nullptr || ints->items.size() != rank) return false;
      std::vector<bool> seen(rank, false);
      for (size_t i = 0; i < rank; ++i) {
        int64_t dim = ints->items[i].literal;
        if (dim < 0) dim += static_cast<int64_t>(rank);
        if (ints->items[i].id != kNone || dim < 0 || dim >= static_cast<int64_t>(rank) ||
            seen[static_cast<size_t>(dim)]) {
          return false;
        }
        seen[static_cast<size_t>(dim)] = true;
        alias.dims[i] = dim;
      }
      return true;
    }
    const bool axes = node.op == "aten::swapaxes";
    int64_t first = -2, second = -1;
    if (node.op == "aten::transpose.int" || node.op == "aten::swapdims" || axes) {
      const auto a = literal<int64_t>(node, axes ? "axis0" : "dim0");
      const auto b = literal<int64_t>(node, axes ? "axis1" : "dim1");
      if (!a || !b) return false;
      first = *a;
      second = *b;
    } else if (node.op == "aten::t") {
      if (rank > 2) return false;
    } else if (node.op != "aten::mT") {
      return false;
    }
    if (rank < 2) return true;
    const auto size = static_cast<int64_t>(rank);
    if (first < 0) first += size;
    if (second < 0) second += size;
    if (first < 0 || second < 0 || first >= size || second >= size) return false;
    std::swap(alias.dims[static_cast<size_t>(first)], alias.dims[static_cast<size_t>(second)]);
    return true;
  }

  const Graph& graph_;
  AliasMap map_;
};

}  // namespace

AliasMap find_aliases(const Graph& graph) {
  return Analysis(graph).run();
}

ValueId written_by(const Node& node) {
  for (const NamedArgument& argument : node.arguments) {
    if (argument.name != "self" && argument.name != "input") continue;
    const auto* value = std::get_if<ValueArg>(&argument.value);
    return value == nullptr ? kNone : value->id;
  }
  return kNone;
}

std::vector<int64_t> dense_strides(const TensorMeta& meta) {
  std::vector<size_t> order(meta.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return meta.strides[a] > meta.strides[b]; });
  std::vector<int64_t> strides(meta.sizes.size());
  int64_t next = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = next;
    next *= std::max<int64_t>(meta.sizes[order[i]], 1);
  }
  return strides;
}

bool is_dense(const TensorMeta& meta) {
  const std::vector<int64_t> dense = dense_strides(meta);
  for (size_t i = 0; i < dense.size(); ++i) {
    if (meta.sizes[i] > 1 && meta.strides[i] != dense[i]) return false;
  }
  return true;
}

// at::detail::computeStride: the old dimensions fall into runs that lie in memory as one; every
// run must be covered by whole new dimensions.
bool can_view(const TensorMeta& meta, const std::vector<int64_t>& sizes) {
  const auto old_count = element_count(meta.sizes), new_count = element_count(sizes);
  if (!old_count || old_count != new_count) return false;
  if (*old_count == 0) return meta.sizes == sizes;
  if (meta.sizes.empty()) return true;
  auto view = static_cast<int64_t>(sizes.size()) - 1;
  int64_t run_stride = meta.strides.back(), run = 1, viewed = 1;
  for (auto dim = static_cast<int64_t>(meta.sizes.size()) - 1; dim >= 0; --dim) {
    const auto d = static_cast<size_t>(dim);
    run *= meta.sizes[d];
    const bool ends =
        dim == 0 || (meta.sizes[d - 1] != 1 && meta.strides[d - 1] != run * run_stride);
    if (!ends) continue;
    while (view >= 0 && (viewed < run || sizes[static_cast<size_t>(view)] == 1)) {
      viewed *= sizes[static_cast<size_t>(view--)];
    }
    if (viewed != run) return false;
    if (dim > 0) {
      run_stride = meta.strides[d - 1];
      run = viewed = 1;
    }
  }
  return view < 0;
}

}  // namespace weft::opdag
