// Recompute as a variable of the plan: against everything on small instances, and on graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "broker/planner/planner.h"
#include "broker/planner/report_json.h"
#include "broker/planner/split.h"
#include "tests/unit/broker/graphs.h"
#include "tests/unit/planner/problems.h"

namespace weft::broker {
namespace {

using testing::between;
using testing::chain_graph;
using testing::chain_spec;
using testing::Exhaustive;
using ::testing::HasSubstr;
using testing::ProblemShape;
using testing::random_problem;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Activations weigh as much as weights; what crosses a cut is narrow here and wide there.
Problem heavy_problem(uint64_t seed, int32_t peers, int32_t units) {
  ProblemShape shape;
  shape.peers = peers;
  shape.units = units;
  shape.micro_batches = seed % 3 == 0 ? 16 : 6;
  shape.tight_memory = true;
  Problem problem = random_problem(seed, shape);
  Rng rng(seed);
  Chain& chain = problem.chain;
  const double moment = between(rng, 0.01, 0.5);
  for (int32_t begin = 0; begin < units; ++begin) {
    const double given = between(rng, 0.01, 0.8);
    for (int32_t end = begin + 1; end <= units; ++end) {
      chain.input_bytes[chain.at(begin, end)] = given;
      chain.stash_bytes[chain.at(begin, end)] =
          6 * chain.stash_bytes[chain.at(begin, end)] + given + moment;
      chain.shared_bytes[chain.at(begin, end)] = moment;
    }
  }
  problem.recompute = job::Recompute::kAuto;
  return problem;
}

Problem with(Problem problem, job::Recompute mode) {
  problem.recompute = mode;
  return problem;
}

// Every choice of stages that recompute, under every gap that memory_plans may take.
double best_of_all_choices(const Problem& problem, const Layout& layout) {
  const auto stages = static_cast<int32_t>(layout.ends.size());
  double best = kInfinity;
  job::ScheduleOptions schedule = problem.schedule;
  for (int32_t gap = gap_wanted(problem, layout); gap >= 1; gap /= 2) {
    schedule.gap = gap;
    for (uint32_t chosen = 0; chosen < 1U << stages; ++chosen) {
      std::vector<bool> recompute;
      for (int32_t s = 0; s < stages; ++s) recompute.push_back((chosen >> s & 1) != 0);
      const Pipeline pipeline = chain_pipeline(problem, layout, recompute);
      bool fits = true;
      for (int32_t s = 0; s < stages; ++s) {
        const PipelineStage& stage = pipeline.stages[static_cast<size_t>(s)];
        fits = fits && memory_of(stage, schedule, stages - 1 - s, stages - 1) <=
                           problem.memory_bytes[static_cast<size_t>(stage.peer)];
      }
      if (fits) best = std::min(best, simulate_step(pipeline, problem.network, schedule));
    }
  }
  return best;
}

// Cuts of an order of peers, any of them left out.
void each_layout(const std::vector<int32_t>& order, int32_t units,
                 const std::function<void(const Layout&)>& visit) {
  for (uint32_t subset = 1; subset < 1U << order.size(); ++subset) {
    Layout layout;
    for (size_t i = 0; i < order.size(); ++i) {
      if (subset >> i & 1) layout.peers.push_back(order[i]);
    }
    layout.ends.assign(layout.peers.size(), units);
    const std::function<void(size_t, int32_t)> cut = [&](size_t k, int32_t begin) {
      if (k + 1 == layout.ends.size()) return visit(layout);
      for (int32_t end = begin + 1; end < units; ++end) {
        layout.ends[k] = end;
        cut(k + 1, end);
      }
    };
    cut(0, 0);
  }
}

TEST(RecomputeSearch, ALayoutIsScoredByTheBestOfAllItsChoices) {
  int chosen = 0, layouts = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const Problem problem = heavy_problem(seed, 3, 5);
    each_layout({0, 1, 2}, 5, [&](const Layout& layout) {
      const Scored scored = score_layout(problem, layout);
      const double best = best_of_all_choices(problem, layout);
      ASSERT_EQ(std::isfinite(scored.step_s), std::isfinite(best));
      if (!std::isfinite(best)) return;
      EXPECT_NEAR(scored.step_s, best, 1e-9 * best) << "seed " << seed;
      ++layouts;
      if (std::count(scored.recompute.begin(), scored.recompute.end(), true) > 0) ++chosen;
    });
  }
  EXPECT_GT(chosen, layouts / 20) << layouts;
}

TEST(RecomputeSearch, IsWithinThreePercentOfEverythingAndNeverWorseThanWithout) {
  double sum = 0;
  int counted = 0, gained = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Problem problem = heavy_problem(seed, 3 + static_cast<int32_t>(seed % 2), 6);
    const Scored best = Exhaustive(problem).best();
    const Found found = search(problem);
    const Found keeping = search(with(problem, job::Recompute::kNever));
    ASSERT_EQ(found.layouts.empty(), !std::isfinite(best.step_s)) << "seed " << seed;
    if (found.layouts.empty()) continue;
    const double ratio = found.layouts.front().step_s / best.step_s;
    EXPECT_GE(ratio, 1 - 1e-9);
    EXPECT_LT(ratio, 1.25) << "seed " << seed;
    sum += ratio;
    ++counted;
    const double without = keeping.layouts.empty() ? kInfinity : keeping.layouts.front().step_s;
    EXPECT_LE(found.layouts.front().step_s, without * (1 + 1e-9)) << "seed " << seed;
    if (found.layouts.front().step_s < 0.99 * without) ++gained;
  }
  ASSERT_GT(counted, 10);
  EXPECT_GT(gained, 2);
  EXPECT_LT(sum / counted, 1.03);
}

