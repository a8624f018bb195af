#include "executor/loss_scaler.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

namespace weft::executor {
namespace {

constexpr const char* kScale = "weft.loss_scaler.scale";
constexpr const char* kGoodSteps = "weft.loss_scaler.good_steps";
constexpr const char* kSkippedSteps = "weft.loss_scaler.skipped_steps";

Error bad_state(const std::string& what) {
  return make_error(Code::kCorrupt, fmt::format("the loss scaler's state: {}", what),
                    "resume from another checkpoint");
}

// A file's number may be anything: read as a double, which holds every count that occurs.
std::optional<double> number_of(const std::map<std::string, at::Tensor>& state, const char* name) {
  const auto found = state.find(name);
  if (found == state.end() || found->second.numel() != 1) return std::nullopt;
  return found->second.to(at::kCPU, at::kDouble).item<double>();
}

bool is_count(double value) {
  constexpr double kMost = 1e15;
  return value >= 0 && value <= kMost && value == std::floor(value);
}

}  // namespace

LossScaler::LossScaler(const job::LossScaleSpec& spec) : spec_(spec) {
  now_.scale = static_cast<float>(spec.init);
}

// float and double as in at::_amp_update_scale_.
Result<LossScale> LossScaler::after(bool overflow) const {
  LossScale next = now_;
  if (overflow) {
    next.scale = static_cast<float>(now_.scale * spec_.backoff_factor);
    next.good_steps = 0;
    ++next.skipped_steps;
    if (next.scale > 0) return next;
    return make_error(
        Code::kUnavailable,
        fmt::format("gradients have inf or NaN at every loss scale, down to {:g}", now_.scale),
        "lower the learning rate, or train with bf16 or fp32");
  }
  if (++next.good_steps < spec_.growth_interval) return next;
  next.good_steps = 0;
  const auto grown = static_cast<float>(now_.scale * spec_.growth_factor);
  if (std::isfinite(grown)) next.scale = grown;
  return next;
}

std::map<std::string, at::Tensor> LossScaler::state() const {
  return {{kScale, at::full({}, now_.scale, at::kFloat)},
          {kGoodSteps, at::full({}, now_.good_steps, at::kLong)},
          {kSkippedSteps, at::full({}, now_.skipped_steps, at::kLong)}};
}

Status LossScaler::load_state(const std::map<std::string, at::Tensor>& state) {
  if (!state.contains(kScale) && !state.contains(kGoodSteps) && !state.contains(kSkippedSteps)) {
    return {};
  }
  const auto scale = number_of(state, kScale), good = number_of(state, kGoodSteps),
             skipped = number_of(state, kSkippedSteps);
  if (!scale || !good || !skipped) return bad_state("three numbers are needed");
  const auto narrow = static_cast<float>(*scale);
  if (!std::isfinite(narrow) || !(narrow > 0)) return bad_state(fmt::format("scale {}", *scale));
  if (!is_count(*good) || !is_count(*skipped)) {
    return bad_state(fmt::format("{} good and {} skipped steps", *good, *skipped));
  }
  now_ = {narrow, static_cast<int64_t>(*good), static_cast<int64_t>(*skipped)};
  return {};
}

at::Tensor unscale(const std::vector<at::Tensor>& gradients, float scale, at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  at::Tensor found_inf = at::zeros({}, options);
  const at::Tensor inverse = at::full({}, static_cast<float>(1.0 / scale), options);
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (const at::Tensor& gradient : gradients) {
    const at::Tensor real = gradient.is_complex() ? at::view_as_real(gradient) : gradient;
    by_type[real.scalar_type()].push_back(real);
  }
  for (auto& [type, list] : by_type) {
    at::_amp_foreach_non_finite_check_and_unscale_(list, found_inf, inverse);
  }
  return found_inf.to(at::kDouble);
}

}  // namespace weft::executor
