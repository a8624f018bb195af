// StageOptimizer: libtorch's own optimizers (its fused kernels) over the parameters one stage owns,
// with the job's groups, rate schedule and decay rules. Compute thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "executor/aten.h"
#include "job/spec.h"

namespace weft::executor {

struct OwnedParameter {
  std::string name;  // original name (first alias)
  at::Tensor value;  // leaf, requires grad, updated in place
};

// A parameter takes the rates of the first group whose pattern matches its name; an explicit
// weight_decay of a group holds for norms and biases too, the job's own does not.
class StageOptimizer {
 public:
  static Result<std::unique_ptr<StageOptimizer>> make(const job::TrainSpec& train,
                                                      const std::vector<job::ParamGroup>& groups,
                                                      std::vector<OwnedParameter> parameters);
  virtual ~StageOptimizer() = default;

  // Applies one update from each parameter's .grad() (absent: left alone, as in PyTorch) at the
  // rates of `step` (0-based), then clears the gradients.
  virtual Status step(int64_t step) = 0;

  // State tensors by "weft.optimizer.<state>/<parameter name>": exp_avg, exp_avg_sq, step,
  // momentum_buffer. The tensors are the live ones, not copies. Loading checks shapes; missing
  // state of a parameter starts fresh.
  virtual std::map<std::string, at::Tensor> state() const = 0;
  virtual Status load_state(const std::map<std::string, at::Tensor>& state) = 0;
};

}  // namespace weft::executor
