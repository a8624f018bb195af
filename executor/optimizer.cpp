#include "executor/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "executor/aten.h"
#include "executor/convert.h"

// libtorch's fused kernels, one call for all parameters of equal rates: the same formulas as
// torch.optim's default loops (Loshchilov & Hutter 2019 for the decoupled decay), in one pass over
// memory instead of eight, on CPU and CUDA alike.

namespace weft::executor {
namespace {

constexpr const char* kStatePrefix = "weft.optimizer.";

struct Rates {
  double lr = 0;
  double weight_decay = 0;
  auto operator<=>(const Rates&) const = default;
};

struct Slot {
  OwnedParameter parameter;
  Rates base;                               // lr before the schedule
  std::map<std::string, at::Tensor> state;  // empty before the first update
  std::map<std::string, at::Tensor> place;  // memory for it until then
};

// Fused kernels walk raw memory: a gradient must lie exactly as its parameter does.
at::Tensor aligned_gradient(const Slot& slot) {
  at::Tensor gradient = slot.parameter.value.grad().detach();
  const at::Tensor& value = slot.parameter.value;
  if (gradient.scalar_type() == value.scalar_type() && gradient.strides() == value.strides()) {
    return gradient;
  }
  return at::empty_like(value).copy_(gradient);
}

struct Lists {
  std::vector<at::Tensor> values, gradients;
  std::map<std::string, std::vector<at::Tensor>> state;

  void add(Slot& slot) {
    values.push_back(slot.parameter.value.detach());
    gradients.push_back(aligned_gradient(slot));
    for (auto& [name, tensor] : slot.state) state[name].push_back(tensor);
  }
};

class FusedOptimizer final : public StageOptimizer {
 public:
  FusedOptimizer(job::TrainSpec train, std::vector<Slot> slots)
      : train_(std::move(train)), slots_(std::move(slots)) {
    for (Slot& slot : slots_) make_place(slot);
  }

  Status step(int64_t step) override;
  std::map<std::string, at::Tensor> state() const override;
  Status load_state(const std::map<std::string, at::Tensor>& state) override;

 private:
  bool adam() const { return train_.optimizer != job::Optimizer::kSgd; }
  std::vector<std::string> state_names() const;
  void make_place(Slot& slot) const;
  void update(const Rates& rates, Lists& lists, bool first_sgd_step) const;

