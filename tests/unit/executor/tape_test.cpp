// Every backward rule of the tape against autograd, its oracle: on the CPU, or on the card of a
// machine that has one.
#include "executor/tape/tape.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

namespace weft::executor::tape::testing {
namespace {

using torch::jit::Stack;

struct Case {
  std::string op;
  std::function<Stack()> arguments;  // fresh tensors, in float64
  bool rule = true;                  // false: the rule leaves this call to autograd
};

at::DeviceType device() {
  return at::hasCUDA() ? at::kCUDA : at::kCPU;
}
at::TensorOptions of_type(at::ScalarType type) {
  return at::device(device()).dtype(type);
}
at::Tensor d(at::IntArrayRef sizes) {
  return at::randn(sizes, of_type(at::kDouble));
}
at::Tensor positive(at::IntArrayRef sizes) {
  return at::rand(sizes, of_type(at::kDouble)) + 0.5;
}
at::Tensor below(int64_t n, at::IntArrayRef sizes) {
  return at::randint(n, sizes, of_type(at::kLong));
}
at::IValue ints(std::vector<int64_t> list) {
  return c10::List<int64_t>(list);
}
at::IValue none() {
  return at::IValue();
}

std::vector<Case> matrix_cases() {
  return {
      {"aten::linear",
       [] {
         return Stack{d({3, 5}), d({4, 5}), d({4})};
       }},
      {"aten::linear",
       [] {
         return Stack{d({2, 3, 5}), d({4, 5}), none()};
       }},
      {"aten::linear",
       [] {
         return Stack{d({5, 3}).t(), d({5, 4}).t(), d({4})};
       }},
      {"aten::linear",
       [] {
         return Stack{d({5}), d({4, 5}), d({4})};
       },
       false},
      {"aten::addmm",
       [] {
         return Stack{d({4}), d({3, 5}), d({5, 4}), 1, 1};
       }},
      {"aten::addmm",
       [] {
         return Stack{d({3, 4}), d({5, 3}).t(), d({4, 5}).t(), 0.5, 2.0};
       }},
      {"aten::mm",
       [] {
         return Stack{d({3, 5}), d({5, 4})};
       }},
      {"aten::mm",
       [] {
         return Stack{d({5, 3}).t(), d({4, 5}).t()};
       }},
      {"aten::bmm",
       [] {
         return Stack{d({2, 3, 5}), d({2, 5, 4})};
       }},
      {"aten::matmul",
       [] {
         return Stack{d({2, 1, 3, 5}), d({6, 5, 4})};
       }},
      {"aten::matmul",
       [] {
         return Stack{d({2, 3, 5}), d({5, 4})};
       }},
      {"aten::matmul",
       [] {
         return Stack{d({3, 5}), d({2, 5, 4})};
       }},
      {"aten::matmul",
       [] {
         return Stack{d({5}), d({5, 4})};
       },
       false},
      {"aten::embedding",
       [] {
         return Stack{d({7, 4}), below(7, {3, 2}), -1, false, false};
       }},
      {"aten::embedding",
       [] {
         return Stack{d({7, 4}), below(3, {6}), 1, true, false};
       }},
  };
}

std::vector<Case> pointwise_cases() {
  std::vector<Case> cases{
      {"aten::add.Tensor",
       [] {
         return Stack{d({3, 4}), d({4}), 1};
       }},
      {"aten::add.Tensor",
       [] {
         return Stack{d({3, 1}), d({2, 3, 4}), 2.5};
       }},
      {"aten::add.Tensor",
       [] {
         return Stack{d({3, 4}), d({3, 4}).to(at::kFloat), 1};
       }},
      {"aten::add.Scalar",
       [] {
         return Stack{d({3}), 2.5, 1};
       }},
      {"aten::sub.Tensor",
       [] {
         return Stack{d({3, 4}), d({3, 1}), 2};
       }},
      {"aten::sub.Scalar",
       [] {
         return Stack{d({3}), 2.5, 3};
       }},
      {"aten::rsub.Tensor",
       [] {
         return Stack{d({3, 4}), d({4}), 2};
       }},
      {"aten::rsub.Scalar",
       [] {
         return Stack{d({3}), 2.5, 3};
       }},
      {"aten::mul.Tensor",
       [] {
         return Stack{d({3, 4}), d({})};
       }},
      {"aten::mul.Tensor",
       [] {
         return Stack{d({3, 1}), d({1, 4})};
       }},
      {"aten::mul.Scalar",
       [] {
         return Stack{d({3}), 2.5};
       }},
      {"aten::div.Tensor",
       [] {
         return Stack{d({3, 4}), positive({4})};
       }},
      {"aten::div.Scalar",
       [] {
         return Stack{d({3}), 2.5};
       }},
      {"aten::pow.Tensor_Scalar",
       [] {
         return Stack{positive({3}), 3};
       }},
      {"aten::pow.Tensor_Scalar",
       [] {
         return Stack{positive({3}), -0.5};
       }},
      {"aten::pow.Tensor_Scalar",
       [] {
         return Stack{positive({3}), 0.0};
       },
       false},
      {"aten::sqrt",
       [] {
         return Stack{positive({3, 2})};
       }},
      {"aten::rsqrt",
       [] {
         return Stack{positive({3, 2})};
       }},
      {"aten::log",
       [] {
         return Stack{positive({3, 2})};
       }},
      {"aten::gelu",
       [] {
         return Stack{d({3, 4}), "none"};
       }},
      {"aten::gelu",
       [] {
         return Stack{d({3, 4}), "tanh"};
       }},
      {"aten::leaky_relu",
       [] {
         return Stack{d({3, 4}), 0.1};
       }},
      {"aten::masked_fill.Scalar",
       [] {
         return Stack{d({3, 4}), d({3, 4}).gt(0), -5.0};
       }},
      {"aten::masked_fill.Scalar",
       [] {
         return Stack{d({4}), d({3, 4}).gt(0), 0.0};
       }},
      {"aten::where.self",
       [] {
         return Stack{d({3, 4}).gt(0), d({3, 1}), d({})};
       }},
      {"aten::dropout",
       [] {
         return Stack{d({30, 4}), 0.3, true};
       }},
      {"aten::dropout",
       [] {
         return Stack{d({30, 4}), 0.3, false};
       }},
      {"aten::dropout",
       [] {
         return Stack{d({3, 4}), 1.0, true};
       },
       false},
  };
  for (const char* op : {"neg", "exp", "tanh", "sigmoid", "relu", "sin", "cos", "abs", "silu",
                         "hardswish", "hardsigmoid"}) {
    cases.push_back({std::string("aten::") + op, [] { return Stack{d({3, 4}) * 4}; }});
  }
  return cases;
}

std::vector<Case> reduction_cases() {
  return {
      {"aten::sum",
       [] {
         return Stack{d({3, 4}), none()};
       }},
      {"aten::sum",
       [] {
         return Stack{d({}), none()};
       }},
      {"aten::sum.dim_IntList",
       [] {
         return Stack{d({3, 4, 2}), ints({-1, 0}), false, none()};
       }},
      {"aten::sum.dim_IntList",
       [] {
         return Stack{d({3, 4}), ints({}), true, none()};
       }},
      {"aten::mean",
       [] {
         return Stack{d({3, 4}), none()};
       }},
      {"aten::mean.dim",
       [] {
         return Stack{d({3, 4, 2}), ints({1}), true, none()};
       }},
      {"aten::mean.dim",
       [] {
         return Stack{d({3, 4, 2}), ints({-1, 1}), false, none()};
       }},
      {"aten::softmax.int",
       [] {
         return Stack{d({3, 4}), -1, none()};
       }},
      {"aten::softmax.int",
       [] {
         return Stack{d({3, 4}), 0, static_cast<int64_t>(at::kFloat)};
       }},
      {"aten::log_softmax.int",
       [] {
         return Stack{d({3, 4}), 1, none()};
       }},
  };
}

std::vector<Case> layout_cases() {
  std::vector<Case> cases{
      {"aten::reshape",
       [] {
         return Stack{d({4, 3}).t(), ints({2, 6})};
       }},
      {"aten::_unsafe_view",
       [] {
         return Stack{d({3, 4}), ints({12})};
       }},
      {"aten::view",
       [] {
         return Stack{d({3, 4}), ints({2, -1})};
       }},
      {"aten::flatten.using_ints",
       [] {
         return Stack{d({2, 3, 4}), 1, -1};
       }},
      {"aten::unflatten.int",
       [] {
         return Stack{d({2, 6}), 1, ints({3, 2})};
       }},
      {"aten::unsqueeze",
       [] {
         return Stack{d({3, 4}), -1};
       }},
      {"aten::squeeze",
       [] {
         return Stack{d({3, 1, 4})};
       }},
      {"aten::squeeze.dim",
       [] {
         return Stack{d({3, 1, 4}), 1};
       }},
      {"aten::squeeze.dims",
       [] {
         return Stack{d({1, 1, 4}), ints({0, 1})};
       }},
      {"aten::alias", [] { return Stack{d({3})}; }},
      {"aten::clone",
       [] {
         return Stack{d({3, 4}).t(), none()};
       }},
      {"aten::contiguous",
       [] {
         return Stack{d({3, 4}).t(), static_cast<int64_t>(at::MemoryFormat::Contiguous)};
       }},
      {"aten::expand",
       [] {
         return Stack{d({3, 1}), ints({2, 3, 4}), false};
       }},
      {"aten::to.dtype",
       [] {
         return Stack{d({3}), static_cast<int64_t>(at::kFloat), false, false, none()};
       }},
      {"aten::to.dtype_layout",
       [] {
         return Stack{
             d({3}), static_cast<int64_t>(at::kFloat), none(), none(), none(), false, false,
             none()};
       }},
      {"aten::_to_copy",
       [] {
         return Stack{d({3}), static_cast<int64_t>(at::kFloat), none(), none(), none(), false,
                      none()};
       }},
      {"aten::transpose.int",
       [] {
         return Stack{d({2, 3, 4}), 0, -1};
       }},
      {"aten::t",
       [] {
         return Stack{d({2, 3})};
       }},
      {"aten::permute",
       [] {
         return Stack{d({2, 3, 4}), ints({-1, 0, 1})};
       }},
      {"aten::slice.Tensor",
       [] {
         return Stack{d({7, 4}), 0, 1, 6, 2};
       }},
      {"aten::slice.Tensor",
       [] {
         return Stack{d({7, 4}), -1, none(), -1, 1};
       }},
      {"aten::select.int",
       [] {
         return Stack{d({7, 4}), 1, -2};
       }},
      {"aten::split.Tensor",
       [] {
         return Stack{d({3, 7}), 3, 1};
       }},
      {"aten::split_with_sizes",
       [] {
         return Stack{d({3, 7}), ints({2, 5}), -1};
       }},
      {"aten::chunk",
       [] {
         return Stack{d({3, 7}), 2, 1};
       }},
      {"aten::unbind.int",
       [] {
         return Stack{d({3, 4}), 1};
       }},
      {"aten::roll",
       [] {
         return Stack{d({3, 4}), ints({1, -2}), ints({0, 1})};
       }},
      {"aten::roll",
       [] {
         return Stack{d({3, 4}), ints({1}), ints({})};
       },
       false},
  };
  const auto list = [](std::vector<at::Tensor> tensors) { return c10::List<at::Tensor>(tensors); };
  cases.push_back({"aten::cat", [list] { return Stack{list({d({3, 2}), d({3, 4})}), -1}; }});
  cases.push_back({"aten::cat", [list] { return Stack{list({d({0}), d({3, 4})}), 0}; }, false});
  cases.push_back({"aten::stack", [list] { return Stack{list({d({3, 2}), d({3, 2})}), 1}; }});
  return cases;
}

std::vector<Case> network_cases() {
  const auto targets = [] { return below(4, {5}); };
  const auto heads = [](int64_t length) { return d({2, 3, length, 8}); };
  return {
      {"aten::layer_norm",
       [] {
         return Stack{d({3, 2, 4}), ints({4}), d({4}), d({4}), 1e-5, true};
       }},
      {"aten::layer_norm",
       [] {
         return Stack{d({3, 2, 4}), ints({2, 4}), none(), none(), 1e-5, true};
       }},
      {"aten::group_norm",
       [] {
         return Stack{d({2, 6, 3, 3}), 3, d({6}), d({6}), 1e-5, true};
       }},
      {"aten::batch_norm",
       [] {
         return Stack{d({3, 4, 2}),  d({4}), d({4}), at::zeros({4}, of_type(at::kDouble)),
                      positive({4}), true,   0.1,    1e-5,
                      true};
       }},
      {"aten::batch_norm",
       [] {
         return Stack{d({3, 4}), d({4}), none(), d({4}), positive({4}), false, 0.1, 1e-5, true};
       }},
      {"aten::conv1d",
       [] {
         return Stack{d({2, 4, 9}), d({6, 2, 3}), d({6}), ints({2}), ints({1}), ints({1}), 2};
       }},
      {"aten::conv2d",
       [] {
         return Stack{d({2, 3, 7, 7}), d({4, 3, 3, 3}), none(), ints({1, 2}),
                      ints({1}),       ints({2}),       1};
       }},
      {"aten::conv2d",
       [] {
         return Stack{d({3, 7, 7}), d({4, 3, 3, 3}), d({4}), ints({1}), ints({0}), ints({1}), 1};
       },
       false},
      {"aten::conv3d",
       [] {
         return Stack{d({1, 2, 4, 4, 4}), d({2, 2, 3, 3, 3}), d({2}), ints({1}),
                      ints({1}),          ints({1}),          1};
       }},
      {"aten::max_pool2d",
       [] {
         return Stack{d({2, 3, 7, 7}), ints({3, 3}), ints({2, 2}),
                      ints({1, 1}),    ints({1, 1}), true};
       }},
      {"aten::avg_pool2d",
       [] {
         return Stack{d({2, 3, 7, 7}), ints({2, 2}), ints({}), ints({0, 0}), false, true, none()};
       }},
      {"aten::adaptive_avg_pool2d",
       [] {
         return Stack{d({2, 3, 5, 4}), ints({1, 1})};
       }},
      {"aten::adaptive_avg_pool2d",
       [] {
         return Stack{d({2, 3, 5, 4}), ints({2, 2})};
       },
       false},
      {"aten::cross_entropy_loss",
       [targets] {
         return Stack{d({5, 4}), targets(), none(), 1, 2, 0.0};
       }},
      {"aten::cross_entropy_loss",
       [targets] {
         return Stack{d({5, 4}), targets(), positive({4}), 2, -100, 0.0};
       }},
      {"aten::cross_entropy_loss",
       [targets] {
         return Stack{d({5, 4}), targets(), none(), 0, -100, 0.0};
       }},
      {"aten::cross_entropy_loss",
       [targets] {
         return Stack{d({5, 4}), targets(), none(), 1, -100, 0.1};
       },
       false},
      {"aten::cross_entropy_loss",
       [] {
         return Stack{d({5, 4}), d({5, 4}).softmax(1), none(), 1, -100, 0.0};
       },
       false},
      {"aten::mse_loss",
       [] {
         return Stack{d({5, 4}), d({5, 4}), 1};
       }},
      {"aten::mse_loss",
       [] {
         return Stack{d({5, 4}), d({5, 4}), 0};
       }},
      {"aten::scaled_dot_product_attention",
       [heads] { return Stack{heads(5), heads(5), heads(5), none(), 0.0, true, none(), false}; }},
      {"aten::scaled_dot_product_attention",
       [heads] {
         return Stack{heads(5), heads(6), heads(6), d({2, 1, 5, 6}).gt(-1), 0.0, false, 0.3, false};
       }},
      {"aten::scaled_dot_product_attention",
       [heads] { return Stack{heads(5), heads(6), heads(6), none(), 0.1, false, none(), false}; },
       false},
  };
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto& part :
       {matrix_cases(), pointwise_cases(), reduction_cases(), layout_cases(), network_cases()}) {
    cases.insert(cases.end(), part.begin(), part.end());
  }
  return cases;
}

c10::OperatorHandle handle(const std::string& op) {
  const auto dot = op.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      op.substr(0, dot).c_str(), dot == std::string::npos ? "" : op.substr(dot + 1).c_str());
}

