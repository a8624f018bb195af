// The nodes that stand for one in-place write: the new content of what it writes to, then of the
// base it is a view of and of all between.
#include <algorithm>

#include "opdag/functional_names.h"
#include "opdag/functional_rewrite.h"

namespace weft::opdag {

ValueId Rewriter::fresh(const std::string& name, TensorMeta meta) {
  Value value;
  value.id = static_cast<ValueId>(graph_.values.size());
  value.name = name.substr(0, kMaxNameBytes);
  value.meta = std::move(meta);
  graph_.values.push_back(std::move(value));
  return graph_.values.back().id;
}

ValueId Rewriter::make(std::string op, std::vector<NamedArgument> arguments,
                       const std::string& name, TensorMeta meta) {
  Node node;
  node.id = next_id_++;
  node.op = std::move(op);
  node.arguments = std::move(arguments);
  node.outputs = {fresh(name, std::move(meta))};
  made_.insert(node.id);
  out_.push_back(std::move(node));
  return out_.back().outputs[0];
}

// An in-place node on `self`: computes the new content of self, then of its base and all between.
void Rewriter::write(const Node& original, Node node, ValueId self) {
  std::vector<ValueId> path;  // self's ancestors, with their content before the write
  for (ValueId id = self; alias(id).kind != AliasKind::kRoot; id = alias(id).parent) {
    path.push_back(alias(id).parent);
  }
  std::vector<ValueId> before;
  for (ValueId id : path) before.push_back(read(id));
  ValueId content =
      node.op == "aten::copy_" ? copied(original, self) : computed(std::move(node), original, self);
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

void Rewriter::assign(ValueId id, ValueId content, int64_t now) {
  current_[at(id)] = content;
  version_[at(id)] = now;
}

// The result on a strided view has its own strides; later reads take the view of the new base,
// which has the strides the export saw.
void Rewriter::forget_odd_strides(ValueId self, const std::vector<ValueId>& path, int64_t now) {
  ValueId id = self;
  for (ValueId parent : path) {
    if (meta(current_[at(id)]).strides != meta(id).strides) version_[at(id)] = now - 1;
    id = parent;
  }
}

ValueId Rewriter::computed(Node node, const Node& original, ValueId self) {
  node.op = functional_of(original.op);
  for (NamedArgument& argument : node.arguments) {
    if (argument.name == "self" && node.op.find("dropout") != std::string::npos) {
      argument.name = "input";
    }
  }
  // The default of the in-place form alone.
  if (node.op == "aten::bernoulli.p" && node.find("p") == nullptr) {
    node.arguments.push_back({"p", 0.5});
  }
  // No gradient reaches what is overwritten, and these functional forms have no rule of that.
  if (node.op == "aten::bernoulli.p" ||
      (node.op == "aten::zero" && dtype_is_complex(meta(self).dtype))) {
    auto& input = std::get<ValueArg>(node.arguments.front().value);
    input.id = make("aten::detach", {{"self", input}}, graph_.value(self).name, meta(input.id));
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
  if (!gives_boolean(original.op) || out.dtype == DType::kBool) {
    out_.push_back(std::move(node));
    return made;
  }
  graph_.values[at(made)].meta.dtype = DType::kBool;
  out_.push_back(std::move(node));
  return make("aten::to.dtype", {{"self", ValueArg{made}}, {"dtype", DTypeArg{out.dtype}}},
              graph_.value(self).name + "_cast", out);
}

// copy_ makes self equal its source, broadcast and cast; without either the source itself.
ValueId Rewriter::copied(const Node& original, ValueId self) {
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
    content = make("aten::to.dtype", {{"self", ValueArg{content}}, {"dtype", DTypeArg{out.dtype}}},
                   name, cast);
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
    content =
        make("aten::expand", {{"self", ValueArg{content}}, {"size", std::move(sizes)}}, name, wide);
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
ValueId Rewriter::written_back(const Alias& step, ValueId child, ValueId before, ValueId parent) {
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
      return make("aten::squeeze.dim", {{"self", ValueArg{child}}, {"dim", step.dim0}}, name, out);
    case AliasKind::kSqueeze:
      return make("aten::unsqueeze", {{"self", ValueArg{child}}, {"dim", step.dim0}}, name, out);
    case AliasKind::kPermute: {
      IntListArg inverse;
      inverse.items.resize(step.dims.size());
      for (size_t i = 0; i < step.dims.size(); ++i) {
        inverse.items[static_cast<size_t>(step.dims[i])].literal = static_cast<int64_t>(i);
      }
      return make("aten::permute", {{"self", ValueArg{child}}, {"dims", std::move(inverse)}}, name,
                  out);
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

}  // namespace weft::opdag
