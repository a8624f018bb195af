#include "opdag/graph.h"

#include <algorithm>

namespace weft::opdag {

int64_t meta_bytes(const TensorMeta& meta) {
  const auto count = element_count(meta.sizes);
  return count ? *count * static_cast<int64_t>(dtype_bytes(meta.dtype)) : 0;
}

const Argument* Node::find(std::string_view name) const {
  for (const NamedArgument& argument : arguments) {
    if (argument.name == name) return &argument.value;
  }
  return nullptr;
}

std::vector<ValueId> outputs_of(const Graph& graph, const Node& node) {
  std::vector<ValueId> ids;
  for (const ValueId id : node.outputs) {
    if (id == kNone) continue;
    ids.push_back(id);
    for (const ValueId part : graph.value(id).elements) {
      if (part != kNone) ids.push_back(part);
    }
  }
  return ids;
}

std::vector<ValueId> inputs_of(const Node& node) {
  std::vector<ValueId> ids;
  for (const NamedArgument& argument : node.arguments) {
    if (const auto* one = std::get_if<ValueArg>(&argument.value)) {
      ids.push_back(one->id);
    } else if (const auto* list = std::get_if<ValueListArg>(&argument.value)) {
      for (ValueId id : list->ids) {
        if (id != kNone) ids.push_back(id);
      }
    } else if (const auto* ints = std::get_if<IntListArg>(&argument.value)) {
      for (const IntOrValue& item : ints->items) {
        if (item.id != kNone) ids.push_back(item.id);
      }
    }
  }
  return ids;
}

const Leaf* Graph::leaf_of(ValueId id) const {
  for (const Leaf& leaf : leaves) {
    if (leaf.value == id) return &leaf;
  }
  return nullptr;
}

const Leaf* Graph::find_leaf(std::string_view target) const {
  for (const Leaf& leaf : leaves) {
    if (leaf.target == target) return &leaf;
  }
  return nullptr;
}

int32_t Graph::node_index(NodeId id) const {
  if (id < 0) return kNone;
  const auto position = static_cast<size_t>(id);
  if (position < index_of_node.size()) {
    const int32_t index = index_of_node[position];
    if (index >= 0 && static_cast<size_t>(index) < nodes.size() &&
        nodes[static_cast<size_t>(index)].id == id) {
      return index;
    }
  }
  for (size_t i = 0; i < nodes.size(); ++i) {  // not validated yet
    if (nodes[i].id == id) return static_cast<int32_t>(i);
  }
  return kNone;
}

std::optional<int64_t> strided_extent(const std::vector<int64_t>& sizes,
                                      const std::vector<int64_t>& strides) {
  if (sizes.size() != strides.size() || !element_count(sizes)) return std::nullopt;
  int64_t extent = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    int64_t step = 0;
    if (strides[i] < 0 || __builtin_mul_overflow(sizes[i] - 1, strides[i], &step) ||
        __builtin_add_overflow(extent, step, &extent)) {
      return std::nullopt;
    }
  }
  return extent;
}

}  // namespace weft::opdag
