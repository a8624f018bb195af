// Every backward rule of the tape against autograd, its oracle: on the CPU, or on the card of a
// machine that has one.
#include "executor/tape/tape.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/unit/executor/tape_cases.h"

namespace weft::executor::tape::testing {
namespace {

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

// bf16 autocast while it lives, where asked for: forward only, as training does.
class ForwardAutocast {
 public:
  explicit ForwardAutocast(bool on) : on_(on) {
    if (!on_) return;
    at::autocast::set_autocast_enabled(device(), true);
    at::autocast::set_autocast_dtype(device(), at::kBFloat16);
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~ForwardAutocast() {
    if (!on_) return;
    at::autocast::set_autocast_enabled(device(), false);
    at::autocast::set_autocast_cache_enabled(true);
  }
  ForwardAutocast(const ForwardAutocast&) = delete;
  ForwardAutocast& operator=(const ForwardAutocast&) = delete;

 private:
  bool on_;
};

Outcome by_autograd(const std::string& op, const Plan& plan, const Stack& given,
                    const std::vector<size_t>& wanted, bool autocast = false) {
  Stack stack = copy(given);
  std::vector<at::Tensor> leaves;
  for (size_t i : wanted) {
    const Plan::Argument& argument = plan.arguments[i];
    at::Tensor leaf = flat(stack, argument).set_requires_grad(true);
    leaves.push_back(leaf);
  }
  at::manual_seed(7);
  {
    const ForwardAutocast on(autocast);
    handle(op).callBoxed(stack);
  }
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

// first: in two parts, the first of which makes the gradient of wanted[first] (or none).
Outcome by_tape(const std::string& op, const Plan& plan, const Stack& given,
                const std::vector<size_t>& wanted, bool autocast = false,
                std::optional<size_t> first = std::nullopt) {
  Stack stack = copy(given);
  const auto first_result = static_cast<int32_t>(plan.arguments.size());
  constexpr int32_t kResults = 8;
  std::optional<ForwardAutocast> on(std::in_place, autocast);
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
  on.reset();
  Outcome outcome{tensors_of(stack), {}};
  tape.finish(inputs, outputs, {});
  const auto gradients = start(outcome.results);
  std::vector<Seed> seeds;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined()) seeds.push_back({false, i, gradients[i]});
  }
  if (!first) {
    outcome.gradients = tape.backward(std::move(seeds));
    return outcome;
  }
  std::vector<bool> early(wanted.size());
  if (*first < early.size()) early[*first] = true;
  outcome.gradients = tape.backward_first(std::move(seeds), early);
  const auto rest = tape.backward_rest();
  for (size_t i = 0; i < early.size(); ++i) {
    EXPECT_FALSE((early[i] ? rest[i] : outcome.gradients[i]).defined()) << i;
    if (!early[i]) outcome.gradients[i] = rest[i];
  }
  return outcome;
}

// How far results of the tape and of autograd may be apart. On a card a kernel may add in another
// order from call to call; a matmul folds a batch into rows or not as its operands require
// gradients.
double results_tolerance(const std::string& op, double where_kernels_differ) {
  return device() == at::kCPU && op != "aten::matmul" ? 0 : where_kernels_differ;
}

void expect_same(const Outcome& tape, const Outcome& autograd, double tolerance,
                 double of_results) {
  ASSERT_EQ(tape.results.size(), autograd.results.size());
  for (size_t i = 0; i < tape.results.size(); ++i) {
    EXPECT_FALSE(tape.results[i].requires_grad());
    EXPECT_EQ(tape.results[i].scalar_type(), autograd.results[i].scalar_type());
    const at::Tensor &a = tape.results[i], b = autograd.results[i].detach();
    ASSERT_EQ(a.sizes(), b.sizes());
    EXPECT_TRUE(at::allclose(a, b, of_results, of_results)) << "result " << i;
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
                  1e-12, results_tolerance(one.op, 1e-12));
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
        autograd = by_autograd(one.op, plan, stack, wanted, true);
      } catch (const c10::Error&) {
        continue;  // mixed types that PyTorch refuses
      }
      expect_same(by_tape(one.op, plan, stack, wanted, true), autograd, 2e-2,
                  results_tolerance(one.op, 1e-3));
      ++compared;
    }
  }
  EXPECT_GT(compared, 150);
}

