#include "executor/tape/tape.h"

#include <ATen/autocast_mode.h>

#include <utility>

namespace weft::executor::tape {
namespace {

at::Tensor argument_tensor(const torch::jit::Stack& stack, const Plan::Argument& argument) {
  const at::IValue& value = stack[argument.position];
  if (argument.element < 0) return value.isTensor() ? value.toTensor() : at::Tensor();
  const auto element = static_cast<size_t>(argument.element);
  if (value.isTensorList()) return value.toTensorList().get(element);
  return value.toOptionalTensorList().get(element).value_or(at::Tensor());
}

void set_argument(torch::jit::Stack& stack, const Plan::Argument& argument, at::Tensor tensor) {
  at::IValue& value = stack[argument.position];
  if (argument.element < 0) {
    value = std::move(tensor);
    return;
  }
  // Lists are shared by reference; `materialize` made this one for this call.
  const auto element = static_cast<size_t>(argument.element);
  if (value.isTensorList()) {
    value.toTensorList().set(element, std::move(tensor));
  } else {
    value.toOptionalTensorList().set(element, std::move(tensor));
  }
}

// at::autocast's notion of a tensor it may convert.
bool convertible(const at::Tensor& tensor, at::DeviceType device) {
  return tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble &&
         tensor.device().type() == device;
}

// What autocast would do to the arguments before the operator runs.
void convert_arguments(const Plan& plan, at::DeviceType device, torch::jit::Stack& stack) {
  const at::ScalarType lower = at::autocast::get_autocast_dtype(device);
  at::ScalarType type = plan.rule->autocast == Autocast::kFloat ? at::kFloat : lower;
  if (plan.rule->autocast == Autocast::kWidest) {
    for (const Plan::Argument& argument : plan.arguments) {
      const at::Tensor tensor = argument_tensor(stack, argument);
      if (convertible(tensor, device) && tensor.scalar_type() == at::kFloat) type = at::kFloat;
    }
  }
  for (const Plan::Argument& argument : plan.arguments) {
    const at::Tensor tensor = argument_tensor(stack, argument);
    if (!convertible(tensor, device) || tensor.scalar_type() == type) continue;
    set_argument(stack, argument, tensor.to(type));
  }
}

bool is_complex(const Plan& plan, const torch::jit::Stack& stack) {
  for (const Plan::Argument& argument : plan.arguments) {
    const at::Tensor tensor = argument_tensor(stack, argument);
    if (tensor.defined() && tensor.is_complex()) return true;
  }
  return false;
}

}  // namespace

Plan make_plan(const c10::OperatorHandle& op, std::string_view name, at::DeviceType device,
               std::vector<Plan::Argument> arguments) {
  Plan plan;
  plan.arguments = std::move(arguments);
  plan.rule = find_rule(name);
  const c10::DispatchKey key =
      device == at::kCPU ? c10::DispatchKey::AutocastCPU : c10::DispatchKey::AutocastCUDA;
  plan.autocast = op.hasKernelForDispatchKey(key);
  return plan;
}

Tape::Tape(size_t slots, bool keeps)
    : above_(c10::impl::tls_local_dispatch_key_set()), keeps_(keeps), carries_(slots, 0) {}

bool Tape::carries_any(const Plan& plan) const {
  for (const Plan::Argument& argument : plan.arguments) {
    if (carries(argument.slot)) return true;
  }
  return false;
}

void Tape::alias(int32_t from, int32_t to) {
  if (!carries(from)) return;
  want(to);
  if (!keeps_) return;
  Record record;
  record.arguments.resize(1);
  record.arguments[0].slot = from;
  record.results = {to};
  records_.push_back(std::move(record));
}

Tape::Record Tape::begin(const Plan& plan, const torch::jit::Stack& stack) const {
  Record record;
  record.wanted.resize(plan.arguments.size());
  record.arguments.resize(plan.arguments.size());
  for (size_t i = 0; i < plan.arguments.size(); ++i) {
    const Plan::Argument& argument = plan.arguments[i];
    if (!carries(argument.slot)) continue;
    const at::Tensor tensor = argument_tensor(stack, argument);
    record.wanted[i] = true;
    record.arguments[i] = {argument.slot, c10::DimVector(tensor.sizes()), tensor.scalar_type()};
  }
  return record;
}

void Tape::through_autograd(const c10::OperatorHandle& op, const Plan& plan,
                            torch::jit::Stack& stack, Record& record) const {
  const c10::impl::ForceDispatchKeyGuard above(above_);
  record.call = std::make_unique<AutogradRecording>(plan.arguments.size());
  {
    const at::AutoGradMode gradients(true);
    for (size_t i = 0; i < plan.arguments.size(); ++i) {
      if (!record.wanted[i]) continue;
      const Plan::Argument& argument = plan.arguments[i];
      set_argument(stack, argument, record.call->leaf(i, argument_tensor(stack, argument)));
    }
    op.callBoxed(stack);
  }
  std::vector<at::Tensor> results;
  for (at::IValue& result : stack) {
    if (result.isTensor()) {
      results.push_back(result.toTensor());
      if (result.toTensor().defined()) result = result.toTensor().detach();
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> values;
      for (const at::Tensor& tensor : result.toTensorList()) {
        results.push_back(tensor);
        values.push_back(tensor.detach());
      }
      result = values;
    }
  }
  record.call->finish(std::move(results), {});
}

// Fills record.results; false where no result can carry a gradient.
bool Tape::name_results(const ResultSlots& results, const torch::jit::Stack& stack,
                        Record& record) {
  bool any = false;
  const auto name = [&](const at::Tensor& tensor, size_t position, size_t element) {
    const bool read = position < results.size() && element < results[position].size();
    int32_t slot = read ? results[position][element] : kNoSlot;
    const bool carried = tensor.defined() && (tensor.is_floating_point() || tensor.is_complex()) &&
                         (!record.call || record.call->reaches(record.results.size()));
    if (!carried) slot = kNoSlot;
    if (slot != kNoSlot) want(slot);
    any = any || slot != kNoSlot;
    record.results.push_back(slot);
  };
  for (size_t i = 0; i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      name(stack[i].toTensor(), i, 0);
    } else if (stack[i].isTensorList()) {
      const auto list = stack[i].toTensorList();
      for (size_t k = 0; k < list.size(); ++k) name(list.get(k), i, k);
    }
  }
  return any;
}

