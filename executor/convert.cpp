#include "executor/convert.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ScalarOps.h>
#include <fmt/format.h>

#include <array>
#include <utility>

#include "executor/own_operators.h"

namespace weft::executor {
namespace {

constexpr std::array<std::pair<DType, at::ScalarType>, 15> kTypes{{
    {DType::kUint8, at::kByte},
    {DType::kInt8, at::kChar},
    {DType::kInt16, at::kShort},
    {DType::kInt32, at::kInt},
    {DType::kInt64, at::kLong},
    {DType::kFloat16, at::kHalf},
    {DType::kFloat32, at::kFloat},
    {DType::kFloat64, at::kDouble},
    {DType::kComplex64, at::kComplexFloat},
    {DType::kComplex128, at::kComplexDouble},
    {DType::kBool, at::kBool},
    {DType::kBFloat16, at::kBFloat16},
    {DType::kUint16, at::kUInt16},
    {DType::kUint32, at::kUInt32},
    {DType::kUint64, at::kUInt64},
}};

Error argument_error(const opdag::Node& node, const std::string& name, const std::string& what) {
  Error error =
      make_error(Code::kRefused,
                 fmt::format("argument `{}` of {} (node {}): {}", name, node.op, node.id, what),
                 "export the model again with the supported PyTorch version");
  error.node = std::to_string(node.id);
  error.op = node.op;
  return error;
}

const c10::Type& inner_type(const c10::Argument& argument) {
  const c10::Type* type = argument.type().get();
  if (type->kind() == c10::TypeKind::OptionalType) {
    type = type->expectRef<c10::OptionalType>().getElementType().get();
  }
  return *type;
}

Result<int64_t> layout_number(const opdag::Node& node, const std::string& layout) {
  if (layout == "strided" || layout == "torch.strided" || layout.empty()) {
    return static_cast<int64_t>(at::kStrided);
  }
  return argument_error(node, "layout", fmt::format("layout `{}` is not supported", layout));
}

Result<int64_t> memory_format_number(const opdag::Node& node, const std::string& format) {
  const auto dot = format.rfind('.');
  const std::string name = dot == std::string::npos ? format : format.substr(dot + 1);
  if (name == "contiguous_format") return static_cast<int64_t>(at::MemoryFormat::Contiguous);
  if (name == "preserve_format") return static_cast<int64_t>(at::MemoryFormat::Preserve);
  if (name == "channels_last") return static_cast<int64_t>(at::MemoryFormat::ChannelsLast);
  if (name == "channels_last_3d") return static_cast<int64_t>(at::MemoryFormat::ChannelsLast3d);
  return argument_error(node, "memory_format", fmt::format("unknown format `{}`", format));
}

// Builds the template of one schema argument from the node's own value of it.
class ArgumentBuilder {
 public:
  ArgumentBuilder(const opdag::Node& node, const c10::Argument& schema, at::Device device,
                  const SlotOf& slot_of)
      : node_(node),
        schema_(schema),
        type_(inner_type(schema)),
        device_(device),
        slot_of_(slot_of) {}

  Result<ArgTemplate> build(const opdag::Argument& argument) {
    return std::visit([this](const auto& value) { return this->convert(value); }, argument);
  }

 private:
  using Kind = ArgTemplate::Kind;

  static ArgTemplate constant(at::IValue value) {
    ArgTemplate result;
    result.constant = std::move(value);
    return result;
  }

  bool is_list_of(c10::TypeKind kind) const {
    return type_.kind() == c10::TypeKind::ListType &&
           type_.expectRef<c10::ListType>().getElementType()->kind() == kind;
  }

  Result<ArgTemplate> number(const at::Scalar& scalar) {
    switch (type_.kind()) {
      case c10::TypeKind::TensorType:
        return constant(at::native::wrapped_scalar_tensor(scalar, at::kCPU));
      case c10::TypeKind::FloatType:
        if (scalar.isComplex()) break;
        return constant(scalar.toDouble());
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        if (!scalar.isIntegral(true)) break;
        return constant(scalar.toLong());
      case c10::TypeKind::BoolType:
        if (!scalar.isIntegral(true)) break;
        return constant(scalar.toLong() != 0);
      case c10::TypeKind::ListType:  // int[2] written as one number: it is repeated
        return repeated(scalar);
      default:
        return constant(at::IValue(scalar));
    }
    return argument_error(node_, schema_.name(), "a number of the wrong kind");
  }

  Result<ArgTemplate> repeated(const at::Scalar& scalar) {
    const auto count = static_cast<size_t>(schema_.N().value_or(1));
    if (is_list_of(c10::TypeKind::IntType) || is_list_of(c10::TypeKind::SymIntType)) {
      return constant(c10::List<int64_t>(std::vector<int64_t>(count, scalar.toLong())));
    }
    if (is_list_of(c10::TypeKind::FloatType)) {
      return constant(c10::List<double>(std::vector<double>(count, scalar.toDouble())));
    }
    return argument_error(node_, schema_.name(), "a number where a list is needed");
  }