// The tensors of a call, flat: each gets slot = its number.
Plan plan_of(const std::string& op, const Stack& stack) {
  const c10::OperatorHandle found = handle(op);
  std::vector<Plan::Argument> arguments;
  const auto& schema = found.schema().arguments();
  for (size_t i = 0; i < schema.size(); ++i) {
    const auto next = [&] { return static_cast<int32_t>(arguments.size()); };
    const std::string type = schema[i].type()->str();
    if (type == "Tensor" || type == "Tensor?") {
      arguments.push_back({i, -1, stack[i].isTensor() ? next() : kNoSlot});
    } else if (type == "Tensor[]") {
      for (size_t k = 0; k < stack[i].toTensorList().size(); ++k) {
        arguments.push_back({i, static_cast<int32_t>(k), next()});
      }
    }
  }
  return make_plan(found, op, device(), arguments);
}

at::Tensor flat(const Stack& stack, const Plan::Argument& argument) {
  const at::IValue& value = stack[argument.position];
  if (argument.element < 0) return value.isTensor() ? value.toTensor() : at::Tensor();
  return value.toTensorList().get(static_cast<size_t>(argument.element));
}

Stack copy(const Stack& stack) {
  Stack result;
  for (const at::IValue& value : stack) {
    if (value.isTensor()) {
      result.emplace_back(value.toTensor().detach());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorList()) list.push_back(tensor.detach());
      result.emplace_back(list);
    } else {
      result.push_back(value);
    }
  }
  return result;
}

