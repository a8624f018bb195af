// Which samples a step trains on: a pure function of (seed, epoch, step), the same on every stage,
// so that no coordinator hands out indices and a resumed job sees what it would have seen.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace weft::job {

class SampleOrder {
 public:
  // samples: size of the data set; batch: samples of one step. An epoch has samples / batch whole
  // steps; the remaining samples of an epoch's shuffle are dropped and come back in the next
  // epoch's. Fewer samples than one batch: kInvalid.
  static Result<SampleOrder> make(int64_t samples, int64_t batch, uint64_t seed);

  // Sample indices of a step (0-based, over all epochs), in order; batch entries.
  std::vector<int64_t> at(int64_t step);
  int64_t steps_per_epoch() const { return samples_ / batch_; }

 private:
  SampleOrder(int64_t samples, int64_t batch, uint64_t seed)
      : samples_(samples), batch_(batch), seed_(seed) {}
  int64_t samples_, batch_;
  uint64_t seed_;
  int64_t cached_epoch_ = -1;
  std::vector<int64_t> permutation_;
};

}  // namespace weft::job
