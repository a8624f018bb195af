// The autograd kind of a recording: inputs become leaves, the engine of libtorch runs the backward
// inline on the calling thread.
#pragma once

#include "executor/tape/recording.h"

namespace weft::executor {

// While it lives, the autograd engine runs on the calling thread.
class InlineEngine {
 public:
  InlineEngine();
  ~InlineEngine();
  InlineEngine(const InlineEngine&) = delete;
  InlineEngine& operator=(const InlineEngine&) = delete;

 private:
  bool before_;
};

class AutogradRecording final : public Recording {
 public:
  // A leaf over the memory of input `index`, to be read in its place.
  at::Tensor leaf(size_t index, const at::Tensor& input);
  void finish(std::vector<at::Tensor> outputs, std::vector<at::Tensor> taps);

  // Whether a gradient can flow from output `index`.
  bool reaches(size_t index) const {
    return outputs_[index].defined() && outputs_[index].requires_grad();
  }

  std::vector<at::Tensor> backward(std::vector<Seed> seeds) override;

  explicit AutogradRecording(size_t inputs) : leaves_(inputs) {}

 private:
  std::vector<at::Tensor> leaves_, outputs_, taps_;  // undefined: no gradient
};

}  // namespace weft::executor