std::vector<at::Tensor> tensors_of(const Stack& results) {
  std::vector<at::Tensor> tensors;
  for (const at::IValue& value : results) {
    if (value.isTensor()) tensors.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) tensors.push_back(tensor);
    }
  }
  return tensors;
}

struct Outcome {
  std::vector<at::Tensor> results, gradients;  // flat
};

// Starting gradients by the number of the result; every other one of a list is left out.
std::vector<at::Tensor> start(const std::vector<at::Tensor>& results) {
  std::vector<at::Tensor> gradients(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (i % 2 == 1 || !results[i].is_floating_point()) continue;
    at::manual_seed(100 + i);
    gradients[i] = at::randn_like(results[i].detach());
  }
  return gradients;
}

Outcome by_autograd(const std::string& op, const Plan& plan, const Stack& given,
                    const std::vector<size_t>& wanted) {
  Stack stack = copy(given);
  std::vector<at::Tensor> leaves;
  for (size_t i : wanted) {
    const Plan::Argument& argument = plan.arguments[i];
    at::Tensor leaf = flat(stack, argument).set_requires_grad(true);
    leaves.push_back(leaf);
  }
  at::manual_seed(7);
  handle(op).callBoxed(stack);
  Outcome outcome{tensors_of(stack), {}};
  const auto gradients = start(outcome.results);
  std::vector<at::Tensor> roots, seeds;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    roots.push_back(outcome.results[i]);
    seeds.push_back(gradients[i]);
  }
  outcome.gradients = torch::autograd::grad(roots, leaves, seeds, false, false, true);
  return outcome;
}

