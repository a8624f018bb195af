#include "broker/planner/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/unit/planner/problems.h"

namespace weft::broker {
namespace {

using job::PipelineSchedule;

// p equal stages of forward 1, backward 2 seconds; messages of `bytes` on links of one byte a
// second, latency L.
struct Even {
  Even(int32_t stages, double bytes, double latency_s) : network(static_cast<size_t>(stages)) {
    pipeline.graph.stages = stages;
    pipeline.graph.loss_stage = stages - 1;
    for (int32_t s = 0; s < stages; ++s) {
      pipeline.stages.push_back({s, 1, 2, 0, 1});
      if (s + 1 == stages) break;
      pipeline.graph.edges.push_back({s, s, s, s + 1, true, static_cast<int64_t>(bytes)});
      const auto a = static_cast<size_t>(s);
      network.set(a, a + 1, latency_s, 1);
      network.set(a + 1, a, latency_s, 1);
    }
  }
  double step(PipelineSchedule kind, int32_t micro_batches, int32_t gap = 1) const {
    return simulate_step(pipeline, network, {kind, micro_batches, gap}, size_t{1} << 30);
  }
  Pipeline pipeline;
  Network network;
};

TEST(SimulateStep, FollowsTheFormulasOfTheSchedules) {
  EXPECT_DOUBLE_EQ(Even(1, 0, 0).step(PipelineSchedule::kGPipe, 7), 21);
  // (m + p - 1) T with free links, either schedule.
  EXPECT_DOUBLE_EQ(Even(4, 0, 0).step(PipelineSchedule::kGPipe, 8), 33);
  EXPECT_DOUBLE_EQ(Even(4, 0, 0).step(PipelineSchedule::k1F1B, 8), 33);
  // GPipe pays latency only while it fills: (p - 1)(T + 2 (L + c)) + m max(tF, c) + m max(tB, c).
  EXPECT_DOUBLE_EQ(Even(4, 0, 5).step(PipelineSchedule::kGPipe, 8), 3 * (3 + 10) + 8 + 16);
  EXPECT_DOUBLE_EQ(Even(4, 1, 5).step(PipelineSchedule::kGPipe, 8), 3 * (3 + 12) + 8 + 16);
  // Textbook 1F1B has two micro-batches on their way over two stages and a round trip: one in
  // (2 T + 2 L) / 2. A wide gap pays it once.
  EXPECT_NEAR(Even(2, 0, 3).step(PipelineSchedule::k1F1B, 64), 12 + 63 * 6, 4);
  EXPECT_NEAR(Even(2, 0, 3).step(PipelineSchedule::k1F1B, 64, 4), 12 + 63 * 3, 4);
}

// Times of the table of methods 5 (p = 8, m = 32, tF = tB = tW = 1): in units of ideal compute.
TEST(SimulateStep, AgreesWithThePublishedTable) {
  struct Row {
    double latency, transfer, gpipe, textbook, gap_rule, zero_bubble;
  };
  for (const Row& row : {Row{0, 0, 1.22, 1.22, 1.22, 1.07}, Row{0.5, 0, 1.29, 1.57, 1.29, 1.22},
                         Row{1, 0, 1.36, 1.93, 1.36, 1.57}, Row{2, 0, 1.51, 2.64, 1.51, 2.28},
                         Row{4, 0, 1.80, 4.05, 1.80, 3.70}, Row{1, 2, 1.98, 3.34, 1.66, 2.99},
                         Row{1, 3, 2.77, 4.05, 1.86, 3.70}, Row{1, 4, 3.56, 4.76, 2.71, 4.41}}) {
    const Even even(8, row.transfer, row.latency);
    const double ideal = 32 * 3;
    const int32_t gap = choose_gap(even.pipeline, even.network, 32).gap;
    const auto measured = [&](PipelineSchedule kind, int32_t g) {
      return even.step(kind, 32, g) / ideal;
    };
    EXPECT_NEAR(measured(PipelineSchedule::kGPipe, 1), row.gpipe, 0.01) << row.latency;
    EXPECT_NEAR(measured(PipelineSchedule::k1F1B, 1), row.textbook, 0.01) << row.latency;
    EXPECT_NEAR(measured(PipelineSchedule::k1F1B, gap), row.gap_rule, 0.02) << row.latency;
    EXPECT_NEAR(measured(PipelineSchedule::kZbH1, 1), row.zero_bubble, 0.02) << row.latency;
  }
}

TEST(SimulateStep, CarriesTheSteadyRateOn) {
  const Even even(4, 1, 2);
  const job::ScheduleOptions schedule{PipelineSchedule::k1F1B, 2000, 3};
  EXPECT_NEAR(simulate_step(even.pipeline, even.network, schedule, 2000),
              simulate_step(even.pipeline, even.network, schedule, size_t{1} << 30), 6);
}

TEST(SimulateStep, ASharedUplinkServesOneFlowAtATime) {
  // Stage 0 feeds stages 1 and 2 over its one uplink of a byte a second; pair links are fast. It
  // waits for nobody, so that the steps of a run follow each other without a gap.
  Pipeline pipeline;
  pipeline.graph.stages = 3;
  pipeline.graph.loss_stage = 2;
  pipeline.stages = {{0, 1, 0, 0, 0}, {1, 1, 0, 0, 0}, {2, 1, 0, 0, 0}};
  pipeline.graph.edges = {{0, 0, 0, 1, false, 4}, {1, 1, 0, 2, false, 4}, {2, 2, 1, 2, false, 0}};
  Network network(3);
  const job::ScheduleOptions schedule{PipelineSchedule::kGPipe, 10, 1};
  const double apart = simulate_step(pipeline, network, schedule);
  EXPECT_DOUBLE_EQ(apart, 10);
  network.add_access("home", {0}, 1, 0);
  EXPECT_DOUBLE_EQ(simulate_step(pipeline, network, schedule), 10 * 8);
  const Bottleneck worst = bottleneck_of(pipeline, network, schedule);
  EXPECT_EQ(worst.kind, BottleneckKind::kLine);
  EXPECT_EQ(network.line_name(static_cast<size_t>(worst.line)), "the uplink of home");
  EXPECT_DOUBLE_EQ(worst.seconds, 8);
}

TEST(Predict, TellsComputeTransferMemoryAndBottleneck) {
  const Even even(3, 5, 0.5);
  const Prediction prediction =
      predict(even.pipeline, even.network, {PipelineSchedule::k1F1B, 16, 4});
  ASSERT_EQ(prediction.stages.size(), 3u);
  EXPECT_DOUBLE_EQ(prediction.stages[1].compute_s, 3);
  EXPECT_DOUBLE_EQ(prediction.stages[1].send_s, 10) << "an activation and a gradient";
  EXPECT_DOUBLE_EQ(prediction.stages[0].send_s, 5);
  EXPECT_EQ(prediction.stages[0].in_flight, 9);
  EXPECT_DOUBLE_EQ(prediction.stages[0].memory_bytes, 9);
  EXPECT_EQ(prediction.bottleneck.kind, BottleneckKind::kLink);
  EXPECT_DOUBLE_EQ(prediction.bottleneck.seconds, 5);
  EXPECT_GT(prediction.step_s, 16 * 5);
}

TEST(Predict, CountsWhatASharedWeightDelays) {
  const job::ScheduleOptions schedule{PipelineSchedule::k1F1B, 4, 2};
  const auto step = [&](int32_t owner, double bytes) {
    Even even(2, 0, 1);
    if (bytes > 0) even.pipeline.ties.push_back({owner, 1 - owner, bytes});
    return simulate_step(even.pipeline, even.network, schedule);
  };
  const double without = step(0, 0);
  // A byte takes a second. The last stage has its gradient as long before the first one as a
  // micro-batch's goes back: a transfer that is no longer costs nothing, and the weight returns
  // while the first stage's activation does.
  EXPECT_DOUBLE_EQ(step(0, 1), without);
  // A long one is hidden no more: gradient there, weight back.
  EXPECT_NEAR(step(0, 100), without + 202, 8);
  EXPECT_LT(step(0, 100), without + 202);
  // The other way round nothing is hidden.
  EXPECT_NEAR(step(1, 100), without + 202, 1e-6);
}

// Norms go to the loss stage when the first stage is done, its answer comes back.
TEST(Predict, CountsWhatClippingWaitsFor) {
  for (const auto kind : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B}) {
    Even even(3, 0, 5);
    const job::ScheduleOptions schedule{kind, 4, 8};
    even.network.set(0, 2, 7, 0);
    even.network.set(2, 0, 11, 0);
    const double without = simulate_step(even.pipeline, even.network, schedule);
    even.pipeline.agrees = true;
    EXPECT_DOUBLE_EQ(simulate_step(even.pipeline, even.network, schedule), without + 7 + 11);
  }
}

// Ways around the world, as many stages as micro-batches, a weight at both ends: what a step takes
// is then one way there and back, waited for once, with the shared weight's exchange beside it.
TEST(Estimate, OfLongWaysIsNearThePlay) {
  for (const auto kind : {job::PipelineSchedule::kGPipe, job::PipelineSchedule::k1F1B,
                          job::PipelineSchedule::kZbH1}) {
    std::vector<double> ratios;
    for (uint64_t seed = 1; seed <= 60; ++seed) {
      testing::ProblemShape shape;
      shape.peers = 4 + static_cast<int32_t>(seed % 6);
      shape.units = 24;
      shape.micro_batches = shape.peers;
      Problem problem = testing::random_problem(seed, shape);
      problem.schedule.kind = kind;
      problem.schedule.gap = shape.micro_batches;
      problem.chain.ties.push_back({0, shape.units - 1, 1e5});
      Rng rng(seed);
      for (size_t a = 0; a < problem.peers(); ++a) {
        for (size_t b = 0; b < problem.peers(); ++b) {
          if (a != b)
            problem.network.set(a, b, testing::between(rng, 0.02, 0.2), seconds_per_byte_at(1000));
        }
      }
      Layout layout;
      layout.peers.resize(problem.peers());
      std::iota(layout.peers.begin(), layout.peers.end(), 0);
      for (int32_t k = 1; k <= shape.peers; ++k) {
        layout.ends.push_back(k * shape.units / shape.peers);
      }
      ratios.push_back(estimate_layout(problem, layout) / score_layout(problem, layout).step_s);
    }
    std::sort(ratios.begin(), ratios.end());
    EXPECT_GT(ratios[3], 0.9) << int(kind);
    EXPECT_NEAR(ratios[30], 1, 0.05) << int(kind);
    EXPECT_LT(ratios[56], 1.25) << int(kind);
  }
}

// The closed form orders plans well enough to search by.
TEST(Estimate, StaysNearTheSimulation) {
  double sum = 0;
  int count = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    testing::ProblemShape shape;
    shape.peers = 6;
    shape.units = 12;
    shape.micro_batches = 32;
    shape.compress = seed % 2 == 0;
    const Problem problem = testing::random_problem(seed, shape);
    const Layout layout{{0, 1, 2, 3}, {3, 6, 9, 12}};
    const double ratio = estimate_layout(problem, layout) / score_layout(problem, layout).step_s;
    EXPECT_GT(ratio, 0.5) << seed;
    EXPECT_LT(ratio, 1.5) << seed;
    sum += ratio;
    ++count;
  }
  EXPECT_NEAR(sum / count, 1, 0.15);
}

}  // namespace
}  // namespace weft::broker