TEST(RecomputeSearch, WhereMemoryIsAmpleItChangesNothing) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Problem problem = heavy_problem(seed, 6, 12);
    for (double& room : problem.memory_bytes) room = seed % 2 == 0 ? kInfinity : 1e6;
    const Found with_choice = search(problem);
    const Found without = search(with(problem, job::Recompute::kNever));
    ASSERT_EQ(with_choice.layouts.size(), without.layouts.size());
    for (size_t i = 0; i < without.layouts.size(); ++i) {
      EXPECT_EQ(with_choice.layouts[i].layout, without.layouts[i].layout);
      EXPECT_EQ(with_choice.layouts[i].step_s, without.layouts[i].step_s);
    }
  }
}

TEST(RecomputeSearch, AlwaysMeansEveryStage) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const Problem problem = with(heavy_problem(seed, 4, 8), job::Recompute::kAlways);
    for (const Scored& scored : search(problem).layouts) {
      EXPECT_EQ(scored.recompute, std::vector<bool>(scored.layout.ends.size(), true));
    }
  }
}

// The least bottleneck of an order, whichever stages recompute, at gap 1.
TEST(RecomputeSplit, FindsTheLeastBottleneckOfAnOrder) {
  int decided = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Problem problem = heavy_problem(seed, 4, 6);
    const std::vector<int32_t> order = {0, 1, 2, 3};
    const auto bottleneck = [&](const Layout& layout) {
      const auto stages = static_cast<int32_t>(layout.ends.size());
      double worst = 0;
      for (int32_t k = 0; k < stages; ++k) {
        const auto at = static_cast<size_t>(k);
        const int32_t begin = k == 0 ? 0 : layout.ends[at - 1], end = layout.ends[at];
        const int32_t peer = layout.peers[at];
        const size_t run = problem.chain.at(begin, end);
        const double room = problem.memory_bytes[static_cast<size_t>(peer)];
        if (run_bytes(problem.chain, run, stages - k) <= room) {
          worst = std::max(worst, problem.work(peer, begin, end));
        } else if (run_bytes_recomputed(problem.chain, run, stages - k, 1) <= room) {
          worst =
              std::max(worst, problem.work(peer, begin, end) + problem.forward(peer, begin, end));
        } else {
          return kInfinity;
        }
        if (k + 1 == stages) break;
        const auto a = static_cast<size_t>(peer), b = static_cast<size_t>(layout.peers[at + 1]);
        worst = std::max(worst, problem.chain.forward_bytes[static_cast<size_t>(end)] *
                                    std::max(problem.network.seconds_per_byte(a, b),
                                             problem.network.seconds_per_byte(b, a)));
      }
      return worst;
    };
    double least = kInfinity;
    each_layout(order, 6,
                [&](const Layout& layout) { least = std::min(least, bottleneck(layout)); });
    SplitOptions options;
    options.recompute = true;
    const auto layouts = split_order(problem, CutCosts(problem), order, options);
    ASSERT_EQ(layouts.empty(), !std::isfinite(least)) << "seed " << seed;
    if (layouts.empty()) continue;
    EXPECT_LE(bottleneck(layouts.front()), least * 1.0011) << "seed " << seed;
    const auto keeping = split_order(problem, CutCosts(problem), order, {});
    if (keeping.empty() || bottleneck(keeping.front()) > least * 1.01) ++decided;
  }
  EXPECT_GT(decided, 5) << "recompute changes the split";
}

