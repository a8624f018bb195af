#include "net/codec/graph_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "net/codec/parse.h"
#include "net/proto/graph.pb.h"

namespace weft::net {
namespace {

using namespace opdag;  // NOLINT: both sides of every line are spelled out with proto::
constexpr uint32_t kVersion = 1;
constexpr uint32_t kDTypes = static_cast<uint32_t>(DType::kUint64) + 1;

// ---- encoding --------------------------------------------------------------------------------

template <typename From, typename Field>
void put_all(const From& from, Field* field) {
  field->Assign(from.begin(), from.end());
}

void put(const opdag::TensorMeta& from, proto::TensorMeta* to) {
  to->set_dtype(static_cast<uint32_t>(from.dtype));
  put_all(from.sizes, to->mutable_sizes());
  put_all(from.strides, to->mutable_strides());
  to->set_storage_offset(from.storage_offset);
  to->set_device(from.device);
}

struct PutArgument {
  proto::Argument* to;

  void operator()(const NoneArg&) const { to->set_none(true); }
  void operator()(const ValueArg& v) const { to->set_value_id(v.id); }
  void operator()(const ValueListArg& v) const {
    put_all(v.ids, to->mutable_value_list()->mutable_ids());
  }
  void operator()(int64_t v) const { to->set_integer(v); }
  void operator()(double v) const { to->set_floating(v); }
  void operator()(bool v) const { to->set_boolean(v); }
  void operator()(const std::string& v) const { to->set_text(v); }
  void operator()(const DTypeArg& v) const { to->set_dtype(static_cast<uint32_t>(v.dtype)); }
  void operator()(const DeviceArg& v) const { to->set_device(v.device); }
  void operator()(const LayoutArg& v) const { to->set_layout(v.layout); }
  void operator()(const MemoryFormatArg& v) const { to->set_memory_format(v.format); }
  void operator()(const IntListArg& v) const {
    auto* list = to->mutable_int_list();
    const bool literal = std::all_of(v.items.begin(), v.items.end(),
                                     [](const opdag::IntOrValue& i) { return i.id == kNone; });
    for (const opdag::IntOrValue& item : v.items) {
      if (literal) {
        list->add_literals(item.literal);
      } else {
        auto* mixed = list->add_mixed();
        mixed->set_literal(item.literal);
        mixed->set_value(item.id);
      }
    }
  }
  void operator()(const FloatListArg& v) const {
    put_all(v.items, to->mutable_float_list()->mutable_items());
  }
  void operator()(const BoolListArg& v) const {
    auto* list = to->mutable_bool_list();
    for (const bool item : v.items) list->add_items(item);
  }
  void operator()(const ComplexArg& v) const {
    to->mutable_complex()->set_real(v.real);
    to->mutable_complex()->set_imag(v.imag);
  }
};

void put(const opdag::Node& from, proto::Node* to) {
  to->set_id(from.id);
  to->set_op(from.op);
  for (const NamedArgument& argument : from.arguments) {
    auto* added = to->add_arguments();
    added->set_name(argument.name);
    std::visit(PutArgument{added}, argument.value);
  }
  put_all(from.outputs, to->mutable_outputs());
  to->set_atomic_group(from.atomic_group);
}

void put(const opdag::Value& from, proto::Value* to) {
  to->set_name(from.name);
  to->set_kind(static_cast<uint32_t>(from.kind));
  put(from.meta, to->mutable_meta());
  put_all(from.elements, to->mutable_elements());
}

void put(const opdag::Leaf& from, proto::Leaf* to) {
  to->set_kind(static_cast<uint32_t>(from.kind));
  to->set_value(from.value);
  to->set_target(from.target);
  to->set_persistent(from.persistent);
  to->set_trainable(from.trainable);
  to->set_tied_group(from.tied_group);
  auto* weight = to->mutable_weight();
  weight->set_path(from.weight.path);
  weight->set_bytes(from.weight.bytes);
  weight->set_stored_dtype(static_cast<uint32_t>(from.weight.stored_dtype));
  put_all(from.weight.sizes, weight->mutable_sizes());
  put_all(from.weight.strides, weight->mutable_strides());
  weight->set_storage_offset(from.weight.storage_offset);
}

// ---- decoding --------------------------------------------------------------------------------

Error corrupt(std::string what) {
  return make_error(Code::kCorrupt, "graph on the wire: " + std::move(what));
}

template <typename To, typename Field>
void take_all(const Field& field, To* to) {
  to->assign(field.begin(), field.end());
}

Status take_dtype(uint32_t number, DType* to) {
  if (number >= kDTypes) return corrupt(fmt::format("element type {} is unknown", number));
  *to = static_cast<DType>(number);
  return {};
}

Status take(const proto::TensorMeta& from, opdag::TensorMeta* to) {
  WEFT_TRY_STATUS(take_dtype(from.dtype(), &to->dtype));
  take_all(from.sizes(), &to->sizes);
  take_all(from.strides(), &to->strides);
  to->storage_offset = from.storage_offset();
  to->device = from.device();
  return {};
}

IntListArg take(const proto::IntList& from) {
  IntListArg list;
  for (int64_t literal : from.literals()) list.items.push_back({literal, kNone});
  for (const auto& item : from.mixed()) list.items.push_back({item.literal(), item.value()});
  return list;
}

Result<opdag::Argument> take(const proto::Argument& from) {
  using Case = proto::Argument::ValueCase;
  switch (from.value_case()) {
    case Case::kNone:
      return opdag::Argument(NoneArg{});
    case Case::kValueId:
      return opdag::Argument(ValueArg{from.value_id()});
    case Case::kValueList: {
      ValueListArg list;
      take_all(from.value_list().ids(), &list.ids);
      return opdag::Argument(std::move(list));
    }
    case Case::kInteger:
      return opdag::Argument(int64_t{from.integer()});
    case Case::kFloating:
      return opdag::Argument(from.floating());
    case Case::kBoolean:
      return opdag::Argument(from.boolean());
    case Case::kText:
      return opdag::Argument(from.text());
    case Case::kDtype: {
      DTypeArg argument{};
      WEFT_TRY_STATUS(take_dtype(from.dtype(), &argument.dtype));
      return opdag::Argument(argument);
    }
    case Case::kDevice:
      return opdag::Argument(DeviceArg{from.device()});
    case Case::kLayout:
      return opdag::Argument(LayoutArg{from.layout()});
    case Case::kMemoryFormat:
      return opdag::Argument(MemoryFormatArg{from.memory_format()});
    case Case::kIntList:
      return opdag::Argument(take(from.int_list()));
    case Case::kFloatList: {
      FloatListArg list;
      take_all(from.float_list().items(), &list.items);
      return opdag::Argument(std::move(list));
    }
    case Case::kBoolList: {
      BoolListArg list;
      take_all(from.bool_list().items(), &list.items);
      return opdag::Argument(std::move(list));
    }
    case Case::kComplex:
      return opdag::Argument(ComplexArg{from.complex().real(), from.complex().imag()});
    case Case::VALUE_NOT_SET:
      break;
  }
  return corrupt("an argument has no value");
}

Status take(const proto::Node& from, opdag::Node* to) {
  to->id = from.id();
  to->op = from.op();
  for (const auto& argument : from.arguments()) {
    WEFT_TRY(opdag::Argument value, take(argument));
    to->arguments.push_back({argument.name(), std::move(value)});
  }
  take_all(from.outputs(), &to->outputs);
  to->atomic_group = from.atomic_group();
  return {};
}

Status take(const proto::Value& from, opdag::Value* to) {
  if (from.kind() > static_cast<uint32_t>(ValueKind::kBool)) {
    return corrupt(fmt::format("value kind {} is unknown", from.kind()));
  }
  to->name = from.name();
  to->kind = static_cast<ValueKind>(from.kind());
  take_all(from.elements(), &to->elements);
  return take(from.meta(), &to->meta);
}

Status take(const proto::Leaf& from, opdag::Leaf* to) {
  if (from.kind() > static_cast<uint32_t>(LeafKind::kUserInput)) {
    return corrupt(fmt::format("leaf kind {} is unknown", from.kind()));
  }
  to->kind = static_cast<LeafKind>(from.kind());
  to->value = from.value();
  to->target = from.target();
  to->persistent = from.persistent();
  to->trainable = from.trainable();
  to->tied_group = from.tied_group();
  to->weight.path = from.weight().path();
  to->weight.bytes = from.weight().bytes();
  take_all(from.weight().sizes(), &to->weight.sizes);
  take_all(from.weight().strides(), &to->weight.strides);
  to->weight.storage_offset = from.weight().storage_offset();
  return take_dtype(from.weight().stored_dtype(), &to->weight.stored_dtype);
}

}  // namespace

std::string encode_graph(const opdag::Graph& graph) {
  proto::Graph message;
  message.set_version(kVersion);
  for (const opdag::Node& node : graph.nodes) put(node, message.add_nodes());
  for (const opdag::Value& value : graph.values) put(value, message.add_values());
  for (const opdag::Leaf& leaf : graph.leaves) put(leaf, message.add_leaves());
  for (const opdag::Output& output : graph.outputs) {
    auto* added = message.add_outputs();
    added->set_name(output.name);
    added->set_value(output.value);
  }
  for (const opdag::BufferUpdate& update : graph.buffer_updates) {
    auto* added = message.add_buffer_updates();
    added->set_target(update.target);
    added->set_value(update.value);
  }
  message.set_loss_output(graph.loss_output);
  message.set_train_mode(graph.train_mode);
  for (const std::string& warning : graph.warnings) message.add_warnings(warning);
  return message.SerializeAsString();
}

Result<opdag::Graph> decode_graph(std::string_view bytes) {
  if (bytes.size() > kMaxGraphBytes) {
    return make_error(Code::kTooLarge,
                      fmt::format("graph on the wire: {} bytes; at most {} are accepted",
                                  bytes.size(), kMaxGraphBytes));
  }
  proto::Graph message;
  if (!parse_message(bytes, message)) {
    return corrupt(fmt::format("{} bytes are no graph message", bytes.size()));
  }
  if (message.version() != kVersion) {
    return corrupt(
        fmt::format("form {} is unknown, this program reads {}", message.version(), kVersion));
  }
  opdag::Graph graph;
  graph.values.resize(static_cast<size_t>(message.values_size()));
  for (int i = 0; i < message.values_size(); ++i) {
    graph.values[static_cast<size_t>(i)].id = i;
    WEFT_TRY_STATUS(take(message.values(i), &graph.values[static_cast<size_t>(i)]));
  }
  graph.nodes.resize(static_cast<size_t>(message.nodes_size()));
  for (int i = 0; i < message.nodes_size(); ++i) {
    WEFT_TRY_STATUS(take(message.nodes(i), &graph.nodes[static_cast<size_t>(i)]));
  }
  graph.leaves.resize(static_cast<size_t>(message.leaves_size()));
  for (int i = 0; i < message.leaves_size(); ++i) {
    WEFT_TRY_STATUS(take(message.leaves(i), &graph.leaves[static_cast<size_t>(i)]));
  }
  for (const auto& output : message.outputs()) {
    graph.outputs.push_back({output.name(), output.value()});
  }
  for (const auto& update : message.buffer_updates()) {
    graph.buffer_updates.push_back({update.target(), update.value()});
  }
  graph.loss_output = message.loss_output();
  graph.train_mode = message.train_mode();
  take_all(message.warnings(), &graph.warnings);
  WEFT_TRY_STATUS(opdag::validate(graph));
  return graph;
}

}  // namespace weft::net