Outcome by_tape(const std::string& op, const Plan& plan, const Stack& given,
                const std::vector<size_t>& wanted) {
  Stack stack = copy(given);
  const auto first_result = static_cast<int32_t>(plan.arguments.size());
  constexpr int32_t kResults = 8;
  Tape tape(static_cast<size_t>(first_result + kResults));
  std::vector<int32_t> inputs, outputs;
  for (size_t i : wanted) {
    inputs.push_back(static_cast<int32_t>(i));
    tape.want(inputs.back());
  }
  at::manual_seed(7);
  {
    const Tape::Below below;
    ResultSlots slots(1);
    for (int32_t k = 0; k < kResults; ++k) {
      outputs.push_back(first_result + k);
      slots[0].push_back(outputs.back());
    }
    tape.call(handle(op), plan, slots, stack);
  }
  Outcome outcome{tensors_of(stack), {}};
  tape.finish(inputs, outputs, {});
  const auto gradients = start(outcome.results);
  std::vector<Seed> seeds;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined()) seeds.push_back({false, i, gradients[i]});
  }
  outcome.gradients = tape.backward(std::move(seeds));
  return outcome;
}

void expect_same(const Outcome& tape, const Outcome& autograd, double tolerance,
                 double on_card = 1e-12) {
  ASSERT_EQ(tape.results.size(), autograd.results.size());
  for (size_t i = 0; i < tape.results.size(); ++i) {
    EXPECT_FALSE(tape.results[i].requires_grad());
    EXPECT_EQ(tape.results[i].scalar_type(), autograd.results[i].scalar_type());
    // On a card a kernel may add in another order from call to call.
    const at::Tensor &a = tape.results[i], b = autograd.results[i].detach();
    EXPECT_TRUE(device() == at::kCPU ? at::equal(a, b) : at::allclose(a, b, on_card, on_card))
        << "result " << i;
  }
  ASSERT_EQ(tape.gradients.size(), autograd.gradients.size());
  for (size_t i = 0; i < tape.gradients.size(); ++i) {
    const at::Tensor &a = tape.gradients[i], &b = autograd.gradients[i];
    ASSERT_EQ(a.defined(), b.defined()) << "gradient " << i;
    if (!a.defined()) continue;
    EXPECT_EQ(a.scalar_type(), b.scalar_type());
    ASSERT_EQ(a.sizes(), b.sizes());
    EXPECT_TRUE(at::allclose(a, b, tolerance, tolerance)) << "gradient " << i << "\n" << a << b;
  }
}

