#include "broker/coordinator/correction.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"

namespace weft::broker {
namespace {

RC_GTEST_PROP(Correction, FindsTheRatioUnderNoise, (uint64_t seed)) {
  Rng rng(seed);
  const double truth = std::pow(4, 2 * rng.uniform() - 1);
  Correction now;
  for (int step = 0; step < 60; ++step) {
    now = corrected(now, 0.2, 0.2 * truth * (0.9 + 0.2 * rng.uniform()));
  }
  RC_ASSERT(std::abs(now.factor / truth - 1) < 0.08);
  RC_ASSERT(now.steps == 60);
}

RC_GTEST_PROP(Correction, StaysWithinItsBoundsWhateverIsReported, (uint64_t seed)) {
  Rng rng(seed);
  Correction now;
  for (int step = 0; step < 30; ++step) {
    const double measured = std::pow(10, 600 * rng.uniform() - 300);
    now = corrected(now, std::pow(10, 20 * rng.uniform() - 10), measured);
    RC_ASSERT(now.factor >= 1 / kMostCorrection * 0.999 && now.factor <= kMostCorrection * 1.001);
  }
}

// What is predicted is factor / speed: a profile that says another speed changes no prediction.
RC_GTEST_PROP(Correction, CarriedOverPredictsWhatItDidBefore, (uint64_t seed)) {
  Rng rng(seed);
  const double faster = std::pow(4, 2 * rng.uniform() - 1);
  const Correction before{std::pow(2, 2 * rng.uniform() - 1),
                          1 + static_cast<int64_t>(rng.below(60))};
  const Correction after = carried_over(before, faster);
  RC_ASSERT(std::abs(after.factor / faster / before.factor - 1) < 1e-9);
  RC_ASSERT(after.steps == std::min(before.steps, kCarriedSteps));
  // New runs count more than they would if the old steps were new ones.
  Correction learned = after, stubborn{after.factor, 60};
  for (int step = 0; step < 10; ++step) {
    learned = corrected(learned, 1, 1.1);
    stubborn = corrected(stubborn, 1, 1.1);
  }
  const auto off = [](const Correction& c) { return std::abs(std::log(c.factor / 1.1)); };
  RC_ASSERT(off(learned) <= off(stubborn));
  RC_ASSERT(off(stubborn) < 1e-6 || off(learned) < 0.9 * off(stubborn));
}

TEST(Correction, CarriedOverStaysWithinItsBoundsAndIsNothingWhereNothingCompares) {
  EXPECT_EQ(carried_over({4, 30}, 1000).factor, kMostCorrection);
  EXPECT_EQ(carried_over({4, 30}, 1e-9).factor, 1 / kMostCorrection);
  for (const double none : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(carried_over({4, 30}, none).factor, 1);
    EXPECT_EQ(carried_over({4, 30}, none).steps, 0);
  }
  EXPECT_EQ(carried_over({1, 0}, 3).factor, 1) << "where no run has taught anything";
}

TEST(Correction, DoubtedBeyondTwofoldAfterTwentySteps) {
  for (const double factor : {2.01, 0.49, 8.0}) {
    EXPECT_TRUE(doubted({factor, 20})) << factor;
    EXPECT_FALSE(doubted({factor, 19})) << factor;
  }
  for (const double factor : {0.5, 1.0, 2.0}) EXPECT_FALSE(doubted({factor, 1000})) << factor;
}

TEST(Correction, OneSlowStepMovesItLittleAndASlowerMachineForGood) {
  Correction now;
  for (int step = 0; step < 40; ++step) now = corrected(now, 1, 1.2);
  EXPECT_NEAR(now.factor, 1.2, 1e-9);
  const Correction after = corrected(now, 1, 50);
  EXPECT_LT(after.factor, 1.2 * 1.04);
  for (int step = 0; step < 100; ++step) now = corrected(now, 1, 2.4);
  EXPECT_NEAR(now.factor, 2.4, 0.05);
}

TEST(Correction, WhatIsNoTimeChangesNothing) {
  const Correction now{1.5, 3};
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const double wrong : {0.0, -1.0, nan, infinity}) {
    EXPECT_EQ(corrected(now, wrong, 1).steps, 3);
    EXPECT_EQ(corrected(now, 1, wrong).factor, 1.5);
  }
}

}  // namespace
}  // namespace weft::broker
