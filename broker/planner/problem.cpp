#include "broker/planner/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "broker/planner/cut_codecs.h"

namespace weft::broker {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

size_t stage_of(const Layout& layout, int32_t unit) {
  return static_cast<size_t>(std::upper_bound(layout.ends.begin(), layout.ends.end(), unit) -
                             layout.ends.begin());
}

Chain::Chain(int32_t count) : units(count) {
  const auto cuts = static_cast<size_t>(count) + 1;
  forward_bytes.assign(cuts, 0.0);
  backward_bytes.assign(cuts, 0.0);
  fixed_bytes.assign(cuts * cuts, 0.0);
  stash_bytes.assign(cuts * cuts, 0.0);
  input_bytes.assign(cuts * cuts, 0.0);
  shared_bytes.assign(cuts * cuts, 0.0);
  shard_bytes.assign(cuts * cuts, 0.0);
}

double run_bytes(const Chain& chain, size_t run, int32_t in_flight) {
  return chain.fixed_bytes[run] + chain.stash_bytes[run] * in_flight;
}

double run_bytes_recomputed(const Chain& chain, size_t run, int32_t in_flight, int32_t recorded) {
  return chain.fixed_bytes[run] + chain.stash_bytes[run] * recorded -
         chain.shared_bytes[run] * (recorded - 1) + chain.input_bytes[run] * (in_flight - recorded);
}

std::vector<MemoryPlan> memory_plans(const Problem& problem, const Layout& layout, int32_t wanted) {
  const auto stages = static_cast<int32_t>(layout.ends.size());
  job::ScheduleOptions schedule = problem.schedule;
  const auto fits = [&](size_t k, int32_t gap, bool recompute) {
    schedule.gap = gap;
    const size_t run = problem.chain.at(k == 0 ? 0 : layout.ends[k - 1], layout.ends[k]);
    const int32_t depth = stages - 1 - static_cast<int32_t>(k);
    const int32_t in_flight = job::in_flight_of(schedule, depth, stages - 1);
    const double room = problem.memory_bytes[static_cast<size_t>(layout.peers[k])];
    if (!recompute) return run_bytes(problem.chain, run, in_flight) <= room;
    const int32_t recorded = job::recorded_of(schedule, depth, stages - 1);
    return run_bytes_recomputed(problem.chain, run, in_flight, recorded) <= room;
  };
  const bool fixed_gap = problem.gap > 0;
  return memory_plans(layout.ends.size(), wanted, fixed_gap, problem.recompute, fits);
}

int32_t gap_within_memory(const Problem& problem, const Layout& layout, int32_t wanted) {
  const auto plans = memory_plans(problem, layout, wanted);
  return plans.empty() ? 0 : plans.front().gap;
}

Pipeline chain_pipeline(const Problem& problem, const Layout& layout,
                        const std::vector<bool>& recompute) {
  Pipeline pipeline;
  const auto stages = static_cast<int32_t>(layout.ends.size());
  pipeline.graph.stages = stages;
  pipeline.graph.loss_stage = stages - 1;
  const double slowest_s = problem.compressor ? slowest_stage(problem, layout) : 0;
  std::vector<EdgeCodecs> codecs;
  int32_t begin = 0;
  for (int32_t k = 0; k < stages; ++k) {
    const auto at = static_cast<size_t>(k);
    const int32_t end = layout.ends[at], peer = layout.peers[at];
    const size_t run = problem.chain.at(begin, end);
    pipeline.stages.push_back({peer, problem.forward(peer, begin, end),
                               problem.backward(peer, begin, end), problem.chain.fixed_bytes[run],
                               problem.chain.stash_bytes[run], problem.chain.input_bytes[run],
                               !recompute.empty() && recompute[at]});
    pipeline.stages.back().shared_bytes = problem.chain.shared_bytes[run];
    begin = end;
    if (k + 1 == stages) break;
    for_each_values(problem, end, [&](const Chain::Values& values) {
      const auto id = static_cast<int32_t>(pipeline.graph.edges.size());
      pipeline.graph.edges.push_back(
          {id, id, k, k + 1, values.gradient, std::llround(values.bytes)});
      if (!problem.compressor) return;
      const int32_t next = layout.peers[at + 1];
      codecs.push_back({coded(problem, peer, next, values, false, slowest_s), {}});
      if (!values.gradient) return;
      codecs.back().backward = coded(problem, next, peer, values, true, slowest_s);
    });
  }
  for (const Chain::Tie& tie : problem.chain.ties) {
    const auto owner = static_cast<int32_t>(stage_of(layout, tie.first));
    const auto other = static_cast<int32_t>(stage_of(layout, tie.last));
    if (owner != other) pipeline.ties.push_back({owner, other, tie.bytes});
  }
  pipeline.agrees = problem.agrees;
  set_codecs(pipeline, std::move(codecs));
  return pipeline;
}

std::vector<bool> asked_recompute(const Problem& problem, const Layout& layout) {
  return std::vector<bool>(layout.ends.size(), problem.recompute == job::Recompute::kAlways);
}

int32_t gap_wanted(const Problem& problem, const Layout& layout) {
  if (problem.gap > 0) return std::min(problem.gap, problem.schedule.micro_batches);
  return choose_gap(chain_pipeline(problem, layout, asked_recompute(problem, layout)),
                    problem.network, problem.schedule.micro_batches)
      .gap;
}

double storing_seconds(const Problem& problem, const Layout& layout) {
  double slowest = 0;
  int32_t begin = 0;
  for (size_t k = 0; k < layout.ends.size(); ++k) {
    slowest = std::max(slowest, problem.storing(layout.peers[k], begin, layout.ends[k]));
    begin = layout.ends[k];
  }
  return problem.schedule.micro_batches * slowest;
}

Scored score_layout(const Problem& problem, const Layout& layout) {
  Scored best{layout, 0, kInfinity, {}};
  job::ScheduleOptions schedule = problem.schedule;
  for (MemoryPlan& plan : memory_plans(problem, layout, gap_wanted(problem, layout))) {
    schedule.gap = plan.gap;
    const double step_s = simulate_step(chain_pipeline(problem, layout, plan.recompute),
                                        problem.network, schedule, kPlayedActions);
    // Later ones recompute less.
    if (step_s > best.step_s) continue;
    best.gap = plan.gap;
    best.step_s = step_s;
    best.recompute = std::move(plan.recompute);
  }
  best.step_s = std::max(best.step_s, storing_seconds(problem, layout));
  return best;
}

double slowest_stage(const Problem& problem, const Layout& layout) {
  double slowest = 0;
  int32_t begin = 0;
  for (size_t k = 0; k < layout.ends.size(); ++k) {
    slowest = std::max(slowest, problem.work(layout.peers[k], begin, layout.ends[k]));
    begin = layout.ends[k];
  }
  return slowest;
}

}  // namespace weft::broker
