#include "base/dtype.h"

#include <array>

namespace weft {
namespace {
struct Info {
  std::string_view name;
  size_t bytes;
};
constexpr std::array<Info, 15> kInfo = {{{"uint8", 1},
                                         {"int8", 1},
                                         {"int16", 2},
                                         {"int32", 4},
                                         {"int64", 8},
                                         {"float16", 2},
                                         {"float32", 4},
                                         {"float64", 8},
                                         {"complex64", 8},
                                         {"complex128", 16},
                                         {"bool", 1},
                                         {"bfloat16", 2},
                                         {"uint16", 2},
                                         {"uint32", 4},
                                         {"uint64", 8}}};
}  // namespace

size_t dtype_bytes(DType dtype) {
  return kInfo.at(static_cast<size_t>(dtype)).bytes;
}
std::string_view dtype_name(DType dtype) {
  return kInfo.at(static_cast<size_t>(dtype)).name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kInfo.size(); ++i) {
    if (kInfo[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

bool dtype_is_floating(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kFloat32 || dtype == DType::kFloat64 ||
         dtype == DType::kBFloat16;
}

bool dtype_is_complex(DType dtype) {
  return dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

std::optional<int64_t> element_count(const std::vector<int64_t>& sizes) {
  int64_t count = 1;
  for (int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) return std::nullopt;
  }
  return count;
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * (sizes[i] > 1 ? sizes[i] : 1);
  }
  return strides;
}

}  // namespace weft