  job::TrainSpec train_;
  std::vector<Slot> slots_;
};

std::vector<std::string> FusedOptimizer::state_names() const {
  if (adam()) return {"exp_avg", "exp_avg_sq", "step"};
  if (train_.momentum != 0) return {"momentum_buffer"};
  return {};
}

// Beside the weights, before activations come: what is allocated among them splits the memory that
// they leave, and is still there when they are gone.
void FusedOptimizer::make_place(Slot& slot) const {
  const at::Tensor value = slot.parameter.value.detach();
  for (const std::string& name : state_names()) {
    slot.place[name] =
        name == "step" ? at::zeros({}, value.options().dtype(at::kFloat)) : at::zeros_like(value);
  }
}

void FusedOptimizer::update(const Rates& rates, Lists& lists, bool first_sgd_step) const {
  if (!adam()) {
    at::_fused_sgd_(lists.values, lists.gradients, lists.state["momentum_buffer"],
                    rates.weight_decay, train_.momentum, rates.lr, /*dampening=*/0,
                    /*nesterov=*/false, /*maximize=*/false, first_sgd_step);
    return;
  }
  at::_foreach_add_(lists.state["step"], 1);
  const auto kernel = [&](auto fused) {
    fused(lists.values, lists.gradients, lists.state["exp_avg"], lists.state["exp_avg_sq"],
          std::vector<at::Tensor>{}, lists.state["step"], rates.lr, train_.beta1, train_.beta2,
          rates.weight_decay, train_.eps, /*amsgrad=*/false, /*maximize=*/false);
  };
  if (train_.optimizer == job::Optimizer::kAdamW) {
    kernel([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  } else {
    kernel([](auto&&... arguments) { at::_fused_adam_(arguments...); });
  }
}

Status FusedOptimizer::step(int64_t step) {
  try {
    at::NoGradGuard no_grad;
    using Bucket = std::pair<Rates, std::pair<at::ScalarType, bool>>;
    std::map<Bucket, Lists> buckets;
    for (Slot& slot : slots_) {
      at::Tensor& value = slot.parameter.value;
      if (!value.grad().defined() || value.numel() == 0) continue;
      const bool fresh = slot.state.empty();
      if (fresh) slot.state = std::move(slot.place);
      const Rates rates{job::lr_at(train_, slot.base.lr, step), slot.base.weight_decay};
      const bool first_sgd_step = !adam() && fresh;
      buckets[{rates, {value.scalar_type(), first_sgd_step}}].add(slot);
    }
    for (auto& [bucket, lists] : buckets) update(bucket.first, lists, bucket.second.second);
    for (Slot& slot : slots_) slot.parameter.value.mutable_grad().reset();
    return {};
  } catch (const std::exception& error) {
    return make_error(Code::kInternal, fmt::format("the optimizer failed at step {}: {}", step,
                                                   exception_text(error)));
  }
}

std::map<std::string, at::Tensor> FusedOptimizer::state() const {
  std::map<std::string, at::Tensor> result;
  for (const Slot& slot : slots_) {
    for (const auto& [name, tensor] : slot.state) {
      result[kStatePrefix + name + "/" + slot.parameter.name] = tensor;
    }
  }
  return result;
}

Status FusedOptimizer::load_state(const std::map<std::string, at::Tensor>& state) {
  try {
    at::NoGradGuard no_grad;
    for (Slot& slot : slots_) {
      make_place(slot);
      std::map<std::string, at::Tensor> loaded;
      for (const std::string& name : state_names()) {
        const std::string key = kStatePrefix + name + "/" + slot.parameter.name;
        const auto found = state.find(key);
        if (found == state.end()) continue;
        const at::Tensor& place = slot.place.at(name);
        if (found->second.sizes() != place.sizes()) {
          return make_error(
              Code::kInvalid,
              fmt::format("optimizer state {} has shape {}, its parameter needs {}", key,
                          fmt::join(found->second.sizes(), "x"), fmt::join(place.sizes(), "x")),
              "resume from a checkpoint of this model");
        }
        loaded[name] = place.copy_(found->second);
      }
      if (!loaded.empty() && loaded.size() != state_names().size()) {
        return make_error(Code::kCorrupt,
                          fmt::format("the optimizer state of parameter {} is incomplete: {} of {} "
                                      "tensors",
                                      slot.parameter.name, loaded.size(), state_names().size()),
                          "resume from another checkpoint");
      }
      slot.state = std::move(loaded);
      if (!slot.state.empty()) slot.place.clear();
    }
    return {};
  } catch (const std::exception& error) {
    return make_error(Code::kInternal,
                      fmt::format("loading the optimizer state failed: {}", exception_text(error)));
  }
}

const job::ParamGroup* group_of(const std::vector<job::ParamGroup>& groups,
                                const std::string& name) {
  for (const job::ParamGroup& group : groups) {
    if (job::glob_match(group.match, name)) return &group;
  }
  return nullptr;
}

Status check_rates(const job::TrainSpec& train, const std::vector<Slot>& slots) {
  const auto fraction = [](double beta) { return beta >= 0 && beta < 1; };
  if (!fraction(train.beta1) || !fraction(train.beta2)) {
    return make_error(Code::kInvalid, fmt::format("betas {} and {} are not both in [0, 1)",
                                                  train.beta1, train.beta2));
  }
  if (!(train.eps >= 0) || !(train.momentum >= 0)) {
    return make_error(Code::kInvalid,
                      fmt::format("eps {} or momentum {} is negative", train.eps, train.momentum));
  }
  for (const Slot& slot : slots) {
    if (!(slot.base.lr >= 0) || !(slot.base.weight_decay >= 0)) {
      return make_error(Code::kInvalid,
                        fmt::format("parameter {} has learning rate {} and weight decay {}; "
                                    "neither may be negative",
                                    slot.parameter.name, slot.base.lr, slot.base.weight_decay));
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<StageOptimizer>> StageOptimizer::make(
    const job::TrainSpec& train, const std::vector<job::ParamGroup>& groups,
    std::vector<OwnedParameter> parameters) {
  std::vector<Slot> slots;
  std::set<std::string> names;
  for (OwnedParameter& parameter : parameters) {
    if (!names.insert(parameter.name).second) {
      return make_error(Code::kInvalid, fmt::format("parameter {} appears twice", parameter.name));
    }
    const job::ParamGroup* group = group_of(groups, parameter.name);
    if (group != nullptr && group->frozen) continue;
    Slot slot;
    slot.base.lr = group != nullptr && group->lr ? *group->lr : train.lr;
    const bool decays =
        job::decays_by_default(parameter.name, static_cast<size_t>(parameter.value.dim()));
    slot.base.weight_decay = group != nullptr && group->weight_decay ? *group->weight_decay
                             : decays                                ? train.weight_decay
                                                                     : 0.0;
    slot.parameter = std::move(parameter);
    slots.push_back(std::move(slot));
  }
  WEFT_TRY_STATUS(check_rates(train, slots));
  return std::unique_ptr<StageOptimizer>(new FusedOptimizer(train, std::move(slots)));
}

}  // namespace weft::executor
