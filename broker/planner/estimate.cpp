// The closed form of a step (problem.h).
#include <algorithm>
#include <limits>
#include <utility>

#include "broker/planner/cut_codecs.h"
#include "broker/planner/problem.h"

namespace weft::broker {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Times of a layout's stages and of the messages to the next stage and back, latency included.
struct ChainTimes {
  std::vector<double> forward, backward, there, back;
  std::vector<double> there_bytes, back_bytes;  // on the wire
  std::vector<bool> answered;                   // whether a gradient comes back from the next stage
  std::vector<double> awaited;  // of a backward, the part that the stage before waits for
  double fill = 0;     // one micro-batch through everything and back, as stages wait for it
  double compute = 0;  // of the slowest stage
  double link = 0;     // of the busiest link
  double widest = 0;   // latency + transfer of the slowest message that is answered
};

// A backward that runs the forward again takes as much longer, and all of that is waited for.
ChainTimes times_of(const Problem& problem, const Layout& layout,
                    const std::vector<bool>& recompute) {
  const bool phases = problem.schedule.kind == job::PipelineSchedule::kGPipe;
  const bool split = problem.schedule.kind == job::PipelineSchedule::kZbH1;
  const double slowest_s = problem.compressor ? slowest_stage(problem, layout) : 0;
  const Network& network = problem.network;
  ChainTimes times;
  const size_t stages = layout.ends.size();
  for (auto* each : {&times.forward, &times.backward, &times.there, &times.back, &times.there_bytes,
                     &times.back_bytes, &times.awaited}) {
    each->reserve(stages);
  }
  CutMessages before, behind;  // at both ends of a stage
  int32_t begin = 0;
  for (size_t k = 0; k < layout.ends.size(); ++k) {
    const int32_t peer = layout.peers[k], end = layout.ends[k];
    const bool last = k + 1 == layout.ends.size();
    before = std::exchange(behind, {});
    if (!last) behind = messages_over(problem, peer, layout.peers[k + 1], end, slowest_s);
    const double forward = problem.forward(peer, begin, end);
    const double backward = problem.backward(peer, begin, end);
    const double more = (recompute[k] ? problem.again(peer, begin, end) : 0) +
                        before.receiver_backward_s + behind.sender_backward_s;
    times.forward.push_back(forward + before.receiver_forward_s + behind.sender_forward_s);
    times.backward.push_back(more + backward);
    times.awaited.push_back(more + (split ? (1 - kWeightShare) * backward : backward));
    const double work = times.forward.back() + times.backward.back();
    times.fill += times.forward.back() + times.awaited.back();
    times.compute = std::max(times.compute, work);
    begin = end;
    if (last) break;
    const auto a = static_cast<size_t>(peer), b = static_cast<size_t>(layout.peers[k + 1]);
    const double there = behind.there * network.seconds_per_byte(a, b);
    const double back = behind.back * network.seconds_per_byte(b, a);
    times.there_bytes.push_back(behind.there);
    times.back_bytes.push_back(behind.back);
    times.there.push_back(there + network.latency_s(a, b));
    times.answered.push_back(problem.chain.answered(end));
    times.back.push_back(times.answered.back() ? back + network.latency_s(b, a) : 0);
    times.fill += times.there.back() + times.back.back();
    times.link = std::max(times.link, phases ? there + back : std::max(there, back));
    if (!times.answered.back()) continue;
    times.widest = std::max({times.widest, times.there.back(), times.back.back()});
  }
  return times;
}

// The slowest of the lines that several flows of a layout share, seconds a micro-batch.
double busiest_line(const Problem& problem, const Layout& layout, const ChainTimes& times) {
  const Network& network = problem.network;
  if (network.lines() == 0) return 0;
  std::vector<double> load(network.lines(), 0.0);
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
    pass(a, b, times.there_bytes[k]);
    pass(b, a, times.back_bytes[k]);
  }
  return worst;
}

// What the exchange of a weight that two stages share delays most. Its gradient goes straight to
// the owner while backwards go on from stage to stage, the weight comes back while the forwards of
// the next step do.
double tie_seconds(const Problem& problem, const Layout& layout, const ChainTimes& times) {
  double longest = 0;
  for (const Chain::Tie& tie : problem.chain.ties) {
    const size_t owner = stage_of(layout, tie.first), other = stage_of(layout, tie.last);
    if (owner == other) continue;
    const auto a = static_cast<size_t>(layout.peers[owner]);
    const auto b = static_cast<size_t>(layout.peers[other]);
    const Network& network = problem.network;
    double gradient = network.latency_s(b, a) + tie.bytes * network.seconds_per_byte(b, a);
    double weight = network.latency_s(a, b) + tie.bytes * network.seconds_per_byte(a, b);
    bool answered = true;
    for (size_t k = other; k-- > owner;) {
      weight -= times.there[k] + times.forward[k];
      answered = answered && times.answered[k];
      if (answered) gradient -= times.back[k] + times.awaited[k];
    }
    longest = std::max(longest, std::max(0.0, gradient) + std::max(0.0, weight));
  }
  return longest;
}

