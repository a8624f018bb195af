// Nodes and their results.
#include <fmt/format.h>

#include <algorithm>

#include "opdag/functional.h"
#include "opdag/import_reader.h"
#include "opdag/op_table.h"

namespace weft::opdag {
namespace {

// Asserts and shape hints of the exporter: they compute nothing.
bool is_dropped(std::string_view op) {
  static constexpr std::string_view kDropped[] = {
      "aten::_assert_tensor_metadata", "aten::_assert_scalar",
      "aten::_assert_async",           "aten::_assert_async.msg",
      "aten::sym_constrain_range",     "aten::sym_constrain_range_for_size"};
  return std::find(std::begin(kDropped), std::end(kDropped), op) != std::end(kDropped);
}

// Uninitialised memory would show a stranger's graph what lay there before; such operators become
// the zeroing ones of the same arguments (but memory_format, which zeros does not take).
std::string initialised(std::string op) {
  if (op == "aten::empty.memory_format") return "aten::zeros";
  if (op == "aten::empty_like") return "aten::zeros_like";
  if (op == "aten::new_empty") return "aten::new_zeros";
  return op;
}

// In-place forms without a row of their own: make_functional turns them into operators that have
// one, or refuses them.
bool rewritten_later(std::string_view op) {
  return is_in_place(op);
}

}  // namespace

Status Importer::read_nodes(const Json& nodes) {
  if (nodes.size() > kMaxNodes) {
    return make_error(Code::kTooLarge, fmt::format("the graph has {} nodes, at most {} are read",
                                                   nodes.size(), kMaxNodes));
  }
  next_id_ = static_cast<NodeId>(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    WEFT_TRY_STATUS(read_node(nodes[i], static_cast<NodeId>(i)));
  }
  return {};
}

Status Importer::read_node(const Json& json, NodeId id) {
  Node node;
  node.id = id;
  node.op = initialised(std::string(native_of(read_target(json.at("target").get<std::string>()))));
  if (is_dropped(node.op)) return {};
  if (const auto region = region_of(json, node.op)) return inline_region(json, *region);
  if (find_op(node.op) == nullptr && !options_.keep_refused && !rewritten_later(node.op)) {
    return refused_op(node);
  }
  for (const Json& input : json.at("inputs")) {
    WEFT_TRY_STATUS(read_argument(node, input));
  }
  if (node.op == "aten::zeros") {
    std::erase_if(node.arguments,
                  [](const NamedArgument& argument) { return argument.name == "memory_format"; });
  }
  const Json& outputs = json.at("outputs");
  for (const Json& output : outputs) {
    WEFT_TRY_STATUS(read_output(node, output));
  }
  graph_.nodes.push_back(std::move(node));
  return {};
}

Status Importer::read_output(Node& node, const Json& output) {
  const auto [kind, body] = union_member(output);
  if (kind == "as_none") {
    node.outputs.push_back(kNone);
  } else if (kind == "as_tensor") {
    const auto name = body->at("name").get<std::string>();
    WEFT_TRY(const ValueId id, define(name, what(node, name)));
    node.outputs.push_back(id);
  } else if (kind == "as_tensors") {
    Value list;
    for (const Json& item : *body) {
      const auto name = item.at("name").get<std::string>();
      WEFT_TRY(const ValueId id, define(name, what(node, name)));
      list.elements.push_back(id);
    }
    list.id = static_cast<ValueId>(graph_.values.size());
    list.name = fmt::format("{}list_{}_{}", prefix_, node.id, node.outputs.size());
    list.kind = ValueKind::kTensorList;
    WEFT_TRY(const ValueId id, add(std::move(list)));
    node.outputs.push_back(id);
  } else if (options_.keep_refused && kind.starts_with("as_sym_") && !body->empty()) {
    Value number;
    number.id = static_cast<ValueId>(graph_.values.size());
    number.name = body->begin()->is_string() ? body->begin()->get<std::string>()
                                             : fmt::format("number_{}", number.id);
    number.name.insert(0, prefix_);
    number.kind = kind == "as_sym_int"     ? ValueKind::kInt
                  : kind == "as_sym_float" ? ValueKind::kFloat
                                           : ValueKind::kBool;
    WEFT_TRY(const ValueId id, add(std::move(number)));
    node.outputs.push_back(id);
  } else if (kind.starts_with("as_sym_")) {
    return dynamic_shape(fmt::format("a number that node {} ({}) computes", node.id, node.op),
                         body->dump());
  } else {
    return unsupported(node, fmt::format("a result of kind '{}' is not supported", kind));
  }
  return {};
}

std::string Importer::what(const Node& node, const std::string& name) {
  return fmt::format("value '{}' of node {} ({})", name, node.id, node.op);
}

}  // namespace weft::opdag
