// What limits a pipeline, and what is told of its stages and ways.
#include <algorithm>
#include <map>
#include <utility>

#include "broker/planner/pipeline.h"

namespace weft::broker {
namespace {

size_t peer_of(const Pipeline& pipeline, int32_t stage) {
  return static_cast<size_t>(pipeline.stages[static_cast<size_t>(stage)].peer);
}

// What a micro-batch sends from stage to stage, all edges of one way together.
using Ways = std::map<std::pair<int32_t, int32_t>, WayPrediction>;
Ways ways_of(const Pipeline& pipeline) {
  Ways ways;
  const auto add = [&](int32_t from, int32_t to, double bytes, const Coded* coded) {
    WayPrediction& way = ways[{from, to}];
    way.from = from;
    way.to = to;
    way.bytes += bytes;
    way.wire_bytes += coded == nullptr ? bytes : coded->wire_bytes;
    if (coded == nullptr || coded->codec.empty()) return;
    way.encode_s += coded->encode_s;
    way.decode_s += coded->decode_s;
    const auto known = std::find(way.codecs.begin(), way.codecs.end(), coded->codec);
    if (known == way.codecs.end()) way.codecs.push_back(coded->codec);
  };
  for (size_t e = 0; e < pipeline.graph.edges.size(); ++e) {
    const opdag::Edge& edge = pipeline.graph.edges[e];
    const EdgeCodecs* codecs = pipeline.codecs.empty() ? nullptr : &pipeline.codecs[e];
    const auto bytes = static_cast<double>(edge.bytes);
    add(edge.from, edge.to, bytes, codecs == nullptr ? nullptr : &codecs->forward);
    if (!edge.needs_grad) continue;
    add(edge.to, edge.from, bytes, codecs == nullptr ? nullptr : &codecs->backward);
  }
  return ways;
}

// Stages that gradients come back to.
std::vector<bool> answered_stages(const Pipeline& pipeline) {
  std::vector<bool> answered(pipeline.stages.size(), false);
  for (const opdag::Edge& edge : pipeline.graph.edges) {
    if (edge.needs_grad) answered[static_cast<size_t>(edge.from)] = true;
  }
  return answered;
}

}  // namespace

GapChoice choose_gap(const Pipeline& pipeline, const Network& network, int32_t micro_batches) {
  GapChoice choice;
  for (const PipelineStage& stage : pipeline.stages) {
    choice.compute_s = std::max(choice.compute_s, stage.work_s());
  }
  const std::vector<bool> answered = answered_stages(pipeline);
  for (const auto& [way, sent] : ways_of(pipeline)) {
    // Where nothing comes back, there is nothing for a gap to hide.
    if (way.first < way.second && !answered[static_cast<size_t>(way.first)]) continue;
    const size_t from = peer_of(pipeline, way.first), to = peer_of(pipeline, way.second);
    const double latency_s = network.latency_s(from, to);
    const double transfer_s = sent.wire_bytes * network.seconds_per_byte(from, to);
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
  for (const auto& [way, sent] : ways) {
    if (way.second != way.first + 1 && way.first != way.second + 1) continue;
    const size_t from = peer_of(pipeline, way.first), to = peer_of(pipeline, way.second);
    hops[static_cast<size_t>(std::min(way.first, way.second))] +=
        network.latency_s(from, to) + sent.wire_bytes * network.seconds_per_byte(from, to);
  }
  return hops;
}

Bottleneck slowest_trip(const Pipeline& pipeline, const std::vector<double>& hops,
                        const job::ScheduleOptions& schedule) {
  Bottleneck worst{BottleneckKind::kLatency, 0, 0, 0, -1};
  const std::vector<int32_t> depth = job::depth_to_loss(pipeline.graph);
  std::vector<int32_t> warm_up;
  for (const int32_t d : depth) warm_up.push_back(job::warm_up_of(schedule, d));
  const std::vector<bool> answered = answered_stages(pipeline);
  for (size_t s = 0; s < pipeline.stages.size(); ++s) {
    double trip = pass_seconds(pipeline.stages[s], schedule);
    for (size_t t = s + 1; t < pipeline.stages.size() && answered[t - 1]; ++t) {
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
  for (const auto& [way, sent] : ways) {
    const double bytes = sent.wire_bytes;
    const size_t from = peer_of(pipeline, way.first), to = peer_of(pipeline, way.second);
    double seconds = bytes * network.pair_seconds_per_byte(from, to);
    const auto back = ways.find({way.second, way.first});
    // GPipe's phases use one direction at a time, so that both add up.
    if (phases && back != ways.end()) {
      seconds += back->second.wire_bytes * network.pair_seconds_per_byte(to, from);
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
  const Ways ways = ways_of(pipeline);
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
    row.codec_s = stage.codec_s();
    row.memory_bytes = memory_of(stage, schedule, depth[s], deepest);
    row.in_flight = job::in_flight_of(schedule, depth[s], deepest);
    if (result.step_s > 0) {
      row.busy = row.compute_s * schedule.micro_batches / result.step_s;
    }
    result.stages.push_back(row);
  }
  Ways ways = ways_of(pipeline);
  for (auto& [between, way] : ways) {
    way.seconds = way.wire_bytes *
                  network.seconds_per_byte(peer_of(pipeline, way.from), peer_of(pipeline, way.to));
    way.busy = result.step_s > 0 ? way.seconds * schedule.micro_batches / result.step_s : 0;
    result.stages[static_cast<size_t>(way.from)].send_s += way.seconds;
    result.stages[static_cast<size_t>(way.to)].receive_s += way.seconds;
    result.ways.push_back(std::move(way));
  }
  return result;
}

}  // namespace weft::broker
