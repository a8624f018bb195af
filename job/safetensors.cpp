#include "job/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/os/atomic_file.h"
#include "job/json_read.h"

namespace weft::job {
namespace {

using nlohmann::json;

// Some 100 bytes a tensor. The format's own readers take 100 MB, which parsed are gigabytes.
constexpr uint64_t kMaxHeaderBytes = 32 << 20;
constexpr size_t kMaxDimensions = 64;
constexpr const char* kMetadata = "__metadata__";

// The format's names; it has none for complex128.
constexpr std::array<std::pair<std::string_view, DType>, 14> kDTypes = {{{"U8", DType::kUint8},
                                                                         {"I8", DType::kInt8},
                                                                         {"I16", DType::kInt16},
                                                                         {"I32", DType::kInt32},
                                                                         {"I64", DType::kInt64},
                                                                         {"F16", DType::kFloat16},
                                                                         {"F32", DType::kFloat32},
                                                                         {"F64", DType::kFloat64},
                                                                         {"C64", DType::kComplex64},
                                                                         {"BOOL", DType::kBool},
                                                                         {"BF16", DType::kBFloat16},
                                                                         {"U16", DType::kUint16},
                                                                         {"U32", DType::kUint32},
                                                                         {"U64", DType::kUint64}}};

Error corrupt(std::string message) {
  return make_error(Code::kCorrupt, std::move(message), "fetch or write the file again");
}

uint64_t little_endian64(const std::byte* bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<uint64_t>(bytes[i]);
  return value;
}

Result<DType> read_dtype(const json& entry, const std::string& name) {
  const auto found = entry.find("dtype");
  if (found != entry.end() && found->is_string()) {
    for (const auto& [known, dtype] : kDTypes) {
      if (*found == known) return dtype;
    }
  }
  return make_error(Code::kRefused,
                    fmt::format("tensor \"{}\" has a dtype that weft does not know", name));
}

Result<std::vector<int64_t>> read_shape(const json& entry, const std::string& name) {
  const auto found = entry.find("shape");
  std::vector<int64_t> sizes;
  bool good = found != entry.end() && found->is_array() && found->size() <= kMaxDimensions;
  for (size_t i = 0; good && i < found->size(); ++i) {
    const json& size = (*found)[i];
    good = size.is_number_unsigned() && size.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
    if (good) sizes.push_back(size.get<int64_t>());
  }
  if (!good) return corrupt(fmt::format("tensor \"{}\" has no valid shape", name));
  return sizes;
}

struct Range {
  uint64_t begin = 0, end = 0;
};

Result<Range> read_range(const json& entry, const std::string& name, uint64_t data_bytes) {
  const auto found = entry.find("data_offsets");
  if (found != entry.end() && found->is_array() && found->size() == 2 &&
      (*found)[0].is_number_unsigned() && (*found)[1].is_number_unsigned()) {
    const Range range{(*found)[0].get<uint64_t>(), (*found)[1].get<uint64_t>()};
    if (range.begin <= range.end && range.end <= data_bytes) return range;
  }
  return corrupt(fmt::format("tensor \"{}\" does not lie inside the file", name));
}

struct Placed {
  Range range;
  std::string name;
};

Result<TensorView> read_tensor(const json& entry, const std::string& name, const Range& range,
                               const Buffer& file, uint64_t data_begin) {
  TensorView view;
  WEFT_TRY(view.dtype, read_dtype(entry, name));
  WEFT_TRY(view.sizes, read_shape(entry, name));
  const auto elements = element_count(view.sizes);
  const int64_t unit = static_cast<int64_t>(dtype_bytes(view.dtype));
  int64_t bytes = 0;
  if (!elements || __builtin_mul_overflow(*elements, unit, &bytes) ||
      static_cast<uint64_t>(bytes) != range.end - range.begin) {
    return corrupt(fmt::format("tensor \"{}\" has {} bytes, its shape needs another number", name,
                               range.end - range.begin));
  }
  view.bytes =
      Buffer(file.owner(), file.data() + data_begin + range.begin, static_cast<size_t>(bytes));
  return view;
}

// The format demands that tensors cover the data without holes or overlaps.
Status check_cover(std::vector<Placed> placed, uint64_t data_bytes) {
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.range.begin, a.range.end) < std::pair(b.range.begin, b.range.end);
  });
  uint64_t at = 0;
  for (const Placed& tensor : placed) {
    if (tensor.range.begin != at) {
      return corrupt(fmt::format("tensor \"{}\" begins at {}, the one before ends at {}",
                                 tensor.name, tensor.range.begin, at));
    }
    at = tensor.range.end;
  }
  if (at != data_bytes)
    return corrupt(fmt::format("{} bytes belong to no tensor", data_bytes - at));
  return {};
}

