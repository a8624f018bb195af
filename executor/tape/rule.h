// Backward rules: how the tape runs an operator so that its gradient is a call of explicit backward
// operators, the ones PyTorch's derivatives.yaml names. A rule runs the operator's forward itself
// and returns its backward, a function that holds just what it needs.
//
// The tensors of a call are numbered flat, in schema order: a Tensor or Tensor? argument is one
// (also where it is absent), a Tensor[] one an element; results alike.
//
// A rule need not care for broadcasting and element types: the tape sums a gradient to its
// argument's shape and converts it to its element type. A backward may be called twice, for other
// arguments each time. A rule may return nullptr before it changes the
// stack: the tape then takes autograd for this call.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "executor/aten.h"

namespace weft::executor::tape {

using Tensors = std::vector<at::Tensor>;
using Mask = std::vector<bool>;  // by flat number of a tensor argument: its gradient is wanted

// results: gradients of the results, undefined where none came (not all). arguments: sized to the
// flat arguments; sets those that are wanted, undefined means zero.
using Backward = std::function<void(Tensors& results, const Mask& wanted, Tensors& arguments)>;

struct Call {
  const c10::OperatorHandle& op;
  torch::jit::Stack& stack;  // arguments in schema order; the results afterwards
  const Mask& wanted;
  bool autocast = false;  // is on around the call; not inside it

  const at::IValue& at(size_t i) const { return stack[i]; }
  at::Tensor tensor(size_t i) const { return stack[i].toTensor(); }
  std::optional<at::Tensor> optional(size_t i) const { return stack[i].toOptional<at::Tensor>(); }
  bool wants(size_t flat) const { return wanted[flat]; }
  // The operator as it is; gives its first result.
  at::Tensor run() {
    op.callBoxed(stack);
    return stack[0].isTensor() ? stack[0].toTensor() : at::Tensor();
  }
  void give(at::Tensor result) { stack.assign(1, std::move(result)); }
};

// What autocast does to the floating arguments of an operator on devices where it knows it
// (ATen/autocast_mode.h).
enum class Autocast { kNone, kLower, kFloat, kWidest };

struct Rule {
  std::string_view op;  // "aten::add.Tensor"
  Backward (*run)(Call&);
  Autocast autocast = Autocast::kNone;
  // Gradients of single arguments cost what they are of the whole: worth running apart. (A
  // normalization's kernel makes all of them in one pass.)
  bool splits = false;
};

// nullptr: none.
const Rule* find_rule(std::string_view op);
std::vector<std::string_view> ops_with_rules();  // ascending

std::span<const Rule> attention_rules();
std::span<const Rule> convolution_rules();
std::span<const Rule> layout_rules();
std::span<const Rule> loss_rules();
std::span<const Rule> matrix_rules();
std::span<const Rule> normalization_rules();
std::span<const Rule> pointwise_rules();
std::span<const Rule> reduction_rules();

// A backward with one result and one argument.
template <class Function>
Backward unary(Function function) {
  return [function = std::move(function)](Tensors& results, const Mask&, Tensors& arguments) {
    arguments[0] = function(results[0]);
  };
}

inline at::Tensor scaled(at::Tensor gradient, const at::Scalar& factor) {
  return factor.equal(1) ? std::move(gradient) : gradient * factor;
}

// Dimension d of a tensor of `rank`, counted from the front.
inline int64_t wrap(int64_t d, int64_t rank) {
  return d < 0 ? d + std::max<int64_t>(rank, 1) : d;
}

}  // namespace weft::executor::tape