// Its stages keep more, the more of them there are: what fits is few stages, or none.
TEST(ZbH1Split, FindsWhatFitsAnOrderWhereAnythingDoes) {
  int fits = 0, none = 0, deep = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    for (const job::Recompute mode :
         {job::Recompute::kNever, job::Recompute::kAuto, job::Recompute::kAlways}) {
      Problem problem = with(heavy_problem(seed, 5, 6), mode);
      problem.schedule.kind = job::PipelineSchedule::kZbH1;
      SplitOptions options;
      options.gap = 1 + static_cast<int32_t>(seed % 2);
      options.recompute = mode == job::Recompute::kAuto;
      const auto fitting = [&](const Layout& layout) {
        return gap_within_memory(problem, layout, options.gap) >= options.gap;
      };
      const std::vector<int32_t> order = {0, 1, 2, 3, 4};
      size_t fewest = 0;
      each_layout(order, 6, [&](const Layout& layout) {
        if (fitting(layout) && (fewest == 0 || layout.ends.size() < fewest)) {
          fewest = layout.ends.size();
        }
      });
      const auto layouts = split_order(problem, CutCosts(problem), order, options);
      const bool found = !layouts.empty() && fitting(layouts.front());
      ASSERT_EQ(found, fewest > 0) << "seed " << seed << ", recompute " << int(mode);
      ASSERT_EQ(any_fits(problem, CutCosts(problem), order, options), fewest > 0)
          << "seed " << seed;
      ++(found ? fits : none);
      if (fewest > 1) ++deep;
    }
  }
  EXPECT_GT(fits, 50);
  EXPECT_GT(none, 50);
  EXPECT_GT(deep, 50);
}

// A stage alone: every micro-batch computes its forward twice, whatever the schedule.
TEST(RecomputeModel, TheSecondForwardIsPlayedAndMemoryIsOfInputs) {
  Pipeline pipeline;
  pipeline.graph.stages = 1;
  pipeline.stages = {{0, 2.0, 4.0, 100, 10, 1, true}};
  const Network network(1);
  for (const auto kind : {job::PipelineSchedule::kGPipe, job::PipelineSchedule::k1F1B,
                          job::PipelineSchedule::kZbH1}) {
    EXPECT_NEAR(simulate_step(pipeline, network, {kind, 5, 1}), 5 * (2 + 2 + 4), 1e-9);
    EXPECT_EQ(predict(pipeline, network, {kind, 5, 1}).stages[0].compute_s, 8);
  }
  const PipelineStage& stage = pipeline.stages[0];
  using enum job::PipelineSchedule;
  EXPECT_EQ(memory_of(stage, {kGPipe, 5, 1}, 0, 0), 100 + 10 + 4 * 1);
  EXPECT_EQ(memory_of(stage, {k1F1B, 5, 2}, 2, 2), 100 + 10 + 4 * 1);
  EXPECT_EQ(memory_of(stage, {k1F1B, 5, 1}, 0, 3), 100 + 10) << "one in flight: nothing to gain";
  EXPECT_EQ(memory_of(stage, {kZbH1, 5, 1}, 1, 3), 100 + 3 * 10 + 1) << "two owed, one running";
  EXPECT_EQ(memory_of(stage, {kZbH1, 5, 1}, 0, 3), 100 + 4 * 10) << "all are owed";
}

class RecomputePlan : public ::testing::Test {
 protected:
  RecomputePlan() {
    spec_.pipeline.stages = 2;
    spec_.pipeline.schedule = job::PipelineSchedule::kGPipe;
    for (PlannerPeer& peer : peers_) peer.gflops = 100;
  }
  // The roomy plan's need of its first stage, times `share`.
  void limit_memory(double share) {
    const double needs =
        static_cast<double>(plan(job::Recompute::kNever).plan.stages[0].memory_bytes);
    for (PlannerPeer& peer : peers_) peer.memory_bytes = static_cast<uint64_t>(share * needs / 0.9);
  }
  PlanReport plan(job::Recompute mode) {
    spec_.pipeline.recompute = mode;
    Result<PlanReport> report = plan_job(graph_, spec_, peers_, {});
    EXPECT_TRUE(report.ok()) << report.error().text();
    return report.ok() ? std::move(*report) : PlanReport{};
  }