  Result<ArgTemplate> convert(const opdag::NoneArg&) { return constant(at::IValue()); }
  Result<ArgTemplate> convert(int64_t value) { return number(at::Scalar(value)); }
  Result<ArgTemplate> convert(double value) { return number(at::Scalar(value)); }
  Result<ArgTemplate> convert(bool value) { return number(at::Scalar(value)); }
  Result<ArgTemplate> convert(const opdag::ComplexArg& value) {
    return number(at::Scalar(c10::complex<double>(value.real, value.imag)));
  }
  Result<ArgTemplate> convert(const std::string& value) { return constant(value); }
  Result<ArgTemplate> convert(const opdag::DTypeArg& value) {
    return constant(static_cast<int64_t>(to_scalar_type(value.dtype)));
  }
  Result<ArgTemplate> convert(const opdag::DeviceArg&) { return constant(device_); }
  Result<ArgTemplate> convert(const opdag::LayoutArg& value) {
    WEFT_TRY(int64_t layout, layout_number(node_, value.layout));
    return constant(layout);
  }
  Result<ArgTemplate> convert(const opdag::MemoryFormatArg& value) {
    WEFT_TRY(int64_t format, memory_format_number(node_, value.format));
    return constant(format);
  }

  Result<ArgTemplate> convert(const opdag::FloatListArg& value) {
    if (is_list_of(c10::TypeKind::NumberType)) {
      c10::List<at::Scalar> list;
      for (double item : value.items) list.push_back(at::Scalar(item));
      return constant(list);
    }
    return constant(c10::List<double>(value.items));
  }
  Result<ArgTemplate> convert(const opdag::BoolListArg& value) {
    c10::List<bool> list;
    for (bool item : value.items) list.push_back(item);
    return constant(list);
  }

  Result<ArgTemplate> convert(const opdag::ValueArg& value) {
    WEFT_TRY(int32_t slot, slot_of_(value.id));
    ArgTemplate result;
    result.kind = Kind::kSlot;
    result.slots = {slot};
    return result;
  }

  Result<ArgTemplate> convert(const opdag::ValueListArg& value) {
    ArgTemplate result;
    const bool optional = is_list_of(c10::TypeKind::OptionalType);
    result.kind = optional ? Kind::kOptionalTensorList : Kind::kTensorList;
    for (opdag::ValueId id : value.ids) {
      if (id == opdag::kNone) {
        if (!optional) return argument_error(node_, schema_.name(), "an absent tensor in a list");
        result.slots.push_back(opdag::kNone);
        continue;
      }
      WEFT_TRY(int32_t slot, slot_of_(id));
      result.slots.push_back(slot);
    }
    return result;
  }

  Result<ArgTemplate> convert(const opdag::IntListArg& value) {
    ArgTemplate result;
    bool literal = true;
    for (const opdag::IntOrValue& item : value.items) {
      result.literals.push_back(item.literal);
      result.slots.push_back(opdag::kNone);
      if (item.id == opdag::kNone) continue;
      WEFT_TRY(int32_t slot, slot_of_(item.id));
      result.slots.back() = slot;
      literal = false;
    }
    if (!literal) {
      result.kind = Kind::kIntList;
      return result;
    }
    if (is_list_of(c10::TypeKind::FloatType)) {
      std::vector<double> items(result.literals.begin(), result.literals.end());
      return constant(c10::List<double>(items));
    }
    if (is_list_of(c10::TypeKind::NumberType)) {
      c10::List<at::Scalar> list;
      for (int64_t item : result.literals) list.push_back(at::Scalar(item));
      return constant(list);
    }
    if (is_list_of(c10::TypeKind::TensorType) || is_list_of(c10::TypeKind::OptionalType)) {
      ArgTemplate empty;  // an empty list says nothing of its element type
      if (!value.items.empty())
        return argument_error(node_, schema_.name(), "integers for tensors");
      empty.kind =
          is_list_of(c10::TypeKind::TensorType) ? Kind::kTensorList : Kind::kOptionalTensorList;
      return empty;
    }
    return constant(c10::List<int64_t>(result.literals));
  }

  const opdag::Node& node_;
  const c10::Argument& schema_;
  const c10::Type& type_;
  at::Device device_;
  const SlotOf& slot_of_;
};

bool creates_from_nothing(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    const c10::Type& type = inner_type(argument);
    if (type.kind() == c10::TypeKind::TensorType) return false;
    if (type.kind() == c10::TypeKind::ListType &&
        type.expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::TensorType) {
      return false;
    }
  }
  return true;
}

}  // namespace

at::ScalarType to_scalar_type(DType dtype) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == dtype) return theirs;
  }
  return at::ScalarType::Undefined;
}

Result<DType> from_scalar_type(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == type) return ours;
  }
  return make_error(Code::kRefused,
                    fmt::format("element type {} is not supported", c10::toString(type)));
}

