#include "executor/tape/rule.h"

namespace weft::executor::tape {
namespace {

// Autocast takes the second half of a cross entropy, nll_loss, in float32. (The first, log_softmax,
// runs there in the type of the logits, since cross_entropy_loss names it. Where autocast knows
// cross_entropy_loss whole, on the CPU, the logits are float32 before the rule sees them.)
at::Tensor for_nll_loss(const Call& call, const at::Tensor& tensor) {
  return call.autocast && tensor.scalar_type() != at::kDouble ? tensor.to(at::kFloat) : tensor;
}

// self, target, weight, reduction, ignore_index, label_smoothing. Classes by number, one target a
// row; autograd takes the rest (probabilities, maps of targets, smoothing).
Backward cross_entropy(Call& call) {
  const at::Tensor logits = call.tensor(0), target = call.tensor(1);
  const bool plain = !at::isFloatingType(target.scalar_type()) && logits.dim() <= 2 &&
                     logits.dim() >= 1 && logits.sizes() != target.sizes() &&
                     call.at(5).toDouble() == 0;
  auto weight = call.optional(2);
  if (!plain || (call.wanted.size() > 2 && call.wants(2))) return nullptr;
  const int64_t reduction = call.at(3).toInt(), ignored = call.at(4).toInt();
  const int64_t dim = logits.dim() - 1;
  const at::Tensor logs = at::log_softmax(logits, dim, logits.scalar_type());
  const at::Tensor of_logs = for_nll_loss(call, logs);
  if (weight) weight = for_nll_loss(call, *weight);
  auto [loss, total] = at::nll_loss_forward(of_logs, target, weight, reduction, ignored);
  call.give(loss);
  return unary([=, total = total](const at::Tensor& gradient) {
    const at::Tensor of_nll =
        at::nll_loss_backward(gradient, of_logs, target, weight, reduction, ignored, total);
    const at::ScalarType type = logs.scalar_type();
    return at::_log_softmax_backward_data(of_nll.to(type), logs, dim, type);
  });
}

// self, target, reduction
Backward mse(Call& call) {
  const at::Tensor self = call.tensor(0), target = call.tensor(1);
  if (self.sizes() != target.sizes()) return nullptr;  // broadcast, with a warning
  const int64_t reduction = call.at(2).toInt();
  call.run();
  return [=](Tensors& results, const Mask& wanted, Tensors& arguments) {
    if (wanted[0]) arguments[0] = at::mse_loss_backward(results[0], self, target, reduction);
    if (wanted[1]) arguments[1] = at::mse_loss_backward(results[0], target, self, reduction);
  };
}

constexpr Rule kRules[] = {
    {"aten::cross_entropy_loss", cross_entropy, Autocast::kFloat},
    {"aten::mse_loss", mse, Autocast::kFloat},
};

}  // namespace

std::span<const Rule> loss_rules() {
  return kRules;
}

}  // namespace weft::executor::tape