void Tape::call(const c10::OperatorHandle& op, const Plan& plan, const ResultSlots& results,
                torch::jit::Stack& stack) {
  Record record = begin(plan, stack);
  if (plan.rule != nullptr && !is_complex(plan, stack)) {
    torch::jit::Stack before;
    bool autocast = false;
    for (const c10::DeviceType device : {at::kCPU, at::kCUDA}) {
      if (!at::autocast::is_autocast_enabled(device)) continue;
      autocast = true;
      if (!plan.autocast || plan.rule->autocast == Autocast::kNone) continue;
      before = stack;
      convert_arguments(plan, device, stack);
    }
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    Call call{op, stack, record.wanted, autocast};
    record.backward = plan.rule->run(call);
    if (!record.backward && !before.empty()) stack = std::move(before);
  }
  record.splits = record.backward && plan.rule->splits;
  if (!record.backward) through_autograd(op, plan, stack, record);
  const bool carried = name_results(results, stack, record);
  if (carried && keeps_) records_.push_back(std::move(record));
}

void Tape::finish(std::vector<int32_t> inputs, std::vector<int32_t> outputs,
                  std::vector<int32_t> taps) {
  inputs_ = std::move(inputs);
  outputs_ = std::move(outputs);
  taps_ = std::move(taps);
}

}  // namespace weft::executor::tape
