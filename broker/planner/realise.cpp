#include "broker/planner/realise.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "broker/planner/cost.h"
#include "broker/planner/memory_plan.h"
#include "job/names.h"

namespace weft::broker {
namespace {

Result<job::PipelineSchedule> schedule_of(const job::JobSpec& spec) {
  if (spec.pipeline.schedule == job::PipelineSchedule::kAuto) return job::PipelineSchedule::k1F1B;
  std::string known;
  for (const auto& [name, value] : job::Names<job::PipelineSchedule>::kAll) {
    if (value == spec.pipeline.schedule) return value;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  return make_error(Code::kInvalid,
                    fmt::format("pipeline.schedule {} is none this broker knows",
                                static_cast<int>(spec.pipeline.schedule)),
                    "set it to one of: " + known);
}

// Peers without a speed become like the middle one of those that have one.
void fill_speeds(PlanInputs& in) {
  std::vector<const PlannerPeer*> known;
  for (const PlannerPeer& peer : in.peers) {
    in.speed_known.push_back(peer.speed_known());
    if (peer.speed_known()) known.push_back(&peer);
  }
  if (known.size() == in.peers.size()) return;
  if (known.empty()) {
    in.notes.push_back("no peer's speed is known: all count as equally fast");
    return;
  }
  std::stable_sort(known.begin(), known.end(), [&](const PlannerPeer* a, const PlannerPeer* b) {
    return in.seconds_alone(*a) > in.seconds_alone(*b);
  });
  const PlannerPeer middle = *known[known.size() / 2];
  in.notes.push_back(fmt::format("the speed of {} of {} peers is unknown: they count as fast as {}",
                                 in.peers.size() - known.size(), in.peers.size(), middle.id));
  for (PlannerPeer& peer : in.peers) {
    if (peer.speed_known()) continue;
    peer.profile = middle.profile;
    peer.correction = middle.correction;
    peer.gflops = middle.gflops;
    peer.memory_gbyte_s = middle.memory_gbyte_s;
    peer.op_us = middle.op_us;
  }
}

}  // namespace

double PlanInputs::seconds_alone(const PlannerPeer& peer) const {
  const job::PassSeconds seconds = seconds_of(work, peer, spec.train.precision);
  return seconds.forward + seconds.backward;
}

Result<PlanInputs> make_inputs(const opdag::Graph& graph, const job::JobSpec& spec,
                               const std::vector<PlannerPeer>& peers,
                               const std::vector<PlannerLink>& links,
                               const PlannerOptions& options) {
  WEFT_TRY(const int32_t micro_batches, micro_batches_of(graph, spec));
  WEFT_TRY(const job::PipelineSchedule kind, schedule_of(spec));
  PlanInputs in{graph,
                spec,
                options,
                peers,
                {},
                Network(0),
                {kind, micro_batches, 1},
                {},
                GraphCosts(graph, spec.train.precision),
                {},
                Compressor(options.compression),
                {}};
  for (const job::Work& node : in.costs.work) in.work.add(node);
  fill_speeds(in);
  std::vector<std::string> ids;
  for (const PlannerPeer& peer : in.peers) ids.push_back(peer.id);
  in.network = joined_network(ids, options.measured, links, options.access);
  const auto every = static_cast<double>(spec.train.checkpoint_every);
  for (size_t peer = 0; every > 0 && peer < ids.size(); ++peer) {
    in.store_s.push_back(to_broker_seconds_per_byte(in.network, peer) / every);
  }
  if (!in.network.measured() && peers.size() > 1) {
    in.notes.push_back("no link was measured: links delay nothing");
  }
  for (const std::string& note : in.network.notes()) in.notes.push_back(note);
  if (!options.compression.assumed.empty()) {
    in.notes.push_back("compression is assumed, not measured: " + options.compression.assumed);
  }
  return in;
}

double room_of(const PlannerPeer& peer, const PlannerOptions& options) {
  if (peer.free_memory_bytes == 0) return room_if_free(peer, options);
  const double free = static_cast<double>(peer.free_memory_bytes) -
                      options.free_reserve * static_cast<double>(peer.memory_bytes) -
                      peer.library_bytes();
  return std::min(room_if_free(peer, options), std::max(0.0, free));
}

double room_if_free(const PlannerPeer& peer, const PlannerOptions& options) {
  if (peer.memory_bytes == 0) return std::numeric_limits<double>::infinity();
  const double share = options.memory_share * static_cast<double>(peer.memory_bytes);
  return std::max(0.0, share - peer.library_bytes());
}

double room_of(const PlanInputs& in, int32_t peer) {
  return room_of(in.peers[static_cast<size_t>(peer)], in.options);
}

double room_if_free(const PlanInputs& in, int32_t peer) {
  return room_if_free(in.peers[static_cast<size_t>(peer)], in.options);
}

namespace {

void compress(const PlanInputs& in, Realised& realised) {
  if (!in.compressor) return;
  Pipeline& pipeline = realised.pipeline;
  double slowest_s = 0;
  for (const PipelineStage& stage : pipeline.stages) {
    slowest_s = std::max(slowest_s, stage.forward_s + stage.backward_s);
  }
  const auto ask = [&](size_t e, int32_t from, int32_t to, bool gradient) {
    const auto a = static_cast<size_t>(pipeline.stages[static_cast<size_t>(from)].peer);
    const auto b = static_cast<size_t>(pipeline.stages[static_cast<size_t>(to)].peer);
    return in.compressor.ask({static_cast<double>(pipeline.graph.edges[e].bytes),
                              realised.costs.edge_dtype[e], gradient, in.network.latency_s(a, b),
                              in.network.seconds_per_byte(a, b), memory_speed_of(in.peers[a]),
                              memory_speed_of(in.peers[b]), slowest_s});
  };
  std::vector<EdgeCodecs> codecs(pipeline.graph.edges.size());
  for (size_t e = 0; e < codecs.size(); ++e) {
    const opdag::Edge& edge = pipeline.graph.edges[e];
    codecs[e].forward = ask(e, edge.from, edge.to, false);
    if (edge.needs_grad) codecs[e].backward = ask(e, edge.to, edge.from, true);
  }
  set_codecs(pipeline, std::move(codecs));
}

}  // namespace

Result<Realised> realise(const PlanInputs& in, opdag::Partition partition,
                         std::vector<int32_t> peers) {
  Realised realised;
  WEFT_TRY(realised.costs, estimate_stages(in.graph, in.costs, in.spec, partition));
  realised.pipeline.graph = realised.costs.graph;
  realised.timed = true;
  for (size_t s = 0; s < peers.size(); ++s) {
    const auto peer = static_cast<size_t>(peers[s]);
    const job::PassSeconds seconds =
        seconds_of(realised.costs.work[s], in.peers[peer], in.spec.train.precision);
    realised.pipeline.stages.push_back(
        {peers[s], seconds.forward, seconds.backward, realised.costs.fixed_bytes[s],
         realised.costs.stash_bytes[s], realised.costs.input_bytes[s]});
    realised.pipeline.stages.back().shared_bytes = realised.costs.shared_bytes[s];
    realised.timed = realised.timed && in.speed_known[peer];
  }
  for (const opdag::TiedUse& use : in.costs.cuts.tied_uses(partition)) {
    if (!use.trainable) continue;
    const opdag::Leaf& leaf = in.graph.leaves[static_cast<size_t>(use.leaves[0])];
    for (const int32_t stage : use.stages) {
      if (stage == use.owner) continue;
      realised.pipeline.ties.push_back(
          {use.owner, stage, tied_bytes(in.graph, leaf, in.spec.train)});
    }
  }
  realised.pipeline.agrees = in.spec.train.stages_agree();
  realised.partition = std::move(partition);
  realised.peers = std::move(peers);
  compress(in, realised);
  WEFT_TRY_STATUS(in.compressor.status());
  return realised;
}

std::vector<double> stage_memories(const PlanInputs& in, const Realised& realised, int32_t gap) {
  job::ScheduleOptions schedule = in.schedule;
  schedule.gap = gap;
  const std::vector<int32_t> depth = job::depth_to_loss(realised.pipeline.graph);
  const int32_t deepest = *std::max_element(depth.begin(), depth.end());
  std::vector<double> bytes;
  for (size_t s = 0; s < depth.size(); ++s) {
    bytes.push_back(memory_of(realised.pipeline.stages[s], schedule, depth[s], deepest));
  }
  return bytes;
}

int32_t stage_over_memory(const PlanInputs& in, const Realised& realised, int32_t gap) {
  const std::vector<double> needs = stage_memories(in, realised, gap);
  for (size_t s = 0; s < needs.size(); ++s) {
    if (needs[s] > room_of(in, realised.peers[s])) return static_cast<int32_t>(s);
  }
  return -1;
}

namespace {

void set_recompute(Realised& realised, const std::vector<bool>& recompute) {
  for (size_t s = 0; s < recompute.size(); ++s) {
    realised.pipeline.stages[s].recompute = recompute[s];
  }
}

std::vector<MemoryPlan> plans_of(const PlanInputs& in, const Realised& realised, int32_t wanted) {
  job::ScheduleOptions schedule = in.schedule;
  const std::vector<int32_t> depth = job::depth_to_loss(realised.pipeline.graph);
  const int32_t deepest = *std::max_element(depth.begin(), depth.end());
  const auto fits = [&](size_t s, int32_t gap, bool recompute) {
    schedule.gap = gap;
    PipelineStage stage = realised.pipeline.stages[s];
    stage.recompute = recompute;
    return memory_of(stage, schedule, depth[s], deepest) <= room_of(in, realised.peers[s]);
  };
  return memory_plans(depth.size(), wanted, in.spec.pipeline.gap > 0, in.spec.pipeline.recompute,
                      fits);
}

}  // namespace

// Where a speed is unknown, so is what the gap would have to hide.
bool settle_memory(const PlanInputs& in, Realised& realised) {
  const bool always = in.spec.pipeline.recompute == job::Recompute::kAlways;
  set_recompute(realised, std::vector<bool>(realised.peers.size(), always));
  GapChoice wanted;
  if (in.spec.pipeline.gap > 0) {
    wanted.gap = std::min(in.spec.pipeline.gap, in.schedule.micro_batches);
  } else if (realised.timed) {
    wanted = choose_gap(realised.pipeline, in.network, in.schedule.micro_batches);
  }
  std::optional<Realised> best;
  for (const MemoryPlan& plan : plans_of(in, realised, wanted.gap)) {
    Realised next = realised;
    next.gap = plan.gap;
    set_recompute(next, plan.recompute);
    predict_step(in, next);
    if (!best || next.step_s <= best->step_s) best = std::move(next);
  }
  if (!best) return false;
  realised = std::move(*best);
  if (wanted.gap == 1) return true;
  const auto name = [&](int32_t stage) {
    return in.peers[static_cast<size_t>(realised.peers[static_cast<size_t>(stage)])].id;
  };
  realised.gap_reason =
      wanted.from < 0
          ? std::string(" as asked")
          : fmt::format(
                " (from {} to {}: {:.3g} ms and {:.3g} ms a message, for {:.3g} ms of work)",
                name(wanted.from), name(wanted.to), 1e3 * wanted.latency_s, 1e3 * wanted.transfer_s,
                1e3 * wanted.compute_s);
  if (realised.gap < wanted.gap) {
    realised.gap_reason +=
        fmt::format(", {} for want of memory instead of {}", realised.gap, wanted.gap);
  }
  return true;
}

double storing_seconds(const PlanInputs& in, const Realised& realised, size_t stage) {
  if (in.store_s.empty()) return 0;
  return in.store_s[static_cast<size_t>(realised.peers[stage])] * realised.costs.shard_bytes[stage];
}

void predict_step(const PlanInputs& in, Realised& realised) {
  job::ScheduleOptions schedule = in.schedule;
  schedule.gap = realised.gap;
  realised.step_s = simulate_step(realised.pipeline, in.network, schedule);
  realised.pace_s = realised.step_s;
  for (size_t stage = 0; stage < realised.peers.size(); ++stage) {
    realised.pace_s = std::max(realised.pace_s, storing_seconds(in, realised, stage));
  }
}

Result<Pipeline> pipeline_of_plan(const opdag::Graph& graph, const job::JobSpec& spec,
                                  const job::Plan& plan, const std::vector<PlannerPeer>& peers,
                                  const std::vector<PlannerLink>& links,
                                  const PlannerOptions& options) {
  if (peers.size() != static_cast<size_t>(plan.partition.stages)) {
    return make_error(Code::kInvalid, fmt::format("{} peers for the {} stages of a plan",
                                                  peers.size(), plan.partition.stages));
  }
  WEFT_TRY(const PlanInputs in, make_inputs(graph, spec, peers, links, options));
  std::vector<int32_t> order(peers.size());
  std::iota(order.begin(), order.end(), 0);
  WEFT_TRY(Realised realised, realise(in, plan.partition, std::move(order)));
  for (size_t s = 0; s < std::min(plan.stages.size(), peers.size()); ++s) {
    realised.pipeline.stages[s].recompute = plan.stages[s].recompute;
  }
  return std::move(realised.pipeline);
}

}  // namespace weft::broker
