#include "executor/tape/recording.h"

namespace weft::executor {

std::vector<at::Tensor> Recording::backward_first(std::vector<Seed> seeds,
                                                  const std::vector<bool>& first) {
  rest_ = backward(std::move(seeds));
  std::vector<at::Tensor> now(rest_.size());
  for (size_t i = 0; i < now.size(); ++i) {
    if (first[i]) now[i] = std::move(rest_[i]);
  }
  return now;
}

}  // namespace weft::executor
