#include "opdag/import_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

namespace weft::opdag {
namespace {

constexpr int kMaxJsonDepth = 64;
constexpr size_t kMaxOutputNames = 10000;

// Nesting depth by a scan that knows strings, before any recursive work is done.
bool too_deep(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;  // whatever it escapes is no quote
      if (c == '"') quoted = false;
      continue;
    }
    if (c == '"') quoted = true;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (depth > kMaxJsonDepth) return true;
  }
  return false;
}

Result<int64_t> read_size(const Json& size, const std::string& what) {
  const auto [kind, value] = union_member(size);
  if (kind == "as_int") return read_integer(*value);
  if (kind == "as_expr") return dynamic_shape(what, value->at("expr_str").get<std::string>());
  return make_error(Code::kCorrupt, fmt::format("{}: unknown size '{}'", what, kind));
}

void flatten_spec(const Json& spec, const std::string& prefix, int depth,
                  std::vector<std::string>& names) {
  // Names are kept for every leaf, with the keys on its way: both are a stranger's choice.
  if (depth > 32 || names.size() > kMaxOutputNames || prefix.size() > kMaxNameBytes) {
    throw std::runtime_error("treespec too large");
  }
  if (spec.at("type").is_null()) {
    names.push_back(prefix.empty() ? "out.0" : prefix);
    return;
  }
  const Json& children = spec.at("children_spec");
  std::vector<std::string> keys;
  if (spec.at("context").is_string()) {
    // Dictionaries (and Hugging Face's ModelOutput) keep their keys here, as JSON in a string.
    const Json context = Json::parse(spec.at("context").get<std::string>(), nullptr, false);
    if (context.is_array() && context.size() == children.size()) {
      for (const Json& key : context) {
        if (key.is_string()) keys.push_back(key.get<std::string>());
      }
    }
  }
  for (size_t i = 0; i < children.size(); ++i) {
    std::string key = keys.size() == children.size() ? keys[i] : std::to_string(i);
    if (prefix.empty() && keys.size() != children.size()) key = "out." + key;
    flatten_spec(children[i], prefix.empty() ? key : prefix + "." + key, depth + 1, names);
  }
}

}  // namespace

std::string symbol_name(const std::string& expression) {
  // sympy's long form: Symbol('s77', positive=True, integer=True).
  if (!expression.starts_with("Symbol('")) return expression;
  return expression.substr(8, expression.find('\'', 8) - 8);
}

Error dynamic_shape(const std::string& what, const std::string& expression) {
  const std::string name = symbol_name(expression);
  if (name.starts_with("u")) {  // "unbacked": known only when the data are
    return make_error(
        Code::kRefused,
        fmt::format("{} depends on the data ({}); weft trains static shapes", what, name),
        "use a mask with torch.where or masked_fill instead of picking elements by "
        "their value, and export again");
  }
  return make_error(
      Code::kRefused, fmt::format("{} is dynamic ({}); weft trains static shapes", what, name),
      "drop the torch.export.Dim of that dimension (the dynamic_shapes argument of "
      "torch.export.export) and export with example inputs of the micro-batch's shape");
}

Result<Json> parse_json(std::string_view text, const std::string& name) {
  if (text.size() > kMaxJsonBytes) {
    return make_error(Code::kTooLarge, fmt::format("{} has {} bytes, at most {} are read", name,
                                                   text.size(), kMaxJsonBytes));
  }
  if (too_deep(text)) {
    return make_error(Code::kCorrupt,
                      fmt::format("{} is nested deeper than {} levels", name, kMaxJsonDepth));
  }
  try {
    return Json::parse(text);
  } catch (const std::exception& e) {
    return make_error(Code::kCorrupt, fmt::format("{} is not valid JSON: {}", name, e.what()),
                      "save the model again with torch.export.save");
  }
}

std::pair<std::string, const Json*> union_member(const Json& object) {
  for (const auto& [key, value] : object.items()) {
    if (!value.is_null()) return {key, &value};
  }
  throw std::runtime_error("empty union");
}

