// Calls of every operator that has a backward rule, with arguments that reach each branch of it: on
// the CPU, or on the card of a machine that has one.
#pragma once

#include <ATen/Context.h>

#include <functional>
#include <string>
#include <vector>

#include "executor/tape/rule.h"

namespace weft::executor::tape::testing {

using torch::jit::Stack;

struct Case {
  std::string op;
  std::function<Stack()> arguments;  // fresh tensors, in float64
  bool rule = true;                  // false: the rule leaves this call to autograd
};

inline at::DeviceType device() {
  return at::hasCUDA() ? at::kCUDA : at::kCPU;
}
inline at::TensorOptions of_type(at::ScalarType type) {
  return at::device(device()).dtype(type);
}
inline at::Tensor d(at::IntArrayRef sizes) {
  return at::randn(sizes, of_type(at::kDouble));
}
inline at::Tensor positive(at::IntArrayRef sizes) {
  return at::rand(sizes, of_type(at::kDouble)) + 0.5;
}
inline at::Tensor below(int64_t n, at::IntArrayRef sizes) {
  return at::randint(n, sizes, of_type(at::kLong));
}
inline at::IValue ints(std::vector<int64_t> list) {
  return c10::List<int64_t>(list);
}
inline at::IValue none() {
  return at::IValue();
}

inline at::Tensor targets() {
  return below(4, {5});
}
inline at::Tensor heads(int64_t length) {
  return d({2, 3, length, 8});
}
inline at::IValue list(std::vector<at::Tensor> tensors) {
  return c10::List<at::Tensor>(tensors);
}

#define ARGS(...) [] { return Stack{__VA_ARGS__}; }

inline std::vector<Case> matrix_cases() {
  return {
      {"aten::linear", ARGS(d({3, 5}), d({4, 5}), d({4}))},
      {"aten::linear", ARGS(d({2, 3, 5}), d({4, 5}), none())},
      {"aten::linear", ARGS(d({5, 3}).t(), d({5, 4}).t(), d({4}))},
      {"aten::linear", ARGS(d({5}), d({4, 5}), d({4})), false},
      {"aten::addmm", ARGS(d({4}), d({3, 5}), d({5, 4}), 1, 1)},
      {"aten::addmm", ARGS(d({3, 4}), d({5, 3}).t(), d({4, 5}).t(), 0.5, 2.0)},
      {"aten::mm", ARGS(d({3, 5}), d({5, 4}))},
      {"aten::mm", ARGS(d({5, 3}).t(), d({4, 5}).t())},
      {"aten::bmm", ARGS(d({2, 3, 5}), d({2, 5, 4}))},
      {"aten::matmul", ARGS(d({2, 1, 3, 5}), d({6, 5, 4}))},
      {"aten::matmul", ARGS(d({2, 3, 5}), d({5, 4}))},
      {"aten::matmul", ARGS(d({3, 5}), d({2, 5, 4}))},
      {"aten::matmul", ARGS(d({5}), d({5, 4})), false},
      {"aten::embedding", ARGS(d({7, 4}), below(7, {3, 2}), -1, false, false)},
      {"aten::embedding", ARGS(d({7, 4}), below(3, {6}), 1, true, false)},
  };
}

inline std::vector<Case> pointwise_cases() {
  std::vector<Case> cases{
      {"aten::add.Tensor", ARGS(d({3, 4}), d({4}), 1)},
      {"aten::add.Tensor", ARGS(d({3, 1}), d({2, 3, 4}), 2.5)},
      {"aten::add.Tensor", ARGS(d({3, 4}), d({3, 4}).to(at::kFloat), 1)},
      {"aten::add.Scalar", ARGS(d({3}), 2.5, 1)},
      {"aten::sub.Tensor", ARGS(d({3, 4}), d({3, 1}), 2)},
      {"aten::sub.Scalar", ARGS(d({3}), 2.5, 3)},
      {"aten::rsub.Tensor", ARGS(d({3, 4}), d({4}), 2)},
      {"aten::rsub.Scalar", ARGS(d({3}), 2.5, 3)},
      {"aten::mul.Tensor", ARGS(d({3, 4}), d({}))},
      {"aten::mul.Tensor", ARGS(d({3, 1}), d({1, 4}))},
      {"aten::mul.Scalar", ARGS(d({3}), 2.5)},
      {"aten::div.Tensor", ARGS(d({3, 4}), positive({4}))},
      {"aten::div.Scalar", ARGS(d({3}), 2.5)},
      {"aten::pow.Tensor_Scalar", ARGS(positive({3}), 3)},
      {"aten::pow.Tensor_Scalar", ARGS(positive({3}), -0.5)},
      {"aten::pow.Tensor_Scalar", ARGS(positive({3}), 0.0), false},
      {"aten::sqrt", ARGS(positive({3, 2}))},
      {"aten::rsqrt", ARGS(positive({3, 2}))},
      {"aten::log", ARGS(positive({3, 2}))},
      {"aten::gelu", ARGS(d({3, 4}), "none")},
      {"aten::gelu", ARGS(d({3, 4}), "tanh")},
      {"aten::leaky_relu", ARGS(d({3, 4}), 0.1)},
      {"aten::masked_fill.Scalar", ARGS(d({3, 4}), d({3, 4}).gt(0), -5.0)},
      {"aten::masked_fill.Scalar", ARGS(d({4}), d({3, 4}).gt(0), 0.0)},
      {"aten::where.self", ARGS(d({3, 4}).gt(0), d({3, 1}), d({}))},
      {"aten::dropout", ARGS(d({30, 4}), 0.3, true)},
      {"aten::dropout", ARGS(d({30, 4}), 0.3, false)},
      {"aten::dropout", ARGS(d({3, 4}), 1.0, true), false},
  };
  for (const char* op : {"neg", "exp", "tanh", "sigmoid", "relu", "sin", "cos", "abs", "silu",
                         "hardswish", "hardsigmoid"}) {
    cases.push_back({std::string("aten::") + op, ARGS(d({3, 4}) * 4)});
  }
  return cases;
}

inline std::vector<Case> reduction_cases() {
  return {
      {"aten::sum", ARGS(d({3, 4}), none())},
      {"aten::sum", ARGS(d({}), none())},
      {"aten::sum.dim_IntList", ARGS(d({3, 4, 2}), ints({-1, 0}), false, none())},
      {"aten::sum.dim_IntList", ARGS(d({3, 4}), ints({}), true, none())},
      {"aten::mean", ARGS(d({3, 4}), none())},
      {"aten::mean.dim", ARGS(d({3, 4, 2}), ints({1}), true, none())},
      {"aten::mean.dim", ARGS(d({3, 4, 2}), ints({-1, 1}), false, none())},
      {"aten::softmax.int", ARGS(d({3, 4}), -1, none())},
      {"aten::softmax.int", ARGS(d({3, 4}), 0, static_cast<int64_t>(at::kFloat))},
      {"aten::log_softmax.int", ARGS(d({3, 4}), 1, none())},
  };
}

inline std::vector<Case> layout_cases() {
  std::vector<Case> cases{
      {"aten::reshape", ARGS(d({4, 3}).t(), ints({2, 6}))},
      {"aten::_unsafe_view", ARGS(d({3, 4}), ints({12}))},
      {"aten::view", ARGS(d({3, 4}), ints({2, -1}))},
      {"aten::flatten.using_ints", ARGS(d({2, 3, 4}), 1, -1)},
      {"aten::unflatten.int", ARGS(d({2, 6}), 1, ints({3, 2}))},
      {"aten::unsqueeze", ARGS(d({3, 4}), -1)},
      {"aten::squeeze", ARGS(d({3, 1, 4}))},
      {"aten::squeeze.dim", ARGS(d({3, 1, 4}), 1)},
      {"aten::squeeze.dims", ARGS(d({1, 1, 4}), ints({0, 1}))},
      {"aten::alias", ARGS(d({3}))},
      {"aten::clone", ARGS(d({3, 4}).t(), none())},
      {"aten::contiguous", ARGS(d({3, 4}).t(), static_cast<int64_t>(at::MemoryFormat::Contiguous))},
      {"aten::expand", ARGS(d({3, 1}), ints({2, 3, 4}), false)},
      {"aten::to.dtype", ARGS(d({3}), static_cast<int64_t>(at::kFloat), false, false, none())},
      {"aten::to.dtype_layout", ARGS(d({3}), static_cast<int64_t>(at::kFloat), none(), none(),
                                     none(), false, false, none())},
      {"aten::_to_copy",
       ARGS(d({3}), static_cast<int64_t>(at::kFloat), none(), none(), none(), false, none())},
      {"aten::transpose.int", ARGS(d({2, 3, 4}), 0, -1)},
      {"aten::t", ARGS(d({2, 3}))},
      {"aten::permute", ARGS(d({2, 3, 4}), ints({-1, 0, 1}))},
      {"aten::slice.Tensor", ARGS(d({7, 4}), 0, 1, 6, 2)},
      {"aten::slice.Tensor", ARGS(d({7, 4}), -1, none(), -1, 1)},
      {"aten::select.int", ARGS(d({7, 4}), 1, -2)},
      {"aten::split.Tensor", ARGS(d({3, 7}), 3, 1)},
      {"aten::split_with_sizes", ARGS(d({3, 7}), ints({2, 5}), -1)},
      {"aten::chunk", ARGS(d({3, 7}), 2, 1)},
      {"aten::unbind.int", ARGS(d({3, 4}), 1)},
      {"aten::roll", ARGS(d({3, 4}), ints({1, -2}), ints({0, 1}))},
      {"aten::roll", ARGS(d({3, 4}), ints({1}), ints({})), false},
  };
  cases.push_back({"aten::cat", ARGS(list({d({3, 2}), d({3, 4})}), -1)});
  cases.push_back({"aten::cat", ARGS(list({d({0}), d({3, 4})}), 0), false});
  cases.push_back({"aten::stack", ARGS(list({d({3, 2}), d({3, 2})}), 1)});
  return cases;
}

inline std::vector<Case> network_cases() {
  return {
      {"aten::layer_norm", ARGS(d({3, 2, 4}), ints({4}), d({4}), d({4}), 1e-5, true)},
      {"aten::layer_norm", ARGS(d({3, 2, 4}), ints({2, 4}), none(), none(), 1e-5, true)},
      {"aten::group_norm", ARGS(d({2, 6, 3, 3}), 3, d({6}), d({6}), 1e-5, true)},
      {"aten::batch_norm", ARGS(d({3, 4, 2}), d({4}), d({4}), at::zeros({4}, of_type(at::kDouble)),
                                positive({4}), true, 0.1, 1e-5, true)},
      {"aten::batch_norm",
       ARGS(d({3, 4}), d({4}), none(), d({4}), positive({4}), false, 0.1, 1e-5, true)},
      {"aten::conv1d",
       ARGS(d({2, 4, 9}), d({6, 2, 3}), d({6}), ints({2}), ints({1}), ints({1}), 2)},
      {"aten::conv2d",
       ARGS(d({2, 3, 7, 7}), d({4, 3, 3, 3}), none(), ints({1, 2}), ints({1}), ints({2}), 1)},
      {"aten::conv2d",
       ARGS(d({3, 7, 7}), d({4, 3, 3, 3}), d({4}), ints({1}), ints({0}), ints({1}), 1), false},
      {"aten::conv3d",
       ARGS(d({1, 2, 4, 4, 4}), d({2, 2, 3, 3, 3}), d({2}), ints({1}), ints({1}), ints({1}), 1)},
      {"aten::max_pool2d",
       ARGS(d({2, 3, 7, 7}), ints({3, 3}), ints({2, 2}), ints({1, 1}), ints({1, 1}), true)},
      {"aten::avg_pool2d",
       ARGS(d({2, 3, 7, 7}), ints({2, 2}), ints({}), ints({0, 0}), false, true, none())},
      {"aten::adaptive_avg_pool2d", ARGS(d({2, 3, 5, 4}), ints({1, 1}))},
      {"aten::adaptive_avg_pool2d", ARGS(d({2, 3, 5, 4}), ints({2, 2})), false},
      {"aten::cross_entropy_loss", ARGS(d({5, 4}), targets(), none(), 1, 2, 0.0)},
      {"aten::cross_entropy_loss", ARGS(d({5, 4}), targets(), positive({4}), 2, -100, 0.0)},
      {"aten::cross_entropy_loss", ARGS(d({5, 4}), targets(), none(), 0, -100, 0.0)},
      {"aten::cross_entropy_loss", ARGS(d({5, 4}), targets(), none(), 1, -100, 0.1), false},
      {"aten::cross_entropy_loss", ARGS(d({5, 4}), d({5, 4}).softmax(1), none(), 1, -100, 0.0),
       false},
      {"aten::mse_loss", ARGS(d({5, 4}), d({5, 4}), 1)},
      {"aten::mse_loss", ARGS(d({5, 4}), d({5, 4}), 0)},
      {"aten::scaled_dot_product_attention",
       ARGS(heads(5), heads(5), heads(5), none(), 0.0, true, none(), false)},
      {"aten::scaled_dot_product_attention",
       ARGS(heads(5), heads(6), heads(6), d({2, 1, 5, 6}).gt(-1), 0.0, false, 0.3, false)},
      {"aten::scaled_dot_product_attention",
       ARGS(heads(5), heads(6), heads(6), none(), 0.1, false, none(), false), false},
  };
}

inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto& part :
       {matrix_cases(), pointwise_cases(), reduction_cases(), layout_cases(), network_cases()}) {
    cases.insert(cases.end(), part.begin(), part.end());
  }
  return cases;
}

#undef ARGS

}  // namespace weft::executor::tape::testing
