#include <fmt/format.h>

#include <algorithm>

#include "executor/runtime_impl.h"

namespace weft::executor {
namespace {

constexpr std::string_view kOptimizerPrefix = "weft.optimizer.";

Status check_sizes(const std::string& name, const at::Tensor& have, const at::Tensor& given) {
  if (have.sizes() == given.sizes()) return {};
  return make_error(
      Code::kInvalid,
      fmt::format("{} has shape [{}] in the given weights, the model wants [{}]", name,
                  fmt::join(given.sizes(), ", "), fmt::join(have.sizes(), ", ")),
      "load weights of the same model");
}

// "exp_avg/layer.weight" -> "layer.weight"
std::string_view parameter_of(std::string_view optimizer_key) {
  const auto slash = optimizer_key.find('/');
  return slash == std::string_view::npos ? std::string_view() : optimizer_key.substr(slash + 1);
}

}  // namespace

std::map<std::string, at::Tensor> RuntimeImpl::state() const {
  std::map<std::string, at::Tensor> result;
  for (const Parameter& parameter : parameters_) {
    if (parameter.owner() != options_.stage) continue;
    for (int32_t leaf : parameter.leaves) {
      result[graph_.leaves[static_cast<size_t>(leaf)].target] = parameter.value.detach();
    }
  }
  for (const HeldTensor& held : held_) {
    if (!held.persistent) continue;
    for (const std::string& name : held.names) {
      // A separately exported evaluation graph may hold buffers training never had.
      const opdag::Leaf* leaf = graph_.find_leaf(name);
      if (leaf != nullptr && leaf->persistent) result[name] = held.value;
    }
  }
  if (optimizer_) result.merge(optimizer_->state());
  if (scaler_) result.merge(scaler_->state());
  return result;
}

Status RuntimeImpl::load_state(const std::map<std::string, at::Tensor>& state) {
  try {
    const at::NoGradGuard guard;
    for (Parameter& parameter : parameters_) {
      for (int32_t leaf : parameter.leaves) {
        const std::string& name = graph_.leaves[static_cast<size_t>(leaf)].target;
        const auto given = state.find(name);
        if (given == state.end()) continue;
        WEFT_TRY_STATUS(check_sizes(name, parameter.value, given->second));
        parameter.value.copy_(given->second);
        break;
      }
      awaited_weights_.erase(parameter.id());
    }
    for (HeldTensor& held : held_) {
      if (held.kind != opdag::LeafKind::kBuffer) continue;
      for (const std::string& name : held.names) {
        const auto given = state.find(name);
        if (given == state.end()) continue;
        WEFT_TRY_STATUS(check_sizes(name, held.value, given->second));
        held.value = given->second.to(held.value.options()).clone();
        break;
      }
    }
    std::map<std::string, at::Tensor> ours;
    for (const auto& [name, tensor] : state) {
      if (!name.starts_with(kOptimizerPrefix)) continue;
      const std::string_view target = parameter_of(name);
      const bool owned = std::any_of(parameters_.begin(), parameters_.end(),
                                     [&](const auto& p) { return owns(p) && p.name == target; });
      if (owned) ours[name] = tensor;
    }
    if (optimizer_ && !ours.empty()) WEFT_TRY_STATUS(optimizer_->load_state(ours));
    if (scaler_) WEFT_TRY_STATUS(scaler_->load_state(state));
    return {};
  } catch (const std::exception& error) {
    return make_error(Code::kInvalid, fmt::format("loading state: {}", exception_text(error)));
  }
}

std::map<std::string, at::Tensor> RuntimeImpl::gradients() const {
  std::map<std::string, at::Tensor> result;
  for (const Parameter& parameter : parameters_) {
    if (!owns(parameter) || !parameter.gradient) continue;
    for (int32_t leaf : parameter.leaves) {
      result[graph_.leaves[static_cast<size_t>(leaf)].target] = *parameter.gradient;
    }
  }
  return result;
}

}  // namespace weft::executor
