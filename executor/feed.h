// Feed: where a stage's user inputs come from. A pure function of (split, step, micro-batch), so a
// replay, another stage or a resumed job sees the same samples. Compute thread only.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "executor/aten.h"

namespace weft::executor {

enum class Split { kTrain, kEval };

class Feed {
 public:
  virtual ~Feed() = default;
  // A CPU tensor of the graph input `name`, in its declared shape and dtype.
  // step: 0-based training step; for kEval always 0 and micro_batch runs over the eval set.
  virtual Result<at::Tensor> input(const std::string& name, Split split, int64_t step,
                                   int32_t micro_batch) = 0;
  // Micro-batches of a whole pass over the eval set; whole ones only.
  virtual int32_t eval_micro_batches() const = 0;
};

}  // namespace weft::executor
