#include "opdag/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>

namespace weft::opdag {
namespace {

using Out = std::back_insert_iterator<std::string>;

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

// Operator and argument names stand bare unless they hold odd characters.
std::string bare(std::string_view name) {
  const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == ':' || c == '.';
  });
  return plain ? std::string(name) : quoted(name);
}

std::string id_text(ValueId id) {
  return id == kNone ? "_" : fmt::format("%{}", id);
}

// Shortest form that reads back to the same bits, and never like an integer.
std::string number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == text.npos) text += ".0";
  return text;
}

template <typename List, typename Format>
std::string list_text(std::string_view open, const List& items, Format format) {
  std::string out(open);
  bool first = true;
  for (const auto& item : items) {
    if (!first) out += ", ";
    first = false;
    out += format(item);
  }
  return out + "]";
}

std::string sizes_text(const std::vector<int64_t>& sizes) {
  return list_text("[", sizes, [](int64_t size) { return std::to_string(size); });
}

struct ArgumentText {
  std::string operator()(const NoneArg&) const { return "none"; }
  std::string operator()(const ValueArg& arg) const { return id_text(arg.id); }
  std::string operator()(const ValueListArg& arg) const {
    return list_text("tensors[", arg.ids, id_text);
  }
  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return number(value); }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(const DTypeArg& arg) const {
    return fmt::format("dtype:{}", dtype_name(arg.dtype));
  }
  std::string operator()(const DeviceArg& arg) const { return "device:" + quoted(arg.device); }
  std::string operator()(const LayoutArg& arg) const { return "layout:" + quoted(arg.layout); }
  std::string operator()(const MemoryFormatArg& arg) const {
    return "format:" + quoted(arg.format);
  }
  std::string operator()(const IntListArg& arg) const {
    return list_text("[", arg.items, [](const IntOrValue& item) {
      return item.id == kNone ? std::to_string(item.literal) : id_text(item.id);
    });
  }
  std::string operator()(const FloatListArg& arg) const {
    return list_text("floats[", arg.items, number);
  }
  std::string operator()(const BoolListArg& arg) const {
    return list_text("bools[", arg.items, [](bool item) { return item ? "true" : "false"; });
  }
  std::string operator()(const ComplexArg& arg) const {
    return fmt::format("complex({}, {})", number(arg.real), number(arg.imag));
  }
};

constexpr const char* kValueKinds[] = {"tensor", "list", "int", "float", "bool"};
constexpr const char* kLeafKinds[] = {"parameter", "buffer", "constant", "input"};

void write_value(const Value& value, Out out) {
  const TensorMeta& meta = value.meta;
  fmt::format_to(out, "value {} {} {} {} {} strides={} offset={} device={}", id_text(value.id),
                 quoted(value.name), kValueKinds[static_cast<size_t>(value.kind)],
                 dtype_name(meta.dtype), sizes_text(meta.sizes), sizes_text(meta.strides),
                 meta.storage_offset, quoted(meta.device));
  if (!value.elements.empty()) {
    fmt::format_to(out, " elements={}", list_text("[", value.elements, id_text));
  }
  fmt::format_to(out, "\n");
}

void write_leaf(const Leaf& leaf, Out out) {
  fmt::format_to(out, "leaf {} {} {}", kLeafKinds[static_cast<size_t>(leaf.kind)],
                 id_text(leaf.value), quoted(leaf.target));
  fmt::format_to(out, " persistent={} trainable={}", leaf.persistent, leaf.trainable);
  if (leaf.tied_group != kNone) fmt::format_to(out, " tied={}", leaf.tied_group);
  const WeightRef& ref = leaf.weight;
  if (!(ref == WeightRef{})) {
    fmt::format_to(out, " file={} bytes={} {} {} strides={} offset={}", quoted(ref.path), ref.bytes,
                   dtype_name(ref.stored_dtype), sizes_text(ref.sizes), sizes_text(ref.strides),
                   ref.storage_offset);
  }
  fmt::format_to(out, "\n");
}

void write_node(const Graph& graph, const Node& node, Out out) {
  fmt::format_to(out, "node {}", node.id);
  if (node.atomic_group != kNone) fmt::format_to(out, " group={}", node.atomic_group);
  std::string results, shapes;
  for (ValueId id : node.outputs) {
    results += (results.empty() ? "" : ", ") + id_text(id);
    if (id == kNone) continue;
    const Value& value = graph.value(id);
    shapes += fmt::format("  # {} {}{}", quoted(value.name), dtype_name(value.meta.dtype),
                          sizes_text(value.meta.sizes));
  }
  fmt::format_to(out, " {} = {}(", results.empty() ? "()" : results, bare(node.op));
  bool first = true;
  for (const NamedArgument& argument : node.arguments) {
    fmt::format_to(out, "{}{}={}", first ? "" : ", ", bare(argument.name),
                   std::visit(ArgumentText{}, argument.value));
    first = false;
  }
  fmt::format_to(out, "){}\n", shapes);
}

}  // namespace

std::string to_text(const Graph& graph) {
  std::string text;
  Out out(text);
  fmt::format_to(out, "weft-graph 1\nmode {}\n", graph.train_mode ? "train" : "eval");
  for (const std::string& warning : graph.warnings) {
    fmt::format_to(out, "warning {}\n", quoted(warning));
  }
  for (const Value& value : graph.values) write_value(value, out);
  for (const Leaf& leaf : graph.leaves) write_leaf(leaf, out);
  for (const Node& node : graph.nodes) write_node(graph, node, out);
  for (const Output& output : graph.outputs) {
    fmt::format_to(out, "output {} {}\n", quoted(output.name), id_text(output.value));
  }
  for (const BufferUpdate& update : graph.buffer_updates) {
    fmt::format_to(out, "update {} {}\n", quoted(update.target), id_text(update.value));
  }
  if (graph.loss_output != kNone) fmt::format_to(out, "loss {}\n", graph.loss_output);
  return text;
}

}  // namespace weft::opdag