std::optional<at::ScalarType> autocast_type(job::Precision precision) {
  if (precision == job::Precision::kBf16) return at::kBFloat16;
  if (precision == job::Precision::kFp16) return at::kHalf;
  return std::nullopt;
}

Result<at::Device> parse_device(const std::string& device) {
  try {
    const at::Device parsed(device);
    if (parsed.is_cpu()) return at::Device(at::kCPU);
    if (parsed.is_cuda()) {
      if (!at::hasCUDA()) {
        return make_error(Code::kUnavailable, fmt::format("device `{}`: no CUDA card", device),
                          "use device cpu, or a worker built with CUDA on a machine with a card");
      }
      const at::DeviceIndex index = parsed.has_index() ? parsed.index() : at::DeviceIndex{0};
      if (const auto cards = at::accelerator::deviceCount(); index >= cards) {
        return make_error(Code::kUnavailable,
                          fmt::format("device `{}`: this machine shows {} CUDA card(s)", device,
                                      static_cast<int>(cards)),
                          fmt::format("use cuda:0 to cuda:{}", cards - 1));
      }
      return at::Device(at::kCUDA, index);
    }
  } catch (const std::exception&) {
  }
  return make_error(Code::kInvalid, fmt::format("unknown device `{}`", device),
                    "use cpu or cuda:N");
}

Result<c10::OperatorHandle> find_operator(const opdag::Node& node) {
  const auto dot = node.op.find('.');
  const std::string name = node.op.substr(0, dot);
  const std::string overload = dot == std::string::npos ? "" : node.op.substr(dot + 1);
  register_own_operators();
  auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!handle) {
    Error error = make_error(
        Code::kRefused, fmt::format("this libtorch has no operator {} (node {})", node.op, node.id),
        "export the model with the PyTorch version weft is built with");
    error.node = std::to_string(node.id);
    error.op = node.op;
    return error;
  }
  return *handle;
}

Result<std::vector<ArgTemplate>> compile_arguments(const opdag::Node& node,
                                                   const c10::OperatorHandle& handle,
                                                   at::Device device, const SlotOf& slot_of) {
  const c10::FunctionSchema& schema = handle.schema();
  std::vector<ArgTemplate> result;
  size_t used = 0;
  const bool create = creates_from_nothing(schema);
  for (const c10::Argument& argument : schema.arguments()) {
    if (const opdag::Argument* value = node.find(argument.name())) {
      ++used;
      if (!(create && argument.name() == "device" &&
            std::holds_alternative<opdag::NoneArg>(*value))) {
        ArgumentBuilder builder(node, argument, device, slot_of);
        WEFT_TRY(ArgTemplate item, builder.build(*value));
        result.push_back(std::move(item));
        continue;
      }
    }
    ArgTemplate item;
    if (create && argument.name() == "device") {
      item.constant = device;
    } else if (argument.default_value()) {
      item.constant = *argument.default_value();
    } else if (argument.type()->kind() != c10::TypeKind::OptionalType) {
      return argument_error(node, argument.name(), "missing, and the schema has no default");
    }
    result.push_back(std::move(item));
  }
  if (used != node.arguments.size()) {
    for (const opdag::NamedArgument& given : node.arguments) {
      if (!schema.argumentIndexWithName(given.name)) {
        return argument_error(node, given.name, "the operator has no such argument");
      }
    }
    return argument_error(node, node.arguments.front().name, "an argument is given twice");
  }
  return result;
}

at::IValue materialize(const ArgTemplate& argument, const std::vector<at::IValue>& frame) {
  const auto at_slot = [&frame](int32_t slot) -> const at::IValue& {
    return frame[static_cast<size_t>(slot)];
  };
  switch (argument.kind) {
    case ArgTemplate::Kind::kConstant:
      return argument.constant;
    case ArgTemplate::Kind::kSlot:
      return at_slot(argument.slots[0]);
    case ArgTemplate::Kind::kTensorList: {
      c10::List<at::Tensor> list;
      for (int32_t slot : argument.slots) list.push_back(at_slot(slot).toTensor());
      return list;
    }
    case ArgTemplate::Kind::kOptionalTensorList: {
      c10::List<std::optional<at::Tensor>> list;
      for (int32_t slot : argument.slots) {
        list.push_back(slot == opdag::kNone ? std::optional<at::Tensor>()
                                            : std::optional<at::Tensor>(at_slot(slot).toTensor()));
      }
      return list;
    }
    case ArgTemplate::Kind::kIntList: {
      c10::List<int64_t> list;
      for (size_t i = 0; i < argument.slots.size(); ++i) {
        const int32_t slot = argument.slots[i];
        list.push_back(slot == opdag::kNone ? argument.literals[i] : at_slot(slot).toInt());
      }
      return list;
    }
  }
  return at::IValue();
}

std::string exception_text(const std::exception& error) {
  std::string text;
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error)) {
    text = torch_error->what_without_backtrace();
  } else {
    text = error.what();
  }
  return text.substr(0, text.find('\n'));
}

}  // namespace weft::executor
