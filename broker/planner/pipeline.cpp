#include "broker/planner/pipeline.h"

#include <algorithm>
#include <array>
#include <map>
#include <queue>
#include <utility>

#include "broker/planner/schedule_play.h"

namespace weft::broker {
namespace {

size_t peer_of(const Pipeline& pipeline, int32_t stage) {
  return static_cast<size_t>(pipeline.stages[static_cast<size_t>(stage)].peer);
}

// Bytes of a micro-batch from stage to stage, all edges of one way together.
using Ways = std::map<std::pair<int32_t, int32_t>, double>;
Ways ways_of(const opdag::StageGraph& graph) {
  Ways ways;
  for (const opdag::Edge& edge : graph.edges) {
    const auto bytes = static_cast<double>(edge.bytes);
    ways[{edge.from, edge.to}] += bytes;
    if (edge.needs_grad) ways[{edge.to, edge.from}] += bytes;
  }
  return ways;
}

// Two steps in a time of their own. Stages are advanced in order of time, so that lines serve those
// who come first.
class StepJudge final : public SchedulePlay::Host {
 public:
  StepJudge(const Pipeline& pipeline, const Network& network, const job::ScheduleOptions& schedule)
      : play_(pipeline, schedule, *this) {
    std::map<std::pair<size_t, size_t>, size_t> pairs;
    std::vector<int32_t> shared;
    for (const PlayWay& way : play_.ways()) {
      const size_t from = peer_of(pipeline, way.from), to = peer_of(pipeline, way.to);
      Route route{network.latency_s(from, to), {}};
      const size_t pair =
          pairs.try_emplace({from, to}, network.lines() + pairs.size()).first->second;
      route.lines.emplace_back(pair, way.bytes * network.pair_seconds_per_byte(from, to));
      shared.clear();
      network.lines_of(from, to, shared);
      for (const int32_t line : shared) {
        const auto at = static_cast<size_t>(line);
        route.lines.emplace_back(at, way.bytes * network.line_seconds_per_byte(at));
      }
      routes_.push_back(std::move(route));
    }
    free_at_.assign(network.lines() + pairs.size(), 0.0);
  }

  // Seconds from the end of the first step to that of the second, as in any step of a run: the end
  // of one overlaps the beginning of the next where nothing has to wait.
  double run(size_t stages) {
    for (size_t stage = 0; stage < stages; ++stage) {
      play_.start(static_cast<int32_t>(stage), 0, 2, 0);
    }
    while (!ready_.empty()) {
      const auto [now, stage] = ready_.top();
      ready_.pop();
      play_.advance(stage, now);
    }
    return ends_[1] - ends_[0];
  }

 private:
  // What a message occupies, and how long.
  struct Route {
    double latency_s = 0;
    std::vector<std::pair<size_t, double>> lines;  // line, seconds on it
  };

  void wake(int32_t stage, double time_s) override { ready_.emplace(time_s, stage); }
  double compute(int32_t, const SchedulePlay::Op& op, int64_t, double) override {
    return op.seconds;
  }
  double send(int32_t, const SchedulePlay::Op& op, int64_t, double now) override {
    const Route& route = routes_[static_cast<size_t>(op.way)];
    double passed = now;
    for (const auto& [line, seconds] : route.lines) {
      free_at_[line] = std::max(free_at_[line], now) + seconds;
      passed = std::max(passed, free_at_[line]);
    }
    return passed + route.latency_s;
  }
  void stepped(int32_t, int64_t step, double now) override {
    double& end = ends_[static_cast<size_t>(step - 1)];
    end = std::max(end, now);
  }

