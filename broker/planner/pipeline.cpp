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

void set_codecs(Pipeline& pipeline, std::vector<EdgeCodecs> codecs) {
  pipeline.codecs = std::move(codecs);
  for (size_t e = 0; e < pipeline.codecs.size(); ++e) {
    const opdag::Edge& edge = pipeline.graph.edges[e];
    const auto& [forward, backward] = pipeline.codecs[e];
    PipelineStage& from = pipeline.stages[static_cast<size_t>(edge.from)];
    PipelineStage& to = pipeline.stages[static_cast<size_t>(edge.to)];
    from.forward_codec_s += forward.encode_s;
    to.forward_codec_s += forward.decode_s;
    to.backward_codec_s += backward.encode_s;
    from.backward_codec_s += backward.decode_s;
  }
}

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
  const size_t each =
      3 * pipeline.stages.size() + 4 * pipeline.graph.edges.size() + 4 * pipeline.codecs.size();
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
  return stage.fixed_bytes + stage.stash_bytes * recorded - stage.shared_bytes * (recorded - 1) +
         stage.input_bytes * (in_flight - recorded);
}

double pass_seconds(const PipelineStage& stage, const job::ScheduleOptions& schedule) {
  const bool split = schedule.kind == job::PipelineSchedule::kZbH1;
  return stage.forward_s + stage.again_s() + stage.codec_s() +
         (split ? 1 - kWeightShare : 1) * stage.backward_s;
}

}  // namespace weft::broker
