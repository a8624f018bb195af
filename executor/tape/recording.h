// Recording: what one run of a Program leaves behind for its backward pass. Two kinds:
//   * the tape (tape.h): explicit backward operators, autograd only for operators it has no rule
//   for;
//   * autograd (autograd_recording.h): PyTorch's engine over the whole run. The oracle of the tape.
// Both fold the gradients of a value in the same order (program.h), so that their bits agree where
// their kernels do. Compute thread only.
//
// A backward runs whole, or in two parts with time between them, as zero-bubble schedules need it
// (Qi et al. 2023): first what other stages wait for, then the rest. The parts have the bits of the
// whole.
#pragma once

#include <utility>
#include <vector>

#include "executor/aten.h"

namespace weft::executor {

// The gradient that backward starts from, of an output or a tap of the Program.
struct Seed {
  bool tap = false;
  size_t index = 0;
  at::Tensor gradient;
};

class Recording {
 public:
  virtual ~Recording() = default;

  // Gradients of the program's inputs, in their order; undefined for inputs that want none and
  // those the seeds do not reach. Seeds of values that no gradient flows through are ignored. Once
  // only: what was saved is released on the way. Throws what libtorch throws.
  virtual std::vector<at::Tensor> backward(std::vector<Seed> seeds) = 0;

  // Instead of it, both once and in this order. first, by input: its gradient is returned by the
  // first part, all others' by the second; undefined where `backward` would leave it, or where the
  // other part returns it. Here all the work is the first part's.
  virtual std::vector<at::Tensor> backward_first(std::vector<Seed> seeds,
                                                 const std::vector<bool>& first);
  virtual std::vector<at::Tensor> backward_rest() { return std::exchange(rest_, {}); }

  // Whether gradients of inputs that stay at their place (weights) lie in memory that a later
  // backward writes again; others are the caller's.
  virtual bool borrows() const { return false; }

 private:
  std::vector<at::Tensor> rest_;
};

}  // namespace weft::executor