// Each tensor argument alone, then all of them.
std::vector<std::vector<size_t>> choices(const Plan& plan, const Stack& stack) {
  std::vector<std::vector<size_t>> result;
  std::vector<size_t> all;
  for (size_t i = 0; i < plan.arguments.size(); ++i) {
    const at::Tensor tensor = flat(stack, plan.arguments[i]);
    // The statistics of batch norm and the weights of classes have no gradient in PyTorch either.
    const bool fixed = (plan.rule->op == "aten::batch_norm" && i > 2) ||
                       (plan.rule->op == "aten::cross_entropy_loss" && i == 2);
    if (!tensor.defined() || !tensor.is_floating_point() || fixed) continue;
    all.push_back(i);
    result.push_back({i});
  }
  result.push_back(all);
  return result;
}

TEST(Tape, EveryRuleEqualsAutograd) {
  for (const Case& one : all_cases()) {
    at::manual_seed(3);
    const Stack stack = one.arguments();
    const Plan plan = plan_of(one.op, stack);
    ASSERT_NE(plan.rule, nullptr) << one.op;
    for (const auto& wanted : choices(plan, stack)) {
      SCOPED_TRACE(one.op + " with respect to " + std::to_string(wanted[0]) +
                   (wanted.size() > 1 ? " and more" : ""));
      expect_same(by_tape(one.op, plan, stack, wanted), by_autograd(one.op, plan, stack, wanted),
                  1e-12);
    }
  }
}

