#include "broker/coordinator/correction.h"

#include <algorithm>
#include <cmath>

namespace weft::broker {
namespace {

constexpr double kLeastWeight = 0.05;

}  // namespace

Correction corrected(const Correction& now, double predicted_s, double measured_s) {
  const double ratio = measured_s / predicted_s;
  if (!(predicted_s > 0) || !(measured_s > 0) || !std::isfinite(ratio) || ratio == 0) return now;
  const double most = std::log(kMostCorrection), before = std::log(now.factor);
  double seen = std::clamp(std::log(ratio), -most, most);
  if (now.steps >= kTrustedSteps) {
    seen = std::clamp(seen, before - std::log(2), before + std::log(2));
  }
  const double weight = std::max(1 / static_cast<double>(now.steps + 1), kLeastWeight);
  return {std::exp(std::clamp(before + weight * (seen - before), -most, most)), now.steps + 1};
}

bool disagrees(const Correction& now) {
  return now.factor > kDoubtedFactor || now.factor < 1 / kDoubtedFactor;
}

bool doubted(const Correction& now) {
  return now.steps >= kDoubtedSteps && disagrees(now);
}

Correction carried_over(const Correction& now, double faster) {
  if (now.steps == 0 || !(faster > 0) || !std::isfinite(faster)) return {};
  return {std::clamp(now.factor * faster, 1 / kMostCorrection, kMostCorrection),
          std::min(now.steps, kCarriedSteps)};
}

}  // namespace weft::broker