  // Wide activations, small weights; sixteen micro-batches, all in flight.
  opdag::Graph graph_ = chain_graph(24, 512, 32);
  job::JobSpec spec_ = chain_spec(512 * 16);
  std::vector<PlannerPeer> peers_{{"p-0", 4, uint64_t{8} << 30}, {"p-1", 4, uint64_t{8} << 30}};
};

TEST_F(RecomputePlan, AutoRecomputesWhereMemoryAsksForItAndSaysSo) {
  const PlanReport roomy = plan(job::Recompute::kAuto);
  for (const job::StagePlan& stage : roomy.plan.stages) EXPECT_FALSE(stage.recompute);
  limit_memory(0.5);
  spec_.pipeline.recompute = job::Recompute::kNever;
  EXPECT_FALSE(plan_job(graph_, spec_, peers_, {}).ok());
  const PlanReport report = plan(job::Recompute::kAuto);
  EXPECT_TRUE(report.plan.stages[0].recompute);
  EXPECT_THAT(report.plan.reason, HasSubstr("stage 0 recomputes: "));
  EXPECT_GT(report.prediction.step_s, 1.1 * roomy.prediction.step_s);
  EXPECT_LT(report.prediction.step_s, 1.5 * roomy.prediction.step_s)
      << "a forward is a third; " << report.plan.reason;
  for (const job::StagePlan& stage : report.plan.stages) {
    EXPECT_LE(static_cast<double>(stage.memory_bytes),
              0.9 * static_cast<double>(peers_[0].memory_bytes));
  }
  const auto json = report_to_json(report, graph_);
  EXPECT_EQ(json.at("stages")[0].at("recompute"), true);

  const auto stored = job::plan_from_json(json.at("plan"));
  ASSERT_TRUE(stored.ok()) << stored.error().text();
  EXPECT_TRUE(stored->stages[0].recompute);
  const auto judged = evaluate_plan(graph_, spec_, *stored, peers_, {});
  ASSERT_TRUE(judged.ok()) << judged.error().text();
  EXPECT_EQ(judged->prediction.step_s, report.prediction.step_s);
  EXPECT_EQ(judged->plan.stages[0].memory_bytes, report.plan.stages[0].memory_bytes);
  const auto pipeline = pipeline_of_plan(graph_, spec_, *stored, peers_);
  ASSERT_TRUE(pipeline.ok());
  EXPECT_TRUE(pipeline->stages[0].recompute) << "what the simulator plays";
}

TEST_F(RecomputePlan, AlwaysAndNeverAreObeyed) {
  const PlanReport always = plan(job::Recompute::kAlways), never = plan(job::Recompute::kNever);
  for (size_t s = 0; s < 2; ++s) {
    EXPECT_TRUE(always.plan.stages[s].recompute);
    EXPECT_FALSE(never.plan.stages[s].recompute);
  }
  EXPECT_LT(always.plan.stages[0].memory_bytes, never.plan.stages[0].memory_bytes);
  EXPECT_GT(always.prediction.step_s, never.prediction.step_s);
}

// Latency asks for a wide gap, memory allows it with recompute only.
TEST_F(RecomputePlan, AWideGapIsWorthASecondForward) {
  spec_.pipeline.schedule = job::PipelineSchedule::k1F1B;
  const double work_s = plan(job::Recompute::kNever).prediction.stages[0].compute_s;
  const std::vector<PlannerLink> far{{"p-0", "p-1", 4e3 * work_s, 0},
                                     {"p-1", "p-0", 4e3 * work_s, 0}};
  limit_memory(1.01);
  spec_.pipeline.recompute = job::Recompute::kNever;
  const auto narrow = plan_job(graph_, spec_, peers_, far);
  spec_.pipeline.recompute = job::Recompute::kAuto;
  const auto wide = plan_job(graph_, spec_, peers_, far);
  ASSERT_TRUE(narrow.ok() && wide.ok());
  EXPECT_GT(wide->plan.gap, narrow->plan.gap);
  EXPECT_TRUE(wide->plan.stages[0].recompute);
  EXPECT_FALSE(wide->plan.stages[1].recompute) << "one in flight";
  EXPECT_LT(wide->prediction.step_s, 0.9 * narrow->prediction.step_s)
      << wide->plan.reason << narrow->plan.reason;
}

}  // namespace
}  // namespace weft::broker
