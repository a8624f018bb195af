// Convolutions and pooling.
#include "executor/tape/rule.h"

namespace weft::executor::tape {
namespace {

std::vector<int64_t> each(const at::IValue& value, size_t dims) {
  std::vector<int64_t> list = value.toIntVector();
  if (list.size() == 1) list.assign(dims, list[0]);
  return list;
}

// input, weight, bias, stride, padding, dilation, groups; input with its batch dimension
template <size_t kDims>
Backward convolution(Call& call) {
  const at::Tensor x = call.tensor(0), weight = call.tensor(1);
  const auto bias = call.optional(2);
  if (static_cast<size_t>(x.dim()) != kDims + 2) return nullptr;
  const auto stride = each(call.at(3), kDims), padding = each(call.at(4), kDims),
             dilation = each(call.at(5), kDims);
  const int64_t groups = call.at(6).toInt();
  const std::vector<int64_t> none(kDims, 0);
  call.give(at::convolution(x, weight, bias, stride, padding, dilation, /*transposed=*/false, none,
                            groups));
  const auto bias_size = bias && bias->defined()
                             ? std::optional<std::vector<int64_t>>(bias->sizes().vec())
                             : std::nullopt;
  return [=](Tensors& results, const Mask& wanted, Tensors& arguments) {
    const at::OptionalIntArrayRef sizes =
        bias_size ? at::OptionalIntArrayRef(*bias_size) : std::nullopt;
    std::tie(arguments[0], arguments[1], arguments[2]) =
        at::convolution_backward(results[0], x, weight, sizes, stride, padding, dilation, false,
                                 none, groups, {wanted[0], wanted[1], wanted[2]});
  };
}

// self, kernel_size, stride, padding, dilation, ceil_mode
Backward max_pool2d(Call& call) {
  const at::Tensor x = call.tensor(0);
  const auto kernel = call.at(1).toIntVector(), stride = call.at(2).toIntVector(),
             padding = call.at(3).toIntVector(), dilation = call.at(4).toIntVector();
  const bool ceil = call.at(5).toBool();
  auto [y, indices] = at::max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil);
  call.give(y);
  return unary([=, indices = indices](const at::Tensor& gradient) {
    return at::max_pool2d_with_indices_backward(gradient, x, kernel, stride, padding, dilation,
                                                ceil, indices);
  });
}

// self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
Backward avg_pool2d(Call& call) {
  const at::Tensor x = call.tensor(0);
  const auto kernel = call.at(1).toIntVector(), stride = call.at(2).toIntVector(),
             padding = call.at(3).toIntVector();
  const bool ceil = call.at(4).toBool(), count_padding = call.at(5).toBool();
  const auto divisor = call.at(6).toOptional<int64_t>();
  call.run();
  return unary([=](const at::Tensor& gradient) {
    return at::avg_pool2d_backward(gradient, x, kernel, stride, padding, ceil, count_padding,
                                   divisor);
  });
}

// To one element a channel it is a mean (as in PyTorch).
Backward adaptive_avg_pool2d(Call& call) {
  const at::Tensor x = call.tensor(0);
  const auto size = each(call.at(1), 2);
  if (size[0] != 1 || size[1] != 1 || x.dim() < 3 || x.numel() == 0) return nullptr;
  call.run();
  return unary([shape = x.sizes().vec()](const at::Tensor& gradient) {
    return gradient.expand(shape) / (shape[shape.size() - 1] * shape[shape.size() - 2]);
  });
}

constexpr bool kSplits = true;
constexpr Rule kRules[] = {
    {"aten::conv1d", convolution<1>, Autocast::kLower, kSplits},
    {"aten::conv2d", convolution<2>, Autocast::kLower, kSplits},
    {"aten::conv3d", convolution<3>, Autocast::kLower, kSplits},
    {"aten::max_pool2d", max_pool2d},
    {"aten::avg_pool2d", avg_pool2d},
    {"aten::adaptive_avg_pool2d", adaptive_avg_pool2d},
};

}  // namespace

std::span<const Rule> convolution_rules() {
  return kRules;
}

}  // namespace weft::executor::tape
