// Arguments of nodes: one case a member of torch's Argument union.
#include <fmt/format.h>

#include "opdag/import_reader.h"

namespace weft::opdag {

Error Importer::unsupported(const Node& node, std::string message) {
  Error error = make_error(Code::kRefused,
                           fmt::format("node {} ({}): {}", node.id, node.op, std::move(message)),
                           "rewrite that part of the model with plain tensor operators");
  error.node = std::to_string(node.id);
  error.op = node.op;
  return error;
}

Status Importer::read_argument(Node& node, const Json& input) {
  NamedArgument named{input.at("name").get<std::string>(), NoneArg{}};
  if (named.name.empty()) named.name = fmt::format("arg{}", node.arguments.size());
  const auto [kind, body] = union_member(input.at("arg"));
  WEFT_TRY(auto value, argument(node, kind, *body));
  named.value = std::move(value);
  node.arguments.push_back(std::move(named));
  return {};
}

Result<Argument> Importer::tensors(const Json& list, bool optional) {
  ValueListArg out;
  for (const Json& item : list) {
    if (optional) {
      const auto [kind, body] = union_member(item);
      if (kind == "as_none") {
        out.ids.push_back(kNone);
        continue;
      }
      WEFT_TRY(const ValueId id, lookup(*body));
      out.ids.push_back(id);
    } else {
      WEFT_TRY(const ValueId id, lookup(item));
      out.ids.push_back(id);
    }
  }
  return Argument(std::move(out));
}

Result<Argument> Importer::symbolic(const Node& node, const std::string& kind, const Json& body) {
  const bool list = kind == "as_sym_ints";
  IntListArg ints;
  for (const Json& item : list ? body : Json::array({body})) {
    const auto [item_kind, number] = union_member(item);
    if (item_kind == "as_int") {
      ints.items.push_back({read_integer(*number), kNone});
    } else if (item_kind == "as_float") {
      return Argument(read_double(*number));
    } else if (item_kind == "as_bool") {
      return Argument(number->get<bool>());
    } else {
      if (options_.keep_refused) return Argument(NoneArg{});
      return dynamic_shape(fmt::format("a size that node {} ({}) computes", node.id, node.op),
                           number->dump());
    }
  }
  if (list) return Argument(std::move(ints));
  return Argument(ints.items.front().literal);
}

Result<Argument> Importer::argument(const Node& node, const std::string& kind, const Json& body) {
  if (kind == "as_none") return Argument(NoneArg{});
  if (kind == "as_tensor") {
    WEFT_TRY(const ValueId id, lookup(body));
    return Argument(ValueArg{id});
  }
  if (kind == "as_tensors") return tensors(body, false);
  if (kind == "as_optional_tensors") return tensors(body, true);
  if (kind == "as_optional_tensor") {
    const auto [inner, value] = union_member(body);
    return inner == "as_none" ? Argument(NoneArg{}) : argument(node, "as_tensor", *value);
  }
  if (kind == "as_int") return Argument(read_integer(body));
  if (kind == "as_float") return Argument(read_double(body));
  if (kind == "as_bool") return Argument(body.get<bool>());
  if (kind == "as_string") return Argument(body.get<std::string>());
  if (kind.starts_with("as_sym_")) return symbolic(node, kind, body);
  if (kind == "as_scalar_type") {
    WEFT_TRY(const DType dtype, read_dtype(body));
    return Argument(DTypeArg{dtype});
  }
  if (kind == "as_device") return Argument(DeviceArg{read_device(body)});
  return plain_list(node, kind, body);
}

Result<Argument> Importer::plain_list(const Node& node, const std::string& kind, const Json& body) {
  if (kind == "as_ints") {
    IntListArg ints;
    for (const Json& item : body) ints.items.push_back({read_integer(item), kNone});
    return Argument(std::move(ints));
  }
  if (kind == "as_floats") {
    FloatListArg floats;
    for (const Json& item : body) floats.items.push_back(read_double(item));
    return Argument(std::move(floats));
  }
  if (kind == "as_bools") return Argument(BoolListArg{body.get<std::vector<bool>>()});
  if (kind == "as_layout") {
    if (read_integer(body) == 7) return Argument(LayoutArg{"strided"});
    return unsupported(node, "sparse layouts are not supported");
  }
  if (kind == "as_memory_format") {
    static constexpr const char* kFormats[] = {"contiguous_format", "channels_last",
                                               "channels_last_3d", "preserve_format"};
    const int64_t code = read_integer(body);
    if (code >= 1 && code <= 4) return Argument(MemoryFormatArg{kFormats[code - 1]});
  }
  if (kind == "as_complex") {
    return Argument(ComplexArg{read_double(body.at("real")), read_double(body.at("imag"))});
  }
  if (options_.keep_refused) return Argument(NoneArg{});
  return unsupported(node, fmt::format("an argument of kind '{}' is not supported", kind));
}

}  // namespace weft::opdag
