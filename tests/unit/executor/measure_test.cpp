// Cases that are measured: every one validates, runs forward and backward, and is of its class;
// the fit of cases is the fit of their sums.
#include "executor/measure.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/clock.h"
#include "base/rng.h"
#include "executor/measure_cases.h"
#include "tests/support/must.h"

namespace weft::executor {
namespace {

using testing::must;

MeasureOptions quick() {
  MeasureOptions options;
  options.least_runs = options.most_runs = 1;
  return options;
}

TEST(Measure, EveryFamilyIsOfItsClassAndGrows) {
  std::set<job::OpClass> classes;
  for (const CaseFamily& family : measure_families()) {
    classes.insert(family.op_class);
    double before = 0;
    for (int level = 0; level < family.levels; ++level) {
      const opdag::Graph graph = must(family.make(level));
      job::Work sum;
      for (const job::Work& work : job::node_work(graph)) sum.add(work);
      const job::ClassWork &all = sum.total(), &own = sum.of(family.op_class);
      EXPECT_EQ(all.operators, own.operators) << family.name;
      EXPECT_EQ(all.bytes_forward, own.bytes_forward) << family.name;
      EXPECT_GE(own.operators, 1) << family.name;
      const double size = (own.flops_forward + own.bytes_forward) / own.operators;
      if (family.op_class != job::OpClass::kConvolution) {
        EXPECT_GT(size, before) << family.name;
      }
      before = size;
    }
  }
  EXPECT_EQ(classes.size(), job::kOpClasses) << "every class is measured";
}

TEST(Measure, EveryFamilyRunsForwardAndBackwardInBothPrecisions) {
  double loading = 0;
  for (const CaseFamily& family : measure_families()) {
    for (const auto precision : {job::Precision::kFp32, job::Precision::kBf16}) {
      const MeasuredCase one = must(run_case(family.name, must(family.make(1)), family.op_class,
                                             precision, quick(), 60, loading));
      EXPECT_GT(one.forward_s, 0) << family.name;
      EXPECT_GT(one.backward_s, 0) << family.name;
    }
  }
}

TEST(Measure, ACaseThatTakesTooLongIsCancelled) {
  const CaseFamily family = measure_families().front();
  double loading = 1;
  const auto one = run_case("x", must(family.make(3)), family.op_class, job::Precision::kFp32,
                            quick(), 0, loading);
  EXPECT_EQ(loading, 0) << "nothing is loaded on a processor";
  ASSERT_FALSE(one.ok());
  EXPECT_EQ(one.error().code, Code::kCancelled);
}

TEST(Measure, TheWholeIsBoundedInTimeAndFitsIntoItsJson) {
  MeasureOptions options = quick();
  options.seconds = 1;
  options.max_case_bytes = uint64_t{16} << 20;
  const double start = monotonic_seconds();
  const job::DeviceProfile profile = must(measure_device(options));
  EXPECT_LT(monotonic_seconds() - start, 30) << "a busy machine, but not for ever";
  EXPECT_GT(profile.memory_total_bytes, 0u);
  const job::DeviceProfile read = must(job::profile_from_json(job::profile_to_json(profile)));
  for (size_t i = 0; i < job::kOpClasses; ++i) EXPECT_GT(read.fp32.errors[i].samples, 0) << i;
}

TEST(Measure, NoDeviceIsInventedAndFitsUseTheirOwnDirection) {
  MeasureOptions options = quick();
  options.device = "abacus:0";
  EXPECT_FALSE(measure_device(options).ok());
  std::vector<MeasuredCase> cases;
  for (const double scale : {1.0, 4.0, 16.0, 64.0}) {
    MeasuredCase one;
    one.op_class = job::OpClass::kMatrix;
    one.work.of(job::OpClass::kMatrix) = {1, 1e9 * scale, 2e9 * scale, 1e3, 1e3};
    one.forward_s = 0.01 * scale;
    one.backward_s = 0.06 * scale;
    cases.push_back(one);
  }
  const job::MeasuredCosts fitted = fit_cases(cases);
  const auto& cost = fitted.costs[static_cast<size_t>(job::OpClass::kMatrix)];
  EXPECT_NEAR(cost.forward.flop_s, 1e-11, 1e-13);
  EXPECT_NEAR(cost.backward.flop_s, 3e-11, 3e-13);
  EXPECT_EQ(fitted.errors[static_cast<size_t>(job::OpClass::kNorm)].samples, 0);
}

TEST(Measure, ProductsTooSmallToTellStillCostByTheFlop) {
  for (size_t i = 0; i < job::kOpClasses; ++i) {
    const auto op_class = static_cast<job::OpClass>(i);
    std::vector<MeasuredCase> cases;
    for (const double flops : {1e6, 1e7, 1e8, 1e9}) {
      MeasuredCase& one = cases.emplace_back();
      one.op_class = op_class;
      one.work.of(op_class) = {1, flops, 2 * flops, 1e3, 1e3};
      one.forward_s = one.backward_s = 1e-3;
    }
    const job::ClassCost cost = fit_cases(cases).costs[i];
    EXPECT_EQ(cost.forward.flop_s > 0.7e-12, job::is_product(op_class)) << i;
    EXPECT_EQ(cost.backward.flop_s > 0.35e-12, job::is_product(op_class)) << i;
  }
}

// As on a card that another process uses too: each pass waits for its turn, which takes longer than
// all but the largest product, and so does a pass without operators.
RC_GTEST_PROP(Measure, NoProductIsPromisedMuchFasterThanTheBestSeen, (uint64_t seed)) {
  Rng rng(seed);
  const auto turn = [&] { return 300e-6 * (0.2 + rng.uniform()); };
  std::vector<MeasuredCase> cases;
  double least = 1;
  for (int size = 0; size < 20; ++size) {
    const double side = 32 << (size % 7), flops = 8 * side * side * side;
    MeasuredCase& one = cases.emplace_back();
    one.op_class = job::OpClass::kMatrix;
    one.captured = true;
    one.work.of(one.op_class) = {4, flops, 2 * flops, 48 * side * side, 48 * side * side};
    one.forward_s = one.backward_s = 4e-6 + 1e-14 * flops + turn();
    least = std::min(least, one.forward_s / flops);
  }
  const auto cost = fit_cases(cases, {turn(), turn()}).costs[0];
  RC_ASSERT(cost.forward.flop_s >= 0.75 * least * (1 - 1e-9));
  RC_ASSERT(cost.backward.flop_s >= 0.375 * least * (1 - 1e-9));
  for (const MeasuredCase& one : cases) {
    const job::ClassWork work = one.work.total();
    RC_ASSERT(cost.forward.op_s * work.operators + cost.forward.flop_s * work.flops_forward +
                  cost.forward.byte_s * work.bytes_forward <
              6 * one.forward_s);
  }
}

TEST(Measure, WhatAPassTakesBesideItsOperatorsIsNoOperators) {
  std::vector<MeasuredCase> cases;
  for (const double operators : {4.0, 16.0, 64.0}) {
    for (const double bytes : {1e4, 1e6, 1e8}) {
      MeasuredCase& one = cases.emplace_back();
      one.captured = true;
      one.work.of(job::OpClass::kElementwise) = {operators, 0, 0, bytes, bytes};
      one.forward_s = 20e-6 + operators * 1e-6 + bytes * 1e-12;
      one.backward_s = 30e-6 + operators * 2e-6 + bytes * 1e-12;
    }
  }
  const auto common = static_cast<size_t>(job::OpClass::kElementwise);
  const auto fitted = fit_cases(cases, {20e-6, 30e-6});
  EXPECT_NEAR(fitted.costs[common].forward.op_s, 1e-6, 1e-9);
  EXPECT_NEAR(fitted.costs[common].backward.op_s, 2e-6, 1e-9);
  EXPECT_LT(fitted.errors[common].forward, 1e-6);
  for (MeasuredCase& one : cases) one.captured = false;
  EXPECT_GT(fit_cases(cases, {20e-6, 30e-6}).costs[common].forward.op_s, 1.2e-6);
}

}  // namespace
}  // namespace weft::executor