// What a stage stands still, `behind` being the way of a micro-batch from it to the end and back:
// at both ends, where its warm-up is done before the first gradient is there, and where nothing is
// left to begin before the last is. Where all forwards are warm-up, that is one wait, in which a
// split backward makes the gradients of weights, too; and under GPipe nobody has a gradient before
// the last forward has gone all the way.
double idle_seconds(const Problem& problem, const ChainTimes& times, size_t stage, double behind,
                    int32_t warm_up) {
  const double ahead = warm_up - 1, forward = times.forward[stage];
  if (warm_up < problem.schedule.micro_batches) {
    return std::max(0.0, behind - ahead * forward) +
           std::max(0.0, behind - ahead * times.awaited[stage]);
  }
  if (problem.schedule.kind == job::PipelineSchedule::kGPipe) return behind;
  return std::max(0.0, behind - ahead * std::min(forward, times.backward[stage]));
}

// Each stage's own bound: the way to it and back for one micro-batch, its work for all, and what it
// stands still. Who gets no gradient waits for none.
double slowest_stage_bound(const Problem& problem, const ChainTimes& times,
                           const std::vector<int32_t>& warm_up) {
  double before = 0, worst = 0;
  for (size_t s = 0; s < times.forward.size(); ++s) {
    const double forward = times.forward[s], backward = times.backward[s];
    const double behind = times.fill - before - forward - times.awaited[s];
    const bool waits = s == times.there.size() || times.answered[s];
    const double idle = waits ? idle_seconds(problem, times, s, behind, warm_up[s]) : 0;
    worst = std::max(worst, before + idle + problem.schedule.micro_batches * (forward + backward));
    if (s < times.there.size()) {
      before += forward + times.awaited[s] + times.there[s] + times.back[s];
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
    for (size_t t = s + 1; t < times.forward.size() && times.answered[t - 1]; ++t) {
      trip += times.there[t - 1] + times.back[t - 1] + pass(t);
      worst = std::max(worst, trip / std::max(warm_up[s] - warm_up[t] + 1, 1));
    }
  }
  return worst;
}

double estimate_under(const Problem& problem, const Layout& layout, const ChainTimes& times,
                      int32_t gap) {
  job::ScheduleOptions schedule = problem.schedule;
  schedule.gap = gap;
  const auto stages = static_cast<int32_t>(layout.ends.size());
  std::vector<int32_t> warm_up;
  warm_up.reserve(layout.ends.size());
  for (int32_t s = 0; s < stages; ++s) {
    warm_up.push_back(job::warm_up_of(schedule, stages - 1 - s));
  }
  const double shared = std::max(
      {times.link, slowest_trip(problem, times, warm_up), busiest_line(problem, layout, times)});
  return std::max(slowest_stage_bound(problem, times, warm_up),
                  times.fill + (problem.schedule.micro_batches - 1) * shared) +
         tie_seconds(problem, layout, times);
}

}  // namespace

double estimate_layout(const Problem& problem, const Layout& layout) {
  return std::max(estimate_step(problem, layout), storing_seconds(problem, layout));
}

Estimate estimate(const Problem& problem, const Layout& layout) {
  const std::vector<bool> asked = asked_recompute(problem, layout);
  const ChainTimes times = times_of(problem, layout, asked);
  const int32_t wanted =
      std::min(problem.gap > 0 ? problem.gap : job::gap_for(times.widest, 0, times.compute),
               problem.schedule.micro_batches);
  Estimate best{kInfinity, {}};
  for (MemoryPlan& plan : memory_plans(problem, layout, wanted)) {
    const double step_s =
        plan.recompute == asked
            ? estimate_under(problem, layout, times, plan.gap)
            : estimate_under(problem, layout, times_of(problem, layout, plan.recompute), plan.gap);
    if (step_s < best.step_s) best = {step_s, std::move(plan)};
  }
  return best;
}

double estimate_step(const Problem& problem, const Layout& layout) {
  return estimate(problem, layout).step_s;
}

}  // namespace weft::broker
