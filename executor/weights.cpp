#include "executor/weights.h"

#include <fmt/format.h>

#include "executor/convert.h"

namespace weft::executor {
namespace {

// Elements from the start of the file to the last one the tensor reads; nullopt on overflow.
std::optional<int64_t> reach_of(const opdag::WeightRef& ref) {
  constexpr int64_t kMax = int64_t{1} << 46;
  if (ref.sizes.size() != ref.strides.size() || ref.storage_offset < 0) return std::nullopt;
  int64_t reach = ref.storage_offset;
  for (size_t i = 0; i < ref.sizes.size(); ++i) {
    if (ref.sizes[i] < 0 || ref.strides[i] < 0) return std::nullopt;
    if (ref.sizes[i] == 0) return 0;
    if (ref.sizes[i] > kMax || ref.strides[i] > kMax / ref.sizes[i]) return std::nullopt;
    reach += (ref.sizes[i] - 1) * ref.strides[i];
    if (reach > kMax) return std::nullopt;
  }
  return reach + 1;
}

}  // namespace

Result<at::Tensor> tensor_from_bytes(const opdag::WeightRef& ref, const Buffer& bytes, DType dtype,
                                     at::Device device) {
  const auto reach = reach_of(ref);
  const size_t element = dtype_bytes(ref.stored_dtype);
  if (!reach || static_cast<uint64_t>(*reach) * element > bytes.size()) {
    return make_error(
        Code::kCorrupt,
        fmt::format("weight {}: its shape reaches beyond its {} bytes", ref.path, bytes.size()),
        "export the model again");
  }
  try {
    const at::NoGradGuard guard;
    const auto stored = at::TensorOptions().dtype(to_scalar_type(ref.stored_dtype));
    const auto wanted = at::TensorOptions().dtype(to_scalar_type(dtype)).device(device);
    at::Tensor source = at::empty({0}, stored);
    if (*reach > 0) {
      void* data = const_cast<std::byte*>(bytes.data());  // only read
      source = at::from_blob(data, {*reach}, stored)
                   .as_strided(ref.sizes, ref.strides, ref.storage_offset);
    } else {
      source = at::empty_strided(ref.sizes, ref.strides, stored);
    }
    at::Tensor result = source.is_non_overlapping_and_dense()
                            ? at::empty_strided(ref.sizes, ref.strides, wanted)
                            : at::empty(ref.sizes, wanted);
    result.copy_(source);
    return result;
  } catch (const std::exception& error) {
    return make_error(Code::kCorrupt,
                      fmt::format("weight {}: {}", ref.path, exception_text(error)));
  }
}

}  // namespace weft::executor