Result<json> read_header(const Buffer& file) {
  if (file.size() < 8) return corrupt("the file is shorter than its header length");
  const uint64_t header_bytes = little_endian64(file.data());
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - 8) {
    return corrupt(fmt::format("a header of {} bytes does not fit", header_bytes));
  }
  const char* text = reinterpret_cast<const char*>(file.data()) + 8;
  WEFT_TRY(json header, parse_json({text, static_cast<size_t>(header_bytes)}, "the header"));
  if (!header.is_object()) return corrupt("the header is not a JSON object");
  return header;
}

Result<Safetensors> parse(const Buffer& file) {
  WEFT_TRY(const json header, read_header(file));
  const uint64_t data_begin = 8 + little_endian64(file.data());
  const uint64_t data_bytes = file.size() - data_begin;
  Safetensors content;
  std::vector<Placed> placed;
  for (const auto& [name, entry] : header.items()) {
    if (!entry.is_object()) return corrupt(fmt::format("entry \"{}\" is not an object", name));
    if (name == kMetadata) {
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) return corrupt("metadata holds something that is not a text");
        content.metadata[key] = value.get<std::string>();
      }
      continue;
    }
    WEFT_TRY(const Range range, read_range(entry, name, data_bytes));
    WEFT_TRY(TensorView view, read_tensor(entry, name, range, file, data_begin));
    content.tensors.emplace(name, std::move(view));
    placed.push_back({range, name});
  }
  WEFT_TRY_STATUS(check_cover(std::move(placed), data_bytes));
  return content;
}

Result<std::string> make_header(const Safetensors& content) {
  json header = json::object();
  if (!content.metadata.empty()) header[kMetadata] = content.metadata;
  uint64_t at = 0;
  for (const auto& [name, view] : content.tensors) {
    std::string dtype;
    for (const auto& [known, value] : kDTypes) {
      if (value == view.dtype) dtype = known;
    }
    const auto elements = element_count(view.sizes);
    if (dtype.empty() || name == kMetadata || !elements ||
        static_cast<uint64_t>(*elements) * dtype_bytes(view.dtype) != view.bytes.size()) {
      return make_error(Code::kInvalid,
                        fmt::format("tensor \"{}\" cannot be written: {} with {} "
                                    "bytes",
                                    name, dtype_name(view.dtype), view.bytes.size()));
    }
    header[name] = {
        {"dtype", dtype}, {"shape", view.sizes}, {"data_offsets", {at, at + view.bytes.size()}}};
    at += view.bytes.size();
  }
  std::string text = json_line(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data begins aligned
  return text;
}

}  // namespace

Result<Safetensors> read_safetensors(const os::Path& path) {
  WEFT_TRY(const Buffer file, os::map_file(path));
  Result<Safetensors> content = parse(file);
  if (!content.ok()) return std::move(content).error().within(path.string());
  return content;
}

Status write_safetensors(const os::Path& path, const Safetensors& content) {
  WEFT_TRY(const std::string header, make_header(content));
  WEFT_TRY(os::AtomicFile file, os::AtomicFile::create(path));
  std::array<std::byte, 8> length;
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(header.size() >> (8 * i));
  WEFT_TRY_STATUS(file.write(length));
  WEFT_TRY_STATUS(file.write(std::as_bytes(std::span(header))));
  for (const auto& [name, view] : content.tensors) WEFT_TRY_STATUS(file.write(view.bytes.bytes()));
  return file.commit();
}

}  // namespace weft::job
