// Element types of tensors, in the vocabulary of every folder; values are ours, not torch's.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace weft {

enum class DType : uint8_t {
  kUint8 = 0,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kFloat16,
  kFloat32,
  kFloat64,
  kComplex64,
  kComplex128,
  kBool,
  kBFloat16,
  kUint16,
  kUint32,
  kUint64,
};

size_t dtype_bytes(DType dtype);           // bytes of one element
std::string_view dtype_name(DType dtype);  // "float32", as PyTorch prints it
std::optional<DType> dtype_from_name(std::string_view name);
bool dtype_is_floating(DType dtype);  // float or bfloat
bool dtype_is_complex(DType dtype);
inline bool dtype_can_have_gradient(DType d) {
  return dtype_is_floating(d) || dtype_is_complex(d);
}

// Elements of a shape; nullopt for a negative dimension or an overflow of int64.
std::optional<int64_t> element_count(const std::vector<int64_t>& sizes);
std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes);

}  // namespace weft
