// Elementwise operators. Formulas and the order of their operations: derivatives.yaml and
// FunctionsManual.cpp of PyTorch, for real numbers.
#include "executor/tape/rule.h"

namespace weft::executor::tape {
namespace {

// add, sub, rsub: self and other times what the schema calls alpha (argument 2).
template <int kSelf, int kOther>
Backward sum_of(Call& call) {
  const at::Scalar alpha = call.at(2).toScalar();
  call.run();
  return [alpha](Tensors& results, const Mask& wanted, Tensors& arguments) {
    const at::Tensor& gradient = results[0];
    const auto signed_by = [](int sign, const at::Tensor& t) { return sign < 0 ? t.neg() : t; };
    constexpr bool kReversed = kSelf < 0;  // rsub: alpha belongs to self
    if (wanted[0]) {
      arguments[0] = signed_by(kSelf, kReversed ? scaled(gradient, alpha) : gradient);
    }
    if (wanted.size() > 1 && wanted[1]) {
      arguments[1] = signed_by(kOther, kReversed ? gradient : scaled(gradient, alpha));
    }
  };
}

Backward mul(Call& call) {
  const at::Tensor self = call.tensor(0), other = call.tensor(1);
  call.run();
  return [self = call.wants(1) ? self : at::Tensor(), other = call.wants(0) ? other : at::Tensor()](
             Tensors& results, const Mask& wanted, Tensors& arguments) {
    if (wanted[0]) arguments[0] = results[0] * other;
    if (wanted[1]) arguments[1] = results[0] * self;
  };
}

Backward mul_scalar(Call& call) {
  const at::Scalar factor = call.at(1).toScalar();
  call.run();
  return unary([factor](const at::Tensor& gradient) { return gradient * factor; });
}

Backward div(Call& call) {
  const at::Tensor self = call.tensor(0), other = call.tensor(1);
  call.run();
  return [self = call.wants(1) ? self : at::Tensor(), other](Tensors& results, const Mask& wanted,
                                                             Tensors& arguments) {
    if (wanted[0]) arguments[0] = results[0] / other;
    if (wanted[1]) arguments[1] = -results[0] * ((self / other) / other);
  };
}

Backward div_scalar(Call& call) {
  const at::Scalar divisor = call.at(1).toScalar();
  call.run();
  return unary([divisor](const at::Tensor& gradient) { return gradient / divisor; });
}

Backward pow_scalar(Call& call) {
  const at::Tensor self = call.tensor(0);
  const at::Scalar exponent = call.at(1).toScalar();
  if (exponent.isComplex() || exponent.equal(0.0)) return nullptr;
  call.run();
  return unary([self, exponent](const at::Tensor& gradient) {
    const at::Scalar less = exponent.isIntegral(true) ? at::Scalar(exponent.toLong() - 1)
                                                      : at::Scalar(exponent.toDouble() - 1);
    return gradient * (exponent * self.pow(less));
  });
}

// Operators whose gradient needs the result only, or the argument only.
template <class Function>
Backward from_result(Call& call, Function function) {
  const at::Tensor result = call.run();
  return unary(
      [result, function](const at::Tensor& gradient) { return function(gradient, result); });
}
template <class Function>
Backward from_argument(Call& call, Function function) {
  const at::Tensor self = call.tensor(0);
  call.run();
  return unary([self, function](const at::Tensor& gradient) { return function(gradient, self); });
}

using T = const at::Tensor&;

Backward neg(Call& call) {
  call.run();
  return unary([](T g) { return g.neg(); });
}
Backward sqrt(Call& call) {
  return from_result(call, [](T g, T y) { return g / (2 * y); });
}
Backward rsqrt(Call& call) {
  return from_result(call, [](T g, T y) { return -0.5 * g * y.pow(3); });
}
Backward exp(Call& call) {
  return from_result(call, [](T g, T y) { return g * y; });
}
Backward tanh(Call& call) {
  return from_result(call, [](T g, T y) { return at::tanh_backward(g, y); });
}
Backward sigmoid(Call& call) {
  return from_result(call, [](T g, T y) { return at::sigmoid_backward(g, y); });
}
Backward relu(Call& call) {
  return from_result(call, [](T g, T y) { return at::threshold_backward(g, y, 0); });
}
Backward log(Call& call) {
  return from_argument(call, [](T g, T x) { return g.div(x); });
}
Backward sin(Call& call) {
  return from_argument(call, [](T g, T x) { return g * x.cos(); });
}
Backward cos(Call& call) {
  return from_argument(call, [](T g, T x) { return g * -x.sin(); });
}
Backward abs(Call& call) {
  return from_argument(call, [](T g, T x) { return g * x.sgn(); });
}
Backward silu(Call& call) {
  return from_argument(call, [](T g, T x) { return at::silu_backward(g, x); });
}
Backward hardswish(Call& call) {
  return from_argument(call, [](T g, T x) { return at::hardswish_backward(g, x); });
}
Backward hardsigmoid(Call& call) {
  return from_argument(call, [](T g, T x) { return at::hardsigmoid_backward(g, x); });
}
Backward gelu(Call& call) {
  const std::string approximate = call.at(1).toStringRef();
  return from_argument(call,
                       [approximate](T g, T x) { return at::gelu_backward(g, x, approximate); });
}
Backward leaky_relu(Call& call) {
  const at::Scalar slope = call.at(1).toScalar();
  return from_argument(call,
                       [slope](T g, T x) { return at::leaky_relu_backward(g, x, slope, false); });
}

// self, mask, value
Backward masked_fill(Call& call) {
  const at::Tensor mask = call.tensor(1);
  call.run();
  return unary([mask](T g) { return g.masked_fill(mask, 0); });
}

Backward where(Call& call) {
  const at::Tensor condition = call.tensor(0);
  call.run();
  return [condition](Tensors& results, const Mask& wanted, Tensors& arguments) {
    const at::Tensor zero = at::zeros({}, results[0].options());
    if (wanted[1]) arguments[1] = at::where(condition, results[0], zero);
    if (wanted[2]) arguments[2] = at::where(condition, zero, results[0]);
  };
}

// As at::dropout: on a card one fused kernel, elsewhere noise that multiplies. Both draw as it
// does.
Backward dropout(Call& call) {
  const at::Tensor self = call.tensor(0);
  const double p = call.at(1).toDouble();
  if (!call.at(2).toBool() || p == 0 || self.numel() == 0) {
    call.give(self);
    return unary([](T g) { return g; });
  }
  if (p >= 1) return nullptr;
  if (self.is_cuda()) {
    auto [result, mask] = at::native_dropout(self, p, true);
    call.give(result);
    return unary([mask = mask, scale = 1 / (1 - p)](T g) {
      return at::native_dropout_backward(g, mask, scale);
    });
  }
  const at::Tensor noise = at::empty_like(self).bernoulli_(1 - p).div_(1 - p);
  call.give(self * noise);
  return unary([noise](T g) { return g * noise; });
}

constexpr Rule kRules[] = {
    {"aten::add.Tensor", sum_of<1, 1>},
    {"aten::add.Scalar", sum_of<1, 1>},
    {"aten::sub.Tensor", sum_of<1, -1>},
    {"aten::sub.Scalar", sum_of<1, -1>},
    {"aten::rsub.Tensor", sum_of<-1, 1>},
    {"aten::rsub.Scalar", sum_of<-1, 1>},
    {"aten::mul.Tensor", mul},
    {"aten::mul.Scalar", mul_scalar},
    {"aten::div.Tensor", div},
    {"aten::div.Scalar", div_scalar},
    {"aten::pow.Tensor_Scalar", pow_scalar, Autocast::kFloat},
    {"aten::neg", neg},
    {"aten::sqrt", sqrt},
    {"aten::rsqrt", rsqrt, Autocast::kFloat},
    {"aten::exp", exp, Autocast::kFloat},
    {"aten::log", log, Autocast::kFloat},
    {"aten::sin", sin},
    {"aten::cos", cos},
    {"aten::abs", abs},
    {"aten::tanh", tanh},
    {"aten::sigmoid", sigmoid},
    {"aten::relu", relu},
    {"aten::silu", silu},
    {"aten::gelu", gelu},
    {"aten::hardswish", hardswish},
    {"aten::hardsigmoid", hardsigmoid},
    {"aten::leaky_relu", leaky_relu},
    {"aten::masked_fill.Scalar", masked_fill},
    {"aten::where.self", where},
    {"aten::dropout", dropout},
};

}  // namespace

std::span<const Rule> pointwise_rules() {
  return kRules;
}

}  // namespace weft::executor::tape
