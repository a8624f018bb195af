#include "broker/planner/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace weft::broker {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Times of a layout's stages and of the messages to the next stage and back, latency included.
struct ChainTimes {
  std::vector<double> forward, backward, there, back;
  std::vector<double> awaited;  // of a backward, the part that the stage before waits for
  double fill = 0;              // one micro-batch through everything and back
  double compute = 0;           // of the slowest stage
  double link = 0;              // of the busiest link
  double widest = 0;            // latency + transfer of the slowest message
};

// A backward that runs the forward again takes as much longer, and all of that is waited for.
ChainTimes times_of(const Problem& problem, const Layout& layout,
                    const std::vector<bool>& recompute) {
  const bool phases = problem.schedule.kind == job::PipelineSchedule::kGPipe;
  const bool split = problem.schedule.kind == job::PipelineSchedule::kZbH1;
  ChainTimes times;
  int32_t begin = 0;
  for (size_t k = 0; k < layout.ends.size(); ++k) {
    const int32_t peer = layout.peers[k], end = layout.ends[k];
    times.forward.push_back(problem.forward(peer, begin, end));
    const double backward = problem.backward(peer, begin, end);
    const double again = recompute[k] ? times.forward.back() : 0;
    times.backward.push_back(again + backward);
    times.awaited.push_back(again + (split ? (1 - kWeightShare) * backward : backward));
    const double work = times.forward.back() + times.backward.back();
    times.fill += work;
    times.compute = std::max(times.compute, work);
    begin = end;
    if (k + 1 == layout.ends.size()) break;
    const auto a = static_cast<size_t>(peer), b = static_cast<size_t>(layout.peers[k + 1]);
    const auto cut = static_cast<size_t>(begin);
    const Network& network = problem.network;
    const double there = problem.chain.forward_bytes[cut] * network.seconds_per_byte(a, b);
    const double back = problem.chain.backward_bytes[cut] * network.seconds_per_byte(b, a);
    times.there.push_back(there + network.latency_s(a, b));
    times.back.push_back(back + network.latency_s(b, a));
    times.fill += times.there.back() + times.back.back();
    times.link = std::max(times.link, phases ? there + back : std::max(there, back));
    times.widest = std::max({times.widest, times.there.back(), times.back.back()});
  }
  return times;
}

// The slowest of the lines that several flows of a layout share, seconds a micro-batch.
double busiest_line(const Problem& problem, const Layout& layout, std::vector<double>& load) {
  const Network& network = problem.network;
  if (network.lines() == 0) return 0;
  load.assign(network.lines(), 0.0);
  std::vector<int32_t> lines;
  double worst = 0;
  const auto pass = [&](size_t from, size_t to, double bytes) {
    lines.clear();
    network.lines_of(from, to, lines);
    for (const int32_t line : lines) {
      const auto at = static_cast<size_t>(line);
      load[at] += bytes * network.line_seconds_per_byte(at);
      worst = std::max(worst, load[at]);
    }
  };
  for (size_t k = 0; k + 1 < layout.ends.size(); ++k) {
    const auto a = static_cast<size_t>(layout.peers[k]);
    const auto b = static_cast<size_t>(layout.peers[k + 1]);
    const auto cut = static_cast<size_t>(layout.ends[k]);
    pass(a, b, problem.chain.forward_bytes[cut]);
    pass(b, a, problem.chain.backward_bytes[cut]);
  }
  return worst;
}

size_t stage_of(const Layout& layout, int32_t unit) {
  return static_cast<size_t>(std::upper_bound(layout.ends.begin(), layout.ends.end(), unit) -
                             layout.ends.begin());
}

// The longest exchange of a weight that two stages share.
double tie_seconds(const Problem& problem, const Layout& layout) {
  double longest = 0;
  for (const Chain::Tie& tie : problem.chain.ties) {
    const size_t owner = stage_of(layout, tie.first), other = stage_of(layout, tie.last);
    if (owner == other) continue;
    const auto a = static_cast<size_t>(layout.peers[owner]);
    const auto b = static_cast<size_t>(layout.peers[other]);
    const Network& network = problem.network;
    longest = std::max(
        longest, network.latency_s(a, b) + network.latency_s(b, a) +
                     tie.bytes * (network.seconds_per_byte(a, b) + network.seconds_per_byte(b, a)));
  }
  return longest;
}

// Each stage's own bound: the way to it and back for one micro-batch, its work for all, and what it
// stands still at both ends, where its warm-up is done before the first gradient is there, and
// where nothing is left to begin before the last is.
double slowest_stage_bound(const Problem& problem, const ChainTimes& times,
                           const std::vector<int32_t>& warm_up) {
  double before = 0, worst = 0;
  for (size_t s = 0; s < times.forward.size(); ++s) {
    const double forward = times.forward[s], backward = times.backward[s];
    const double behind = times.fill - before - forward - backward;
    const double ahead = warm_up[s] - 1;
    const double idle =
        std::max(0.0, behind - ahead * forward) + std::max(0.0, behind - ahead * times.awaited[s]);
    worst = std::max(worst, before + idle + problem.schedule.micro_batches * (forward + backward));
    if (s < times.there.size()) {
      before += forward + backward + times.there[s] + times.back[s];
    }
  }
  return worst;
}

