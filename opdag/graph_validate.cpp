// The rules every graph obeys; see validate() in graph.h.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "opdag/graph.h"
#include "opdag/op_table.h"

namespace weft::opdag {
namespace {

constexpr int64_t kMaxTensorBytes = int64_t{1} << 46;

bool printable(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::none_of(name.begin(), name.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

class Validator {
 public:
  explicit Validator(Graph& graph) : graph_(graph) {}

  Status run() {
    WEFT_TRY_STATUS(counts());
    WEFT_TRY_STATUS(values());
    defined_.assign(graph_.values.size(), 0);
    WEFT_TRY_STATUS(leaves());
    WEFT_TRY_STATUS(nodes());
    WEFT_TRY_STATUS(outputs());
    WEFT_TRY_STATUS(updates());
    return {};
  }

 private:
  static Error bad(std::string message) {
    return make_error(Code::kInvalid, "graph: " + std::move(message));
  }
  static Error bad(const Node& node, std::string message) {
    Error error = make_error(Code::kInvalid,
                             fmt::format("graph: node {} ({}) {}", node.id, node.op, message));
    error.node = std::to_string(node.id);
    error.op = node.op;
    return error;
  }
  bool in_range(ValueId id) const {
    return id >= 0 && static_cast<size_t>(id) < graph_.values.size();
  }
  Value& at(ValueId id) { return graph_.values[static_cast<size_t>(id)]; }

  Status counts() {
    if (graph_.nodes.size() > kMaxNodes || graph_.values.size() > kMaxValues ||
        graph_.leaves.size() > kMaxValues || graph_.outputs.size() > kMaxValues ||
        graph_.warnings.size() > 1000) {
      return make_error(
          Code::kTooLarge,
          fmt::format("graph: {} nodes and {} values; at most {} and {} are accepted",
                      graph_.nodes.size(), graph_.values.size(), kMaxNodes, kMaxValues));
    }
    return {};
  }

  Status shape(const TensorMeta& meta, std::string_view what) {
    if (meta.sizes.size() > kMaxDimensions || meta.sizes.size() != meta.strides.size()) {
      return bad(fmt::format("{} has {} sizes and {} strides", what, meta.sizes.size(),
                             meta.strides.size()));
    }
    const auto count = element_count(meta.sizes);
    const auto extent = strided_extent(meta.sizes, meta.strides);
    const auto width = static_cast<int64_t>(dtype_bytes(meta.dtype));
    if (!count || !extent || meta.storage_offset < 0 || *count > kMaxTensorBytes / width ||
        *extent > kMaxTensorBytes / width || meta.storage_offset > kMaxTensorBytes / width) {
      return bad(fmt::format("{} has an impossible shape, stride or offset", what));
    }
    return {};
  }

  Status values() {
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      Value& value = graph_.values[i];
      if (value.id != static_cast<ValueId>(i)) {
        return bad(fmt::format("value at position {} has id {}", i, value.id));
      }
      if (!printable(value.name)) return bad(fmt::format("value {} has no usable name", i));
      if (value.meta.device.size() > 32) return bad(fmt::format("value {}: device name", i));
      WEFT_TRY_STATUS(shape(value.meta, fmt::format("value {} ({})", i, value.name)));
      if (value.kind != ValueKind::kTensorList && !value.elements.empty()) {
        return bad(fmt::format("value {} ({}) has elements but is no list", i, value.name));
      }
      for (ValueId id : value.elements) {
        if (id != kNone && (!in_range(id) || at(id).kind != ValueKind::kTensor)) {
          return bad(fmt::format("list {} ({}) has the bad element {}", i, value.name, id));
        }
      }
      value.producer = kNone;
      value.producer_output = 0;
      value.consumers.clear();
    }
    return {};
  }

  Status weight(const Leaf& leaf) {
    const WeightRef& ref = leaf.weight;
    if (!printable(ref.path) || ref.path.front() == '/' || ref.path.find('\\') != ref.path.npos ||
        ("/" + ref.path + "/").find("/../") != std::string::npos) {
      return bad(fmt::format("'{}' has the unusable weight path '{}'", leaf.target, ref.path));
    }
    if (ref.sizes != at(leaf.value).meta.sizes) {
      return bad(fmt::format("'{}': the stored weight's shape is not its value's", leaf.target));
    }
    TensorMeta stored;
    stored.dtype = ref.stored_dtype;
    stored.sizes = ref.sizes;
    stored.strides = ref.strides;
    stored.storage_offset = ref.storage_offset;
    WEFT_TRY_STATUS(shape(stored, fmt::format("weight of '{}'", leaf.target)));
    const int64_t extent = *strided_extent(ref.sizes, ref.strides);
    const auto need = static_cast<uint64_t>(extent == 0 ? 0 : extent + ref.storage_offset) *
                      dtype_bytes(ref.stored_dtype);
    if (need > ref.bytes) {
      return make_error(Code::kCorrupt,
                        fmt::format("weight file '{}' has {} bytes, '{}' needs {}", ref.path,
                                    ref.bytes, leaf.target, need),
                        "export the model again");
    }
    return {};
  }

  Status leaves() {
    std::set<std::pair<bool, std::string_view>> names;
    std::vector<std::pair<int32_t, const Leaf*>> tied;
    for (const Leaf& leaf : graph_.leaves) {
      if (!printable(leaf.target)) return bad("a leaf has no usable name");
      if (!in_range(leaf.value) || at(leaf.value).kind != ValueKind::kTensor ||
          defined_[static_cast<size_t>(leaf.value)]) {
        return bad(fmt::format("leaf '{}' has the bad value {}", leaf.target, leaf.value));
      }
      defined_[static_cast<size_t>(leaf.value)] = 1;
      if (!names.emplace(leaf.kind == LeafKind::kUserInput, leaf.target).second) {
        return bad(fmt::format("two leaves are called '{}'", leaf.target));
      }
      if (leaf.kind != LeafKind::kUserInput) WEFT_TRY_STATUS(weight(leaf));
      if (leaf.tied_group == kNone) continue;
      if (leaf.kind != LeafKind::kParameter || leaf.tied_group < 0 ||
          leaf.tied_group >= kMaxValues) {
        return bad(fmt::format("'{}' has the bad tied group {}", leaf.target, leaf.tied_group));
      }
      tied.emplace_back(leaf.tied_group, &leaf);
    }
    std::stable_sort(tied.begin(), tied.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 1; i < tied.size(); ++i) {
      if (tied[i].first == tied[i - 1].first &&
          tied[i].second->weight != tied[i - 1].second->weight) {
        return bad(fmt::format("'{}' and '{}' are tied but have different weights",
                               tied[i - 1].second->target, tied[i].second->target));
      }
    }
    return {};
  }

  Status define(const Node& node, ValueId id, int32_t position) {
    if (!in_range(id) || defined_[static_cast<size_t>(id)]) {
      return bad(node, fmt::format("makes the bad or already defined value {}", id));
    }
    defined_[static_cast<size_t>(id)] = 1;
    at(id).producer = node.id;
    at(id).producer_output = position;
    return {};
  }

  Status node(const Node& node) {
    if (!printable(node.op)) return bad(node, "has no usable operator name");
    if (node.atomic_group < kNone || node.atomic_group >= kMaxNodes) {
      return bad(node, fmt::format("has the bad atomic group {}", node.atomic_group));
    }
    std::unordered_set<std::string_view> names;
    for (const NamedArgument& argument : node.arguments) {
      if (!printable(argument.name) || !names.insert(argument.name).second) {
        return bad(node, fmt::format("has the bad or repeated argument '{}'", argument.name));
      }
      if (const auto* list = std::get_if<ValueListArg>(&argument.value)) {
        for (ValueId id : list->ids) {
          if (id < kNone) return bad(node, fmt::format("reads the bad value {}", id));
        }
      }
    }
    for (ValueId id : inputs_of(node)) {
      if (!in_range(id) || !defined_[static_cast<size_t>(id)]) {
        return bad(node, fmt::format("reads value {}, which nothing before it makes", id));
      }
      auto& consumers = at(id).consumers;
      // Sorted in the end; one node's repeats stand next to each other here.
      if (consumers.empty() || consumers.back() != node.id) consumers.push_back(node.id);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId id = node.outputs[i];
      if (id == kNone) continue;
      WEFT_TRY_STATUS(define(node, id, static_cast<int32_t>(i)));
      for (ValueId element : at(id).elements) {
        if (element != kNone) WEFT_TRY_STATUS(define(node, element, static_cast<int32_t>(i)));
      }
    }
    return {};
  }

  Status nodes() {
    NodeId largest = kNone;
    for (const Node& n : graph_.nodes) largest = std::max(largest, n.id);
    if (largest >= 4 * kMaxNodes) return bad(fmt::format("node id {} is too large", largest));
    graph_.index_of_node.assign(static_cast<size_t>(largest + 1), kNone);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& n = graph_.nodes[i];
      if (n.id < 0) return bad(n, "has a negative id");
      int32_t& slot = graph_.index_of_node[static_cast<size_t>(n.id)];
      if (slot != kNone) return bad(n, "has the id of an earlier node");
      slot = static_cast<int32_t>(i);
      WEFT_TRY_STATUS(node(n));
    }
    for (Value& value : graph_.values) std::sort(value.consumers.begin(), value.consumers.end());
    return {};
  }

  Status outputs() {
    std::unordered_set<std::string_view> names;
    for (const Output& output : graph_.outputs) {
      if (!printable(output.name) || !names.insert(output.name).second) {
        return bad(fmt::format("bad or repeated output name '{}'", output.name));
      }
      if (!in_range(output.value) || !defined_[static_cast<size_t>(output.value)]) {
        return bad(fmt::format("output '{}' is made by nothing", output.name));
      }
    }
    if (graph_.loss_output == kNone) return {};
    if (graph_.loss_output < 0 ||
        static_cast<size_t>(graph_.loss_output) >= graph_.outputs.size()) {
      return bad(fmt::format("loss output {} does not exist", graph_.loss_output));
    }
    const Output& loss = graph_.outputs[static_cast<size_t>(graph_.loss_output)];
    const Value& value = at(loss.value);
    if (value.kind != ValueKind::kTensor || !value.meta.sizes.empty() ||
        !dtype_is_floating(value.meta.dtype)) {
      return bad(fmt::format("the loss '{}' is not a floating scalar", loss.name));
    }
    return {};
  }

  Status updates() {
    std::unordered_set<std::string_view> names;
    std::unordered_map<std::string_view, const Leaf*> written;
    for (const Leaf& leaf : graph_.leaves) {
      if (leaf.kind == LeafKind::kBuffer || leaf.kind == LeafKind::kConstant) {
        written[leaf.target] = &leaf;
      }
    }
    for (const BufferUpdate& update : graph_.buffer_updates) {
      const auto found = written.find(update.target);
      const Leaf* leaf = found == written.end() ? nullptr : found->second;
      if (leaf == nullptr || !names.insert(update.target).second) {
        return bad(fmt::format("bad or repeated buffer update of '{}'", update.target));
      }
      if (!in_range(update.value) || !defined_[static_cast<size_t>(update.value)] ||
          at(update.value).kind != ValueKind::kTensor ||
          at(update.value).meta.sizes != at(leaf->value).meta.sizes ||
          at(update.value).meta.dtype != at(leaf->value).meta.dtype) {
        return bad(fmt::format("the update of '{}' has another shape or dtype", update.target));
      }
    }
    return {};
  }

  Graph& graph_;
  std::vector<uint8_t> defined_;
};

}  // namespace

Status validate_structure(Graph& graph) {
  return Validator(graph).run();
}

Status validate(Graph& graph) {
  WEFT_TRY_STATUS(validate_structure(graph));
  for (const Node& node : graph.nodes) {
    if (find_op(node.op) == nullptr) return refused_op(node);
    WEFT_TRY_STATUS(check_limits(graph, node));
  }
  return {};
}

}  // namespace weft::opdag