  SchedulePlay play_;
  std::vector<Route> routes_;  // by way
  std::vector<double> free_at_;
  using Ready = std::pair<double, int32_t>;
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready_;
  std::array<double, 2> ends_{};
};

// In the precision of a float: plans that take as long are equal, in whichever order times were
// added up.
double play(const Pipeline& pipeline, const Network& network, job::ScheduleOptions schedule,
            int32_t micro_batches) {
  schedule.micro_batches = micro_batches;
  return static_cast<float>(StepJudge(pipeline, network, schedule).run(pipeline.stages.size()));
}

}  // namespace

double tie_seconds(const Pipeline& pipeline, const Network& network) {
  double longest = 0;
  for (const PipelineTie& tie : pipeline.ties) {
    const size_t a = peer_of(pipeline, tie.owner), b = peer_of(pipeline, tie.other);
    longest = std::max(
        longest, network.latency_s(a, b) + network.latency_s(b, a) +
                     tie.bytes * (network.seconds_per_byte(a, b) + network.seconds_per_byte(b, a)));
  }
  return longest;
}

double simulate_step(const Pipeline& pipeline, const Network& network,
                     const job::ScheduleOptions& schedule, size_t most_actions) {
  const size_t each = 3 * pipeline.stages.size() + 4 * pipeline.graph.edges.size();
  const auto most = static_cast<int32_t>(std::min<size_t>(
      std::max<size_t>(most_actions / std::max<size_t>(2 * each, 1), 16), 1 << 16));
  if (schedule.micro_batches <= most) {
    return play(pipeline, network, schedule, schedule.micro_batches);
  }
  const double half = play(pipeline, network, schedule, most / 2);
  const double whole = play(pipeline, network, schedule, most);
  return whole + (whole - half) / (most - most / 2) * (schedule.micro_batches - most);
}

double memory_of(const PipelineStage& stage, const job::ScheduleOptions& schedule, int32_t depth,
                 int32_t deepest) {
  const int32_t in_flight = job::in_flight_of(schedule, depth, deepest);
  if (!stage.recompute) return stage.fixed_bytes + stage.stash_bytes * in_flight;
  const int32_t recorded = job::recorded_of(schedule, depth, deepest);
  return stage.fixed_bytes + stage.stash_bytes * recorded +
         stage.input_bytes * (in_flight - recorded);
}

double pass_seconds(const PipelineStage& stage, const job::ScheduleOptions& schedule) {
  const bool split = schedule.kind == job::PipelineSchedule::kZbH1;
  return stage.forward_s + stage.again_s() + (split ? 1 - kWeightShare : 1) * stage.backward_s;
}

GapChoice choose_gap(const Pipeline& pipeline, const Network& network, int32_t micro_batches) {
  GapChoice choice;
  for (const PipelineStage& stage : pipeline.stages) {
    choice.compute_s = std::max(choice.compute_s, stage.work_s());
  }
  for (const auto& [way, bytes] : ways_of(pipeline.graph)) {
    const size_t from = peer_of(pipeline, way.first), to = peer_of(pipeline, way.second);
    const double latency_s = network.latency_s(from, to);
    const double transfer_s = bytes * network.seconds_per_byte(from, to);
    // More warm-up than micro-batches is none.
    const int32_t gap =
        std::min(job::gap_for(latency_s, transfer_s, choice.compute_s), micro_batches);
    // Of two that ask for as much, the one that was measured is told.
    const bool told = gap == choice.gap && gap > 1 && !network.assumed(from, to) &&
                      network.assumed(peer_of(pipeline, choice.from), peer_of(pipeline, choice.to));
    if (gap <= choice.gap && !told) continue;
    choice = {gap, way.first, way.second, latency_s, transfer_s, choice.compute_s};
  }
  return choice;
}

namespace {

// Seconds of neighbours' messages both ways; skips overtake those that go stage by stage.
std::vector<double> hops_of(const Pipeline& pipeline, const Network& network, const Ways& ways) {
  std::vector<double> hops(pipeline.stages.size(), 0.0);
  for (const auto& [way, bytes] : ways) {
    if (way.second != way.first + 1 && way.first != way.second + 1) continue;
    const size_t from = peer_of(pipeline, way.first), to = peer_of(pipeline, way.second);
    hops[static_cast<size_t>(std::min(way.first, way.second))] +=
        network.latency_s(from, to) + bytes * network.seconds_per_byte(from, to);
  }
  return hops;
}

Bottleneck slowest_trip(const Pipeline& pipeline, const std::vector<double>& hops,
                        const job::ScheduleOptions& schedule) {
  Bottleneck worst{BottleneckKind::kLatency, 0, 0, 0, -1};
  const std::vector<int32_t> depth = job::depth_to_loss(pipeline.graph);
  std::vector<int32_t> warm_up;
  for (const int32_t d : depth) warm_up.push_back(job::warm_up_of(schedule, d));
  for (size_t s = 0; s < pipeline.stages.size(); ++s) {
    double trip = pass_seconds(pipeline.stages[s], schedule);
    for (size_t t = s + 1; t < pipeline.stages.size(); ++t) {
      trip += hops[t - 1] + pass_seconds(pipeline.stages[t], schedule);
      const double seconds = trip / std::max(warm_up[s] - warm_up[t] + 1, 1);
      if (warm_up[s] < schedule.micro_batches && seconds > worst.seconds) {
        worst = {BottleneckKind::kLatency, seconds, static_cast<int32_t>(s),
                 static_cast<int32_t>(t), -1};
      }
    }
  }
  return worst;
}

// Everything that limits the rate of a full pipeline but round trips.
template <typename Visit>
void for_each_limit(const Pipeline& pipeline, const Network& network, const Ways& ways, bool phases,
                    const Visit& visit) {
  const auto& stages = pipeline.stages;
  for (size_t s = 0; s < stages.size(); ++s) {
    visit(Bottleneck{BottleneckKind::kCompute, stages[s].work_s(), static_cast<int32_t>(s), 0, -1});
  }
  std::map<int32_t, double> lines;
  std::vector<int32_t> shared;
  for (const auto& [way, bytes] : ways) {
    const size_t from = peer_of(pipeline, way.first), to = peer_of(pipeline, way.second);
    double seconds = bytes * network.pair_seconds_per_byte(from, to);
    const auto back = ways.find({way.second, way.first});
    // GPipe's phases use one direction at a time, so that both add up.
    if (phases && back != ways.end()) {
      seconds += back->second * network.pair_seconds_per_byte(to, from);
    }
    visit(Bottleneck{BottleneckKind::kLink, seconds, way.first, way.second, -1});
    shared.clear();
    network.lines_of(from, to, shared);
    for (const int32_t line : shared) {
      lines[line] += bytes * network.line_seconds_per_byte(static_cast<size_t>(line));
    }
  }
  for (const auto& [line, seconds] : lines) {
    visit(Bottleneck{BottleneckKind::kLine, seconds, 0, 0, line});
  }
}

}  // namespace

Bottleneck bottleneck_of(const Pipeline& pipeline, const Network& network,
                         const job::ScheduleOptions& schedule) {
  const Ways ways = ways_of(pipeline.graph);
  Bottleneck worst;
  for_each_limit(pipeline, network, ways, schedule.kind == job::PipelineSchedule::kGPipe,
                 [&](const Bottleneck& limit) {
                   if (limit.seconds > worst.seconds) worst = limit;
                 });
  const Bottleneck trip = slowest_trip(pipeline, hops_of(pipeline, network, ways), schedule);
  // A pipeline of equal stages ties with its own round trip: then computing is what to name.
  constexpr double kClearly = 1.001;
  return trip.seconds > kClearly * worst.seconds ? trip : worst;
}

Prediction predict(const Pipeline& pipeline, const Network& network,
                   const job::ScheduleOptions& schedule) {
  Prediction result;
  result.step_s = simulate_step(pipeline, network, schedule);
  result.tie_s = tie_seconds(pipeline, network);
  result.bottleneck = bottleneck_of(pipeline, network, schedule);
  const std::vector<int32_t> depth = job::depth_to_loss(pipeline.graph);
  const int32_t deepest = *std::max_element(depth.begin(), depth.end());
  for (size_t s = 0; s < pipeline.stages.size(); ++s) {
    const PipelineStage& stage = pipeline.stages[s];
    StagePrediction row;
    row.compute_s = stage.work_s();
    row.memory_bytes = memory_of(stage, schedule, depth[s], deepest);
    row.in_flight = job::in_flight_of(schedule, depth[s], deepest);
    if (result.step_s > 0) {
      row.busy = row.compute_s * schedule.micro_batches / result.step_s;
    }
    result.stages.push_back(row);
  }
  for (const auto& [way, bytes] : ways_of(pipeline.graph)) {
    const double seconds = bytes * network.seconds_per_byte(peer_of(pipeline, way.first),
                                                            peer_of(pipeline, way.second));
    const double busy = result.step_s > 0 ? seconds * schedule.micro_batches / result.step_s : 0;
    result.ways.push_back({way.first, way.second, bytes, seconds, busy});
    result.stages[static_cast<size_t>(way.first)].send_s += seconds;
    result.stages[static_cast<size_t>(way.second)].receive_s += seconds;
  }
  return result;
}

}  // namespace weft::broker