// Round trips between any two stages (pipeline.h).
double slowest_trip(const Problem& problem, const ChainTimes& times,
                    const std::vector<int32_t>& warm_up) {
  const auto pass = [&](size_t s) { return times.forward[s] + times.awaited[s]; };
  double worst = 0;
  for (size_t s = 0; s < times.forward.size(); ++s) {
    if (warm_up[s] >= problem.schedule.micro_batches) continue;
    double trip = pass(s);
    for (size_t t = s + 1; t < times.forward.size(); ++t) {
      trip += times.there[t - 1] + times.back[t - 1] + pass(t);
      worst = std::max(worst, trip / std::max(warm_up[s] - warm_up[t] + 1, 1));
    }
  }
  return worst;
}

bool any(const std::vector<bool>& flags) {
  return std::find(flags.begin(), flags.end(), true) != flags.end();
}

// What stages do before memory is looked at.
std::vector<bool> asked_recompute(const Problem& problem, const Layout& layout) {
  return std::vector<bool>(layout.ends.size(), problem.recompute == job::Recompute::kAlways);
}

double estimate_under(const Problem& problem, const Layout& layout, const ChainTimes& times,
                      int32_t gap) {
  job::ScheduleOptions schedule = problem.schedule;
  schedule.gap = gap;
  const auto stages = static_cast<int32_t>(layout.ends.size());
  std::vector<int32_t> warm_up;
  for (int32_t s = 0; s < stages; ++s) {
    warm_up.push_back(job::warm_up_of(schedule, stages - 1 - s));
  }
  std::vector<double> load;
  const double shared = std::max(
      {times.link, slowest_trip(problem, times, warm_up), busiest_line(problem, layout, load)});
  return std::max(slowest_stage_bound(problem, times, warm_up),
                  times.fill + (problem.schedule.micro_batches - 1) * shared) +
         tie_seconds(problem, layout);
}

}  // namespace

Chain::Chain(int32_t count) : units(count) {
  const auto cuts = static_cast<size_t>(count) + 1;
  forward_bytes.assign(cuts, 0.0);
  backward_bytes.assign(cuts, 0.0);
  fixed_bytes.assign(cuts * cuts, 0.0);
  stash_bytes.assign(cuts * cuts, 0.0);
  input_bytes.assign(cuts * cuts, 0.0);
}

double run_bytes(const Chain& chain, size_t run, int32_t in_flight) {
  return chain.fixed_bytes[run] + chain.stash_bytes[run] * in_flight;
}

double run_bytes_recomputed(const Chain& chain, size_t run, int32_t in_flight, int32_t recorded) {
  return chain.fixed_bytes[run] + chain.stash_bytes[run] * recorded +
         chain.input_bytes[run] * (in_flight - recorded);
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
  int32_t begin = 0;
  for (int32_t k = 0; k < stages; ++k) {
    const auto at = static_cast<size_t>(k);
    const int32_t end = layout.ends[at], peer = layout.peers[at];
    const size_t run = problem.chain.at(begin, end);
    pipeline.stages.push_back({peer, problem.forward(peer, begin, end),
                               problem.backward(peer, begin, end), problem.chain.fixed_bytes[run],
                               problem.chain.stash_bytes[run], problem.chain.input_bytes[run],
                               !recompute.empty() && recompute[at]});
    begin = end;
    if (k + 1 == stages) break;
    const auto cut = static_cast<size_t>(end);
    const double there = problem.chain.forward_bytes[cut];
    const double back = problem.chain.backward_bytes[cut];
    // Two edges where not everything that goes forward has a gradient.
    const auto edge = [&](double bytes, bool gradient) {
      const auto id = static_cast<int32_t>(pipeline.graph.edges.size());
      pipeline.graph.edges.push_back({id, id, k, k + 1, gradient, std::llround(bytes)});
    };
    if (back > 0 || there == 0) edge(std::min(back, there), true);
    if (there > back) edge(there - back, false);
  }
  for (const Chain::Tie& tie : problem.chain.ties) {
    const auto owner = static_cast<int32_t>(stage_of(layout, tie.first));
    const auto other = static_cast<int32_t>(stage_of(layout, tie.last));
    if (owner != other) pipeline.ties.push_back({owner, other, tie.bytes});
  }
  pipeline.agrees = problem.agrees;
  return pipeline;
}

double estimate_layout(const Problem& problem, const Layout& layout) {
  const std::vector<bool> asked = asked_recompute(problem, layout);
  const ChainTimes times = times_of(problem, layout, asked);
  const int32_t wanted =
      std::min(problem.gap > 0 ? problem.gap : job::gap_for(times.widest, 0, times.compute),
               problem.schedule.micro_batches);
  double least = kInfinity;
  for (const MemoryPlan& plan : memory_plans(problem, layout, wanted)) {
    const double step_s =
        plan.recompute == asked
            ? estimate_under(problem, layout, times, plan.gap)
            : estimate_under(problem, layout, times_of(problem, layout, plan.recompute), plan.gap);
    least = std::min(least, step_s);
  }
  return least;
}

int32_t gap_wanted(const Problem& problem, const Layout& layout) {
  if (problem.gap > 0) return std::min(problem.gap, problem.schedule.micro_batches);
  return choose_gap(chain_pipeline(problem, layout, asked_recompute(problem, layout)),
                    problem.network, problem.schedule.micro_batches)
      .gap;
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
  return best;
}

bool recomputes(const Problem& problem, const Layout& layout) {
  return any(score_layout(problem, layout).recompute);
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