Result<DType> read_dtype(const Json& code) {
  switch (read_integer(code)) {
    case 1:
      return DType::kUint8;
    case 2:
      return DType::kInt8;
    case 3:
      return DType::kInt16;
    case 4:
      return DType::kInt32;
    case 5:
      return DType::kInt64;
    case 6:
      return DType::kFloat16;
    case 7:
      return DType::kFloat32;
    case 8:
      return DType::kFloat64;
    case 10:
      return DType::kComplex64;
    case 11:
      return DType::kComplex128;
    case 12:
      return DType::kBool;
    case 13:
      return DType::kBFloat16;
    case 28:
      return DType::kUint16;
    default:
      return make_error(
          Code::kRefused,
          fmt::format("element type {} of torch is not supported", read_integer(code)),
          "cast the model to float32, bfloat16 or float64 before the export");
  }
}

std::string read_device(const Json& device) {
  std::string name = device.at("type").get<std::string>();
  const auto index = device.find("index");
  if (index != device.end() && !index->is_null()) name += fmt::format(":{}", read_integer(*index));
  if (name.size() > 32) throw std::runtime_error("device name too long");
  return name;
}

Result<TensorMeta> read_meta(const Json& meta, const std::string& what) {
  TensorMeta out;
  auto dtype = read_dtype(meta.at("dtype"));
  if (!dtype.ok()) return std::move(dtype).error().within(what);
  out.dtype = *dtype;
  const Json& sizes = meta.at("sizes");
  for (size_t i = 0; i < sizes.size(); ++i) {
    WEFT_TRY(const int64_t size, read_size(sizes[i], fmt::format("dimension {} of {}", i, what)));
    out.sizes.push_back(size);
  }
  for (const Json& item : meta.at("strides")) {
    WEFT_TRY(const int64_t stride, read_size(item, "a stride of " + what));
    out.strides.push_back(stride);
  }
  WEFT_TRY(out.storage_offset, read_size(meta.at("storage_offset"), "the offset of " + what));
  const int64_t layout = read_integer(meta.at("layout"));
  if (layout != 7) {
    return make_error(Code::kRefused, fmt::format("{} is sparse (layout {})", what, layout),
                      "use dense tensors");
  }
  out.device = read_device(meta.at("device"));
  return out;
}

int64_t read_integer(const Json& number) {
  const bool fits = number.is_number_integer() &&
                    (!number.is_number_unsigned() ||
                     number.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  if (!fits) throw std::runtime_error("a whole number is expected");
  return number.get<int64_t>();
}

double read_double(const Json& number) {
  if (!number.is_string()) return number.get<double>();
  const auto& text = number.get_ref<const std::string&>();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  throw std::runtime_error("bad number '" + text.substr(0, 32) + "'");
}

std::string read_target(const std::string& target) {
  std::string name = target;
  for (const std::string_view prefix : {"torch.ops.", "#", "torch."}) {
    if (name.starts_with(prefix)) {
      name.erase(0, prefix.size());
      break;
    }
  }
  const size_t dot = name.find('.');
  if (dot != name.npos) name.replace(dot, 1, "::");
  if (name.ends_with(".default")) name.erase(name.size() - 8);
  return name;
}

std::vector<std::string> output_names(const std::string& out_spec) {
  std::vector<std::string> names;
  try {
    const Json spec = Json::parse(out_spec);
    flatten_spec(spec.at(1), "", 0, names);
  } catch (const std::exception&) {
    return {};  // outputs are then called out.0, out.1, ...
  }
  std::unordered_set<std::string> taken;
  for (size_t i = 0; i < names.size(); ++i) {
    const bool plain = !names[i].empty() && names[i].size() <= kMaxNameBytes &&
                       std::none_of(names[i].begin(), names[i].end(), [](char c) {
                         return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
                       });
    if (!plain || taken.contains(names[i])) names[i] = fmt::format("out.{}", i);
    taken.insert(names[i]);
  }
  return names;
}

}  // namespace weft::opdag
