#include "executor/tape/rule.h"

namespace weft::executor::tape {
namespace {

// input, normalized_shape, weight, bias, eps, cudnn_enable
Backward layer_norm(Call& call) {
  const at::Tensor x = call.tensor(0);
  const std::vector<int64_t> shape = call.at(1).toIntVector();
  const auto weight = call.optional(2), bias = call.optional(3);
  auto [y, mean, deviation] = at::native_layer_norm(x, shape, weight, bias, call.at(4).toDouble());
  call.give(y);
  return [=, mean = mean, deviation = deviation](Tensors& results, const Mask& wanted,
                                                 Tensors& arguments) {
    std::tie(arguments[0], arguments[1], arguments[2]) = at::native_layer_norm_backward(
        results[0], x, shape, mean, deviation, weight, bias, {wanted[0], wanted[1], wanted[2]});
  };
}

// input, num_groups, weight, bias, eps, cudnn_enabled
Backward group_norm(Call& call) {
  const at::Tensor input = call.tensor(0);
  const int64_t groups = call.at(1).toInt();
  const auto weight = call.optional(2), bias = call.optional(3);
  if (input.dim() < 2 || input.numel() == 0 || groups <= 0 || input.size(1) % groups != 0) {
    return nullptr;
  }
  const int64_t n = input.size(0), channels = input.size(1);
  const int64_t area = input.numel() / (n * channels);
  const at::Tensor x = input.contiguous(input.suggest_memory_format());
  const auto packed = [](const std::optional<at::Tensor>& t) {
    return t && t->defined() ? std::optional<at::Tensor>(t->contiguous()) : std::nullopt;
  };
  const auto scale = packed(weight), shift = packed(bias);
  auto [y, mean, deviation] =
      at::native_group_norm(x, scale, shift, n, channels, area, groups, call.at(4).toDouble());
  call.give(y);
  return [=, mean = mean, deviation = deviation](Tensors& results, const Mask& wanted,
                                                 Tensors& arguments) {
    const at::Tensor gradient = results[0].contiguous(x.suggest_memory_format());
    std::tie(arguments[0], arguments[1], arguments[2]) =
        at::native_group_norm_backward(gradient, x, mean, deviation, scale, n, channels, area,
                                       groups, {wanted[0], wanted[1], wanted[2]});
  };
}

// input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled
Backward batch_norm(Call& call) {
  const at::Tensor x = call.tensor(0);
  const auto weight = call.optional(1);
  const auto mean = call.optional(3), variance = call.optional(4);
  const bool training = call.at(5).toBool();
  const double eps = call.at(7).toDouble();
  auto [y, saved_mean, saved_variance, reserve, kind] =
      at::_batch_norm_impl_index(x, weight, call.optional(2), mean, variance, training,
                                 call.at(6).toDouble(), eps, call.at(8).toBool());
  call.give(y);
  return [=, saved_mean = saved_mean, saved_variance = saved_variance, reserve = reserve,
          kind = kind](Tensors& results, const Mask& wanted, Tensors& arguments) {
    // cuDNN takes no gradient that lies otherwise.
    const at::Tensor gradient = results[0].contiguous(x.suggest_memory_format());
    std::tie(arguments[0], arguments[1], arguments[2]) = at::_batch_norm_impl_index_backward(
        kind, x, gradient, weight, mean, variance, saved_mean, saved_variance, training, eps,
        {wanted[0], wanted[1], wanted[2]}, reserve);
  };
}

constexpr Rule kRules[] = {
    {"aten::layer_norm", layer_norm, Autocast::kFloat},
    {"aten::group_norm", group_norm, Autocast::kFloat},
    {"aten::batch_norm", batch_norm},
};

}  // namespace

std::span<const Rule> normalization_rules() {
  return kRules;
}

}  // namespace weft::executor::tape