TEST(Tape, EveryRuleIsTestedAndDeclinesOnlyWhereExpected) {
  std::map<std::string_view, int> tested;
  for (const Case& one : all_cases()) {
    Stack stack = one.arguments();
    const Plan plan = plan_of(one.op, stack);
    Mask wanted(plan.arguments.size(), false);
    wanted[plan.rule->op == "aten::where.self" ? 1 : 0] = true;
    const c10::OperatorHandle op = handle(one.op);
    const Tape::Below below;
    Call call{op, stack, wanted};
    // No kernel of attention takes float64 on a card; under autocast they are compared below.
    const bool no_kernel = device() == at::kCUDA && one.op == "aten::scaled_dot_product_attention";
    EXPECT_EQ(plan.rule->run(call) != nullptr, one.rule && !no_kernel) << one.op;
    if (one.rule) ++tested[plan.rule->op];
  }
  for (std::string_view op : ops_with_rules()) EXPECT_GT(tested[op], 0) << op;
}

TEST(Tape, UnderAutocastTheSameArgumentsAreConverted) {
  at::autocast::set_autocast_enabled(device(), true);
  at::autocast::set_autocast_dtype(device(), at::kBFloat16);
  at::autocast::set_autocast_cache_enabled(false);
  int compared = 0;
  for (const Case& one : all_cases()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      at::manual_seed(3);
      Stack stack = one.arguments();
      for (at::IValue& value : stack) {
        const bool real = value.isTensor() && value.toTensor().is_floating_point();
        if (real) value = value.toTensor().to(type);
        if (!value.isTensorList()) continue;
        auto list = value.toTensorList();
        list.set(0, at::Tensor(list.get(0)).to(type));
        for (size_t k = 1; k < list.size(); ++k)
          list.set(k, at::Tensor(list.get(k)).to(at::kFloat));
      }
      const Plan plan = plan_of(one.op, stack);
      const auto wanted = choices(plan, stack).back();
      SCOPED_TRACE(one.op + " of " + c10::toString(type));
      Outcome autograd;
      try {
        autograd = by_autograd(one.op, plan, stack, wanted);
      } catch (const c10::Error&) {
        continue;  // mixed types that PyTorch refuses
      }
      expect_same(by_tape(one.op, plan, stack, wanted), autograd, 2e-2, 1e-3);
      ++compared;
    }
  }
  at::autocast::set_autocast_enabled(device(), false);
  at::autocast::set_autocast_cache_enabled(true);
  EXPECT_GT(compared, 150);
}

