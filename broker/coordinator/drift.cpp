#include "broker/coordinator/drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/statistics.h"
#include "broker/coordinator/correction.h"

namespace weft::broker {
namespace {

// Ratios within these are noise: models are off by a tenth, machines wander by as much.
constexpr double kSlower = 1.25, kFaster = 0.67;

constexpr double kLeastShare = 0.05;  // of the busiest stage's compute

double bounded(double ratio) {
  return std::clamp(ratio, 1 / kMostSlowness, kMostSlowness);
}

void push(std::vector<double>& window, double value) {
  if (window.size() == DriftWatch::kWindow) window.erase(window.begin());
  window.push_back(value);
}

}  // namespace

void DriftWatch::begin(size_t stages, int64_t first_step, int64_t checkpoint_every) {
  *this = {};
  first_step_ = first_step;
  checkpoint_every_ = checkpoint_every;
  compute_s_.resize(stages);
  best_compute_s_.resize(stages);
}

// Stages wait for each other's shards in the step behind a checkpoint.
bool DriftWatch::counts(int64_t step) const {
  if (step <= first_step_ + kWarmUpSteps) return false;
  return checkpoint_every_ < 2 || (step - 1) % checkpoint_every_ != 0;
}

void DriftWatch::add(size_t stage, int64_t step, double seconds, double compute_s) {
  if (stage >= compute_s_.size() || !counts(step)) return;
  const auto lower = [](std::optional<double>& best, std::optional<double> now) {
    if (now) best = std::min(*now, best.value_or(*now));
  };
  if (std::isfinite(compute_s) && compute_s > 0) {
    push(compute_s_[stage], compute_s);
    lower(best_compute_s_[stage], middle(compute_s_[stage]));
  }
  if (stage != 0 || !std::isfinite(seconds) || seconds <= 0) return;
  push(step_s_, seconds);
  lower(best_step_s_, step_s());
}

std::optional<double> DriftWatch::middle(const std::vector<double>& window) {
  if (window.size() < kWindow) return std::nullopt;
  return median(window);
}

std::optional<double> DriftWatch::compute_s(size_t stage) const {
  return stage < compute_s_.size() ? middle(compute_s_[stage]) : std::nullopt;
}

std::optional<double> DriftWatch::best_compute_s(size_t stage) const {
  return stage < best_compute_s_.size() ? best_compute_s_[stage] : std::nullopt;
}

bool tells_speed(const job::Plan& plan, size_t stage, double compute_s) {
  double busiest_s = 0;
  for (const job::StagePlan& other : plan.stages) busiest_s = std::max(busiest_s, other.compute_s);
  return std::max(plan.stages.at(stage).compute_s, compute_s) >= kLeastShare * busiest_s;
}

double model_error(const DriftWatch& watch, const job::Plan& plan) {
  std::vector<double> ratios;
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const double predicted_s = plan.stages[stage].compute_s;
    const auto best_s = watch.best_compute_s(stage);
    if (!best_s || !(predicted_s > 0) || !tells_speed(plan, stage, *best_s)) continue;
    ratios.push_back(bounded(*best_s / predicted_s));
  }
  if (ratios.empty()) return 1;
  std::sort(ratios.begin(), ratios.end());
  const double error = ratios[(ratios.size() - 1) / 2];
  return error < kSlower && error > kFaster ? 1 : error;
}

std::optional<double> stage_drift(const DriftWatch& watch, const job::Plan& plan, size_t stage) {
  const double predicted_s = plan.stages.at(stage).compute_s;
  const auto real_s = watch.compute_s(stage);
  if (!real_s || !(predicted_s > 0) || !tells_speed(plan, stage, *real_s)) return std::nullopt;
  const double ratio = bounded(*real_s / predicted_s);
  if (ratio < kSlower && ratio > kFaster) return std::nullopt;
  return ratio;
}

std::optional<std::string> drift_of(const DriftWatch& watch, const job::Plan& plan) {
  const auto step_s = watch.step_s();
  if (!step_s) return std::nullopt;
  const double best_s = watch.best_step_s().value_or(*step_s);
  if (*step_s > kSlower * best_s) {
    return fmt::format("a step takes {:.3g} s, this plan has done it in {:.3g}", *step_s, best_s);
  }
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    if (const auto ratio = stage_drift(watch, plan, stage)) {
      return fmt::format("stage {} computes {:.3g} times as long as planned", stage, *ratio);
    }
  }
  if (plan.step_s > 0 && *step_s > kSlower * plan.step_s) {
    return fmt::format("a step takes {:.3g} s, {:.3g} were predicted", *step_s, plan.step_s);
  }
  return std::nullopt;
}

}  // namespace weft::broker
