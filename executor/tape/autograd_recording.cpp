#include "executor/tape/autograd_recording.h"

#include <c10/core/AutogradState.h>

#include <utility>

namespace weft::executor {

InlineEngine::InlineEngine()
    : before_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

InlineEngine::~InlineEngine() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(before_);
}

at::Tensor AutogradRecording::leaf(size_t index, const at::Tensor& input) {
  leaves_[index] = input.detach().set_requires_grad(true);
  return leaves_[index];
}

void AutogradRecording::finish(std::vector<at::Tensor> outputs, std::vector<at::Tensor> taps) {
  outputs_ = std::move(outputs);
  taps_ = std::move(taps);
}

std::vector<at::Tensor> AutogradRecording::backward(std::vector<Seed> seeds) {
  torch::autograd::variable_list roots, gradients, wanted;
  for (Seed& seed : seeds) {
    const at::Tensor& root = (seed.tap ? taps_ : outputs_).at(seed.index);
    if (!root.defined() || !root.requires_grad()) continue;
    roots.push_back(root);
    gradients.push_back(std::move(seed.gradient));
  }
  for (const at::Tensor& leaf : leaves_) {
    if (leaf.defined()) wanted.push_back(leaf);
  }
  std::vector<at::Tensor> result(leaves_.size());
  if (!roots.empty() && !wanted.empty()) {
    const InlineEngine engine;
    auto found = torch::autograd::grad(roots, wanted, gradients, /*retain_graph=*/false,
                                       /*create_graph=*/false, /*allow_unused=*/true);
    size_t next = 0;
    for (size_t i = 0; i < leaves_.size(); ++i) {
      if (leaves_[i].defined()) result[i] = std::move(found[next++]);
    }
  }
  leaves_.clear();
  outputs_.clear();
  taps_.clear();
  return result;
}

}  // namespace weft::executor