// x feeds two operators through names of its own, one of them without a rule; the sum has the order
// of the names.
TEST(Tape, GradientsOfNamesJoinInReverseOrder) {
  const at::Tensor x = d({4});
  Tape tape(6);
  tape.want(0);
  Stack a{x}, b{x};
  {
    const Tape::Below below;
    tape.alias(0, 1);
    tape.call(handle("aten::tanh"),
              make_plan(handle("aten::tanh"), "aten::tanh", device(), {{0, -1, 1}}), {{2}}, a);
    tape.alias(0, 3);
    const Plan plan = make_plan(handle("aten::erf"), "aten::erf", device(), {{0, -1, 3}});
    ASSERT_EQ(plan.rule, nullptr);
    tape.call(handle("aten::erf"), plan, {{4}}, b);
    tape.alias(0, 5);  // nobody's gradient comes
  }
  tape.finish({0}, {2, 4}, {5});
  const auto gradients = tape.backward({{false, 0, at::ones({4}, of_type(at::kDouble))},
                                        {false, 1, at::ones({4}, of_type(at::kDouble))}});
  const at::Tensor leaf = x.detach().set_requires_grad(true);
  const auto expected = torch::autograd::grad(
      {leaf.tanh(), leaf.erf()}, {leaf},
      {at::ones({4}, of_type(at::kDouble)), at::ones({4}, of_type(at::kDouble))});
  EXPECT_TRUE(at::allclose(gradients[0], expected[0], 1e-15, 1e-15));
}

}  // namespace
}  // namespace weft::executor::tape::testing
