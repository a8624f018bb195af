// LossScaler: dynamic loss scaling of fp16, with the rules and the arithmetic of
// torch.amp.GradScaler, over all stages of a job at once: every stage holds the same state and
// makes the same move after each step. Compute thread only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "executor/aten.h"
#include "job/spec.h"

namespace weft::executor {

struct LossScale {
  float scale = 1;
  int64_t good_steps = 0;     // in a row, since the scale last changed
  int64_t skipped_steps = 0;  // of the job so far
  bool operator==(const LossScale&) const = default;
};

class LossScaler {
 public:
  explicit LossScaler(const job::LossScaleSpec& spec);

  const LossScale& now() const { return now_; }
  // The state after a step whose gradients did or did not overflow; kUnavailable: the scale has
  // fallen to zero, so no scale helps.
  Result<LossScale> after(bool overflow) const;
  void set(const LossScale& next) { now_ = next; }

  // "weft.loss_scaler.scale", ".good_steps", ".skipped_steps". Loading takes all three or, where
  // there is none, leaves the state as it is.
  std::map<std::string, at::Tensor> state() const;
  Status load_state(const std::map<std::string, at::Tensor>& state);

 private:
  job::LossScaleSpec spec_;
  LossScale now_;
};

// Divides gradients by the scale, in place. A double scalar on their device: 1 where one of them
// had inf or NaN, else 0.
at::Tensor unscale(const std::vector<at::Tensor>& gradients, float scale, at::Device device);

}  // namespace weft::executor
