#include "executor/check_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/rng.h"
#include "executor/convert.h"

namespace weft::executor {
namespace {

using opdag::ValueId;

const opdag::TensorMeta* tensor_argument(const opdag::Graph& graph, const opdag::Node& node,
                                         std::string_view name) {
  const opdag::Argument* argument = node.find(name);
  const auto* value = argument == nullptr ? nullptr : std::get_if<opdag::ValueArg>(argument);
  return value == nullptr ? nullptr : &graph.value(value->id).meta;
}

bool reads(const opdag::Node& node, std::string_view name, ValueId value) {
  const opdag::Argument* argument = node.find(name);
  if (argument == nullptr) return false;
  if (const auto* one = std::get_if<opdag::ValueArg>(argument)) return one->id == value;
  return false;
}

int64_t dimension(const opdag::TensorMeta* meta, int64_t dim) {
  if (meta == nullptr || meta->sizes.empty()) return 0;
  if (dim < 0) dim += static_cast<int64_t>(meta->sizes.size());
  if (dim < 0 || dim >= static_cast<int64_t>(meta->sizes.size())) return 0;
  return meta->sizes[static_cast<size_t>(dim)];
}

int64_t integer_argument(const opdag::Node& node, std::string_view name, int64_t otherwise) {
  const opdag::Argument* argument = node.find(name);
  const auto* number = argument == nullptr ? nullptr : std::get_if<int64_t>(argument);
  return number == nullptr ? otherwise : *number;
}

// How many values an index may take at this node; 0: it is not an index here.
int64_t bound_at(const opdag::Graph& graph, const opdag::Node& node, ValueId value) {
  if (node.op == "aten::embedding" && reads(node, "indices", value)) {
    return dimension(tensor_argument(graph, node, "weight"), 0);
  }
  const bool loss =
      node.op.starts_with("aten::cross_entropy_loss") || node.op.starts_with("aten::nll_loss");
  if (loss && reads(node, "target", value)) {
    const auto* logits = tensor_argument(graph, node, "self");
    return logits != nullptr && logits->sizes.size() == 1 ? dimension(logits, 0)
                                                          : dimension(logits, 1);
  }
  const bool indexed = node.op == "aten::gather" || node.op == "aten::index_select" ||
                       node.op.starts_with("aten::scatter") || node.op == "aten::index_add";
  if (indexed && reads(node, "index", value)) {
    return dimension(tensor_argument(graph, node, "self"), integer_argument(node, "dim", 0));
  }
  if (node.op == "aten::one_hot" && reads(node, "self", value)) {
    return std::max<int64_t>(integer_argument(node, "num_classes", 0), 0);
  }
  return 0;
}

// Operators whose integer output holds values of its integer input.
bool keeps_values(const opdag::Graph& graph, const opdag::Node& node, ValueId out) {
  static const std::set<std::string_view> kNames{"aten::view",
                                                 "aten::reshape",
                                                 "aten::slice",
                                                 "aten::slice.Tensor",
                                                 "aten::select",
                                                 "aten::select.int",
                                                 "aten::contiguous",
                                                 "aten::clone",
                                                 "aten::to",
                                                 "aten::to.dtype",
                                                 "aten::to.device",
                                                 "aten::_to_copy",
                                                 "aten::expand",
                                                 "aten::flatten",
                                                 "aten::flatten.using_ints",
                                                 "aten::unsqueeze",
                                                 "aten::squeeze",
                                                 "aten::squeeze.dim",
                                                 "aten::permute",
                                                 "aten::transpose",
                                                 "aten::transpose.int",
                                                 "aten::pad",
                                                 "aten::constant_pad_nd",
                                                 "aten::alias",
                                                 "aten::detach",
                                                 "aten::roll",
                                                 "aten::narrow",
                                                 "aten::cat",
                                                 "aten::split",
                                                 "aten::split.Tensor",
                                                 "aten::chunk",
                                                 "aten::where.self"};
  return kNames.contains(node.op) && !dtype_can_have_gradient(graph.value(out).meta.dtype);
}

}  // namespace

Result<at::Tensor> FixedFeed::input(const std::string& name, Split /*split*/, int64_t /*step*/,
                                    int32_t /*micro_batch*/) {
  const auto found = inputs_.find(name);
  if (found == inputs_.end()) {
    return make_error(Code::kNotFound, fmt::format("no input `{}`", name));
  }
  return found->second;
}

Result<at::Tensor> tensor_of(const job::TensorView& view) {
  try {
    at::Tensor tensor = at::empty(view.sizes, to_scalar_type(view.dtype));
    if (tensor.nbytes() != view.bytes.size()) {
      return make_error(Code::kCorrupt, "a tensor's bytes do not fit its shape");
    }
    if (tensor.nbytes() > 0) std::memcpy(tensor.data_ptr(), view.bytes.data(), view.bytes.size());
    return tensor;
  } catch (const std::exception& error) {
    return make_error(Code::kInvalid, exception_text(error));
  }
}

Result<job::TensorView> view_of(const at::Tensor& tensor) {
  WEFT_TRY(const DType dtype, from_scalar_type(tensor.scalar_type()));
  auto owner = std::make_shared<at::Tensor>(tensor.detach().to(at::kCPU).contiguous());
  job::TensorView view;
  view.dtype = dtype;
  view.sizes = owner->sizes().vec();
  view.bytes = Buffer(owner, owner->const_data_ptr(), owner->nbytes());
  return view;
}

Result<std::map<std::string, at::Tensor>> inputs_from_file(const opdag::Graph& graph,
                                                           const std::string& path) {
  WEFT_TRY(const job::Safetensors file, job::read_safetensors(path));
  std::map<std::string, at::Tensor> result;
  for (const opdag::Leaf& leaf : graph.leaves) {
    if (leaf.kind != opdag::LeafKind::kUserInput) continue;
    const auto found = file.tensors.find(leaf.target);
    if (found == file.tensors.end()) {
      return make_error(
          Code::kNotFound,
          fmt::format("{} has no tensor for the model's input `{}`", path, leaf.target),
          "name the tensors as in the export's signature");
    }
    const opdag::TensorMeta& meta = graph.value(leaf.value).meta;
    if (found->second.sizes != meta.sizes) {
      return make_error(
          Code::kInvalid,
          fmt::format("input `{}` has shape [{}], the model wants [{}]", leaf.target,
                      fmt::join(found->second.sizes, ", "), fmt::join(meta.sizes, ", ")));
    }
    WEFT_TRY(result[leaf.target], tensor_of(found->second));
  }
  return result;
}

int64_t integer_bound(const opdag::Graph& graph, ValueId input) {
  std::set<ValueId> seen{input};
  std::vector<ValueId> open{input};
  int64_t bound = 0;
  while (!open.empty()) {
    const ValueId value = open.back();
    open.pop_back();
    for (opdag::NodeId id : graph.value(value).consumers) {
      const opdag::Node& node = graph.nodes[static_cast<size_t>(graph.node_index(id))];
      if (const int64_t here = bound_at(graph, node, value); here > 0) {
        bound = bound == 0 ? here : std::min(bound, here);
      }
      for (ValueId out : node.outputs) {
        if (out == opdag::kNone || !keeps_values(graph, node, out)) continue;
        if (seen.insert(out).second) open.push_back(out);
        for (ValueId part : graph.value(out).elements) {
          if (seen.insert(part).second) open.push_back(part);
        }
      }
    }
  }
  return bound == 0 ? 2 : bound;
}

Result<std::map<std::string, at::Tensor>> random_inputs(const opdag::Graph& graph, uint64_t seed) {
  try {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
    generator.set_current_seed(mix64(seed));
    std::map<std::string, at::Tensor> result;
    for (const opdag::Leaf& leaf : graph.leaves) {
      if (leaf.kind != opdag::LeafKind::kUserInput) continue;
      const opdag::TensorMeta& meta = graph.value(leaf.value).meta;
      const auto type = to_scalar_type(meta.dtype);
      at::Tensor tensor;
      if (dtype_can_have_gradient(meta.dtype)) {
        tensor = at::randn(meta.sizes, generator, at::kDouble).to(at::kFloat).to(type);
      } else if (meta.dtype == DType::kBool) {
        tensor = at::ones(meta.sizes, at::kBool);  // masks: everything counts
      } else {
        tensor = at::randint(integer_bound(graph, leaf.value), meta.sizes, generator, at::kLong)
                     .to(type);
      }
      result[leaf.target] = std::move(tensor);
    }
    return result;
  } catch (const std::exception& error) {
    return make_error(Code::kInternal, fmt::format("random inputs: {}", exception_text(error)));
  }
}

}  // namespace weft::executor