// On a card autocast knows nll_loss alone: the logarithms keep the type of the logits. Here the
// plan is told that nothing is known of the whole.
TEST(Tape, CrossEntropyWhereAutocastKnowsItsSecondHalfAlone) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    at::manual_seed(3);
    const at::Tensor logits = d({5, 4}).to(type);
    const at::Tensor targets = at::arange(5, of_type(at::kLong)).remainder(4);
    for (const at::Tensor& weight : {at::Tensor(), at::rand({4}, of_type(type))}) {
      const at::IValue classes = weight.defined() ? at::IValue(weight) : at::IValue();
      const Stack stack{logits, targets, classes, 1, -100, 0.0};
      Plan plan = plan_of("aten::cross_entropy_loss", stack);
      plan.autocast = false;
      const Outcome found = by_tape("aten::cross_entropy_loss", plan, stack, {0}, true);
      const at::Tensor leaf = logits.detach().set_requires_grad(true);
      const at::Tensor loss = at::nll_loss(at::log_softmax(leaf, 1).to(at::kFloat), targets,
                                           weight.defined() ? weight.to(at::kFloat) : weight);
      const auto gradients = torch::autograd::grad({loss}, {leaf}, start({loss}));
      expect_same(found, {{loss}, gradients}, 1e-12, results_tolerance("", 1e-12));
    }
  }
}

// Whatever the first part is asked for, the parts together have the bits of the whole; what the
// rule says can run apart is not run in the first part.
TEST(Tape, ABackwardInTwoPartsHasTheBitsOfTheWhole) {
  int compared = 0;
  for (const Case& one : all_cases()) {
    at::manual_seed(3);
    const Stack stack = one.arguments();
    const Plan plan = plan_of(one.op, stack);
    const auto wanted = choices(plan, stack).back();
    const Outcome whole = by_tape(one.op, plan, stack, wanted);
    for (size_t first = 0; first <= wanted.size(); ++first) {  // one input, or none
      SCOPED_TRACE(one.op + ", first " + std::to_string(first));
      const Outcome parts = by_tape(one.op, plan, stack, wanted, false, first);
      ASSERT_EQ(parts.gradients.size(), whole.gradients.size());
      for (size_t i = 0; i < whole.gradients.size(); ++i) {
        const at::Tensor &a = whole.gradients[i], &b = parts.gradients[i];
        ASSERT_EQ(a.defined(), b.defined()) << i;
        if (!a.defined()) continue;
        EXPECT_TRUE(device() == at::kCPU ? at::equal(a, b) : at::allclose(a, b, 1e-12, 1e-12)) << i;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 400);
}

// y = (tanh(w) x) + tanh(w) x' where only x is early: what leads to w alone waits, and w's two
// contributions add in the order of the whole.
TEST(Tape, WhatLeadsToWeightsAloneWaits) {
  const auto run = [](bool split) {
    at::manual_seed(5);
    const at::Tensor x = d({3, 4}), w = d({4, 4});
    Tape tape(6);
    tape.want(0);
    tape.want(1);
    {
      const Tape::Below below;
      Stack a{w}, b, c, e;
      const auto call = [&](const char* op, std::vector<Plan::Argument> arguments, int32_t result,
                            Stack& stack) {
        tape.call(handle(op), make_plan(handle(op), op, device(), std::move(arguments)), {{result}},
                  stack);
      };
      call("aten::tanh", {{0, -1, 1}}, 2, a);
      b = {x, a[0]};
      call("aten::mm", {{0, -1, 0}, {1, -1, 2}}, 3, b);
      c = {b[0], a[0]};
      call("aten::mm", {{0, -1, 3}, {1, -1, 2}}, 4, c);
      e = {c[0]};
      call("aten::erf", {{0, -1, 4}}, 5, e);  // no rule
    }
    tape.finish({0, 1}, {5}, {});
    const at::Tensor seed = at::ones({3, 4}, of_type(at::kDouble));
    if (!split) return tape.backward({{false, 0, seed}});
    auto found = tape.backward_first({{false, 0, seed}}, {true, false});
    EXPECT_TRUE(found[0].defined() && !found[1].defined());
    auto rest = tape.backward_rest();
    EXPECT_TRUE(!rest[0].defined() && rest[1].defined());
    found[1] = rest[1];
    return found;
  };
  const auto whole = run(false), parts = run(true);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(whole[i], parts[i])) << i;
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
