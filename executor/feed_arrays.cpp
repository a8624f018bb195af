#include "executor/feed_arrays.h"

#include <fmt/format.h>

#include <cstring>

#include "executor/convert.h"

namespace weft::executor {
namespace {

class ArrayColumn final : public FeedColumn {
 public:
  ArrayColumn(job::NpyArray array, std::string file, at::ScalarType dtype)
      : array_(std::move(array)),
        file_(std::move(file)),
        dtype_(dtype),
        row_sizes_(array_.sizes.begin() + 1, array_.sizes.end()),
        row_bytes_(static_cast<size_t>(element_count(row_sizes_).value_or(0)) *
                   dtype_bytes(array_.dtype)) {}

  int64_t samples() const override { return array_.sizes[0]; }
  const std::vector<int64_t>& row_sizes() const override { return row_sizes_; }

  Result<at::Tensor> rows(std::span<const int64_t> samples) const override {
    std::vector<int64_t> sizes{static_cast<int64_t>(samples.size())};
    sizes.insert(sizes.end(), row_sizes_.begin(), row_sizes_.end());
    at::Tensor result = at::empty(sizes, dtype_);
    auto* target = static_cast<std::byte*>(result.mutable_data_ptr());
    for (const int64_t sample : samples) {
      if (sample < 0 || sample >= array_.sizes[0]) {
        return make_error(Code::kInvalid, fmt::format("row {} of {} asked from array {}", sample,
                                                      array_.sizes[0], file_));
      }
      std::memcpy(target, array_.bytes.data() + static_cast<size_t>(sample) * row_bytes_,
                  row_bytes_);
      target += row_bytes_;
    }
    return result;
  }

 private:
  job::NpyArray array_;
  std::string file_;
  at::ScalarType dtype_;
  std::vector<int64_t> row_sizes_;
  size_t row_bytes_;
};

}  // namespace

Result<std::unique_ptr<FeedColumn>> make_array_column(job::NpyArray array, std::string file) {
  if (array.sizes.empty() || array.sizes[0] < 1) {
    return make_error(Code::kInvalid, fmt::format("array {} has no rows", file),
                      "its first dimension is the sample");
  }
  const auto elements = element_count(array.sizes);
  if (!elements || array.bytes.size() < static_cast<size_t>(*elements) * dtype_bytes(array.dtype)) {
    return make_error(Code::kCorrupt, fmt::format("array {} is shorter than its shape", file));
  }
  const at::ScalarType dtype = to_scalar_type(array.dtype);
  return std::unique_ptr<FeedColumn>(new ArrayColumn(std::move(array), std::move(file), dtype));
}

}  // namespace weft::executor
