#include "job/sample_order.h"

#include <fmt/format.h>

#include <numeric>

#include "base/check.h"
#include "base/rng.h"

namespace weft::job {

Result<SampleOrder> SampleOrder::make(int64_t samples, int64_t batch, uint64_t seed) {
  if (batch <= 0) {
    return make_error(Code::kInvalid, fmt::format("a batch of {} samples is impossible", batch));
  }
  if (samples < batch) {
    return make_error(Code::kInvalid,
                      fmt::format("the data has {} samples, too few for one batch of {}",
                                  std::max<int64_t>(samples, 0), batch),
                      "use more data, or a smaller train.batch");
  }
  return SampleOrder(samples, batch, seed);
}

std::vector<int64_t> SampleOrder::at(int64_t step) {
  WEFT_CHECK(step >= 0);
  const int64_t epoch = step / steps_per_epoch();
  if (epoch != cached_epoch_) {
    permutation_.resize(static_cast<size_t>(samples_));
    std::iota(permutation_.begin(), permutation_.end(), 0);
    Rng rng(derive_seed({seed_, static_cast<uint64_t>(epoch)}));
    rng.shuffle(permutation_);
    cached_epoch_ = epoch;
  }
  const auto first = permutation_.begin() + (step % steps_per_epoch()) * batch_;
  return {first, first + batch_};
}

}  // namespace weft::job
