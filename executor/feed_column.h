// FeedColumn: one column of a job's data (tokens, an array), addressed by sample index. What a
// feed binds to graph inputs. Read-only mappings underneath; compute thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "executor/aten.h"

namespace weft::executor {

class FeedColumn {
 public:
  virtual ~FeedColumn() = default;
  virtual int64_t samples() const = 0;
  // Shape of one sample, without the batch dimension.
  virtual const std::vector<int64_t>& row_sizes() const = 0;
  // A fresh contiguous CPU tensor [samples.size(), row_sizes...] in the column's own dtype
  // (int64 for tokens). kInvalid names a sample whose content is out of bounds.
  virtual Result<at::Tensor> rows(std::span<const int64_t> samples) const = 0;
};

}  // namespace weft::executor
