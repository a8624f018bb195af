// Steps timed on a card: what it needs, however fast the host queues it.
#include "executor/step_timer.h"

#include <functional>

#include "base/clock.h"
#include "base/statistics.h"
#include "executor/measure_run.h"
#include "tests/gpu/executor/card.h"
#include "tests/unit/executor/runtime_support.h"

namespace weft::executor::testing {
namespace {

using opdag::testing::GraphBuilder;

const at::Device kCard(at::kCUDA, 0);

class GpuStepTimer : public OnCard<> {};

struct Timed {
  double told_s = 0, host_s = 0, wall_s = 0;
};

// A step of two actions; between them the card has something to do that is none of the step's.
Timed time_step(const std::function<void()>& action, const std::function<void()>& between) {
  for (const auto& warm_up : {action, between}) warm_up();
  finish(kCard);
  StepTimer timer(Moment::of(kCard));
  Timed result;
  const double start = monotonic_seconds();
  timer.begin_step();
  timer.begin_action();
  action();
  timer.end_action();
  between();
  timer.begin_action();
  action();
  timer.end_action();
  timer.end_step();
  result.host_s = monotonic_seconds() - start;
  EXPECT_EQ(timer.take_seconds(), 0) << "nobody waits for the card";
  finish(kCard);
  result.wall_s = monotonic_seconds() - start;
  result.told_s = timer.take_seconds();
  return result;
}

TEST_F(GpuStepTimer, ProductsTakeTheCardsTime) {
  const at::Tensor a = at::randn({4096, 4096}, at::device(kCard));
  const auto products = [&a](int count) {
    return [&a, count] {
      for (int i = 0; i < count; ++i) at::matmul(a, a);
    };
  };
  const Timed all = time_step(products(8), [] {});
  EXPECT_GT(all.told_s, 5 * all.host_s);
  EXPECT_GT(all.told_s, 0.8 * all.wall_s);
  EXPECT_LT(all.told_s, 1.01 * all.wall_s);
  const Timed half = time_step(products(4), products(8));
  EXPECT_NEAR(half.told_s / half.wall_s, 0.5, 0.1);
}

TEST_F(GpuStepTimer, WhatTheHostIsSlowToQueueKeepsTheCardAsLong) {
  const at::Tensor small = at::randn({16}, at::device(kCard));
  const at::Tensor large = at::randn({4096, 4096}, at::device(kCard));
  const auto queue = [&] {
    for (int i = 0; i < 5000; ++i) at::tanh(small);
    at::matmul(large, large);  // so that the card is not done when it is asked
  };
  const Timed timed = time_step(queue, [] {});
  EXPECT_GT(timed.told_s, 0.7 * timed.wall_s);
  EXPECT_LT(timed.told_s, 1.01 * timed.wall_s);
}

// A stage's steps take about what the clock says, captured or not.
TEST_F(GpuStepTimer, AStageTellsItsStepsButThoseOfItsCaptures) {
  GraphBuilder b;
  auto h = b.input("x", {512, 1024});
  for (int i = 0; i < 8; ++i) h = b.tanh(b.linear(h, "w" + std::to_string(i), 1024));
  b.loss(b.mean(h));
  const opdag::Graph graph = must(b.build());
  for (const bool capture : {true, false}) {
    ClusterOptions options = cluster_options(one_stage(graph));
    options.runtime.train.precision = job::Precision::kFp32;
    options.runtime.device = "cuda:0";
    options.runtime.capture = capture;
    RandomFeed feed(graph);
    auto cluster = must(LocalCluster::make(graph, {}, options, random_weights(), feed));
    std::vector<double> told_s, wall_s;
    for (int step = 0; step < 12; ++step) {
      finish(kCard);
      const double start = monotonic_seconds();
      const StepResult result = must(cluster->step(step));
      finish(kCard);
      wall_s.push_back(monotonic_seconds() - start);
      told_s.push_back(result.compute_s);
    }
    EXPECT_EQ(told_s[0], 0) << "nobody waits for the card";
    EXPECT_EQ(told_s[1] == 0, capture) << "of the first, in which its passes were captured";
    const auto settled = [](const std::vector<double>& all) {
      return median(std::vector<double>(all.begin() + 6, all.end()));
    };
    EXPECT_GT(settled(told_s), 0.4 * settled(wall_s));
    EXPECT_LT(settled(told_s), 1.05 * settled(wall_s));
  }
}

}  // namespace
}  // namespace weft::executor::testing
