#include "job/cost_fit.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"

namespace weft::job {
namespace {

double seconds_of(const OpCost& cost, const CostSample& s) {
  return cost.op_s * s.operators + cost.flop_s * s.flops + cost.byte_s * s.bytes;
}

// Small, dense and thin runs: each coefficient decides some of them.
std::vector<CostSample> runs(const OpCost& truth, double noise, Rng& rng) {
  std::vector<CostSample> samples;
  for (int size = 0; size < 8; ++size) {
    const double work = std::pow(6, size) * 1e3;
    for (const double intensity : {0.1, 3.0, 100.0}) {
      CostSample sample{4, work * intensity, work, 0};
      sample.seconds = seconds_of(truth, sample) * (1 + noise * (2 * rng.uniform() - 1));
      samples.push_back(sample);
    }
  }
  return samples;
}

OpCost some_cost(Rng& rng) {
  return {std::pow(10, -6 + rng.uniform()), std::pow(10, -11 + rng.uniform()),
          std::pow(10, -10 + rng.uniform())};
}

RC_GTEST_PROP(CostFit, RecoversKnownCoefficientsUnderNoise, (uint64_t seed)) {
  Rng rng(seed);
  const OpCost truth = some_cost(rng);
  const CostFit fit = fit_costs(runs(truth, 0.04, rng));
  RC_ASSERT(std::abs(fit.cost.op_s / truth.op_s - 1) < 0.08);
  RC_ASSERT(std::abs(fit.cost.flop_s / truth.flop_s - 1) < 0.08);
  RC_ASSERT(std::abs(fit.cost.byte_s / truth.byte_s - 1) < 0.15);
  RC_ASSERT(fit.error < 0.04);
}

RC_GTEST_PROP(CostFit, AFewRunsThatWereDisturbedDoNotMatter, (uint64_t seed)) {
  Rng rng(seed);
  const OpCost truth = some_cost(rng);
  std::vector<CostSample> samples = runs(truth, 0.02, rng);
  for (int i = 0; i < 3; ++i) samples[rng.below(samples.size())].seconds *= 5;
  const CostFit fit = fit_costs(samples);
  for (const CostSample& clean : runs(truth, 0, rng)) {
    RC_ASSERT(std::abs(seconds_of(fit.cost, clean) / clean.seconds - 1) < 0.15);
  }
}

RC_GTEST_PROP(CostFit, IsNeverNegativeWhateverWasMeasured, (uint64_t seed)) {
  Rng rng(seed);
  std::vector<CostSample> samples;
  const size_t count = 1 + rng.below(12);
  for (size_t i = 0; i < count; ++i) {
    const auto any = [&] {
      return rng.below(4) == 0 ? 0.0 : std::pow(10, 24 * rng.uniform() - 12);
    };
    samples.push_back({any(), any(), any(), any()});
  }
  const CostFit fit = fit_costs(samples);
  for (const double value : {fit.cost.op_s, fit.cost.flop_s, fit.cost.byte_s, fit.error}) {
    RC_ASSERT(std::isfinite(value) && value >= 0);
  }
}

TEST(CostFit, ATermThatOnlyHurtsIsZero) {
  // Times fall with the bytes: least squares alone would make that coefficient negative.
  const CostFit fit = fit_costs(
      {{1, 1e9, 4e6, 1.00}, {1, 1e9, 8e6, 0.99}, {1, 2e9, 4e6, 2.00}, {1, 2e9, 8e6, 1.99}});
  EXPECT_EQ(fit.cost.byte_s, 0);
  EXPECT_NEAR(fit.cost.flop_s, 1e-9, 2e-11);
}

RC_GTEST_PROP(CostFit, AFlopCostsNoLessThanTheLeast, (uint64_t seed)) {
  Rng rng(seed);
  const OpCost truth = some_cost(rng);
  const std::vector<CostSample> samples = runs(truth, 0.04, rng);
  const CostFit free = fit_costs(samples);
  const CostFit below = fit_costs(samples, free.cost.flop_s * rng.uniform());
  RC_ASSERT(std::abs(below.cost.flop_s / free.cost.flop_s - 1) < 1e-3);
  RC_ASSERT(std::abs(below.cost.byte_s / free.cost.byte_s - 1) < 1e-3);
  const double least = free.cost.flop_s * (1.1 + rng.uniform());
  const CostFit bound = fit_costs(samples, least);
  RC_ASSERT(std::abs(bound.cost.flop_s / least - 1) < 1e-9);
}

TEST(CostFit, ALeastThatExplainsMoreThanWasMeasuredLeavesNothingToTheOthers) {
  const CostFit fit = fit_costs({{1, 1e6, 1e4, 1e-3}, {1, 1e7, 1e5, 1e-3}}, 1e-6);
  EXPECT_EQ(fit.cost.flop_s, 1e-6);
  EXPECT_EQ(fit.cost.op_s, 0);
  EXPECT_EQ(fit.cost.byte_s, 0);
  EXPECT_EQ(fit_costs({{1, 0, 1e4, 1e-3}, {2, 0, 1e4, 2e-3}}, 1e-6).cost.flop_s, 0) << "no FLOPs";
}

TEST(CostFit, WhatCannotBeATimeIsLeftOut) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const CostFit fit = fit_costs({{1, 0, 100, 1e-6},
                                 {2, 0, 300, 2e-6},
                                 {1, 0, 100, 0},
                                 {1, nan, 100, 1e-6},
                                 {1, 0, 100, infinity},
                                 {-1, 0, 0, 1}});
  EXPECT_NEAR(fit.cost.op_s, 1e-6, 1e-8);
  EXPECT_EQ(fit_costs({}).cost.op_s, 0);
  EXPECT_EQ(fit_costs({{0, 0, 0, 1}}).error, 1) << "nothing explains a second of no work";
}

}  // namespace
}  // namespace weft::job
