#include "broker/planner/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "broker/planner/cost.h"
#include "job/names.h"
#include "opdag/cut.h"

namespace weft::broker {
namespace {

struct Candidate {
  opdag::Partition partition;
  std::vector<job::StagePlan> stages;
  std::vector<std::string> peers;  // per stage
  double step = 0;                 // predicted, in cost units: (m + k - 1) x bottleneck
  double bottleneck_share = 0;     // of the whole cost
  int32_t bottleneck = 0;
  int32_t gap = 1;
  std::string gap_reason;  // empty for 1
};

std::string mebibytes(uint64_t bytes) {
  return fmt::format("{} MiB", (bytes + (1u << 20) - 1) >> 20);
}

// The biggest stages on the biggest peers; sorted matching fits whenever any matching does.
Status place(const std::vector<PlannerPeer>& peers, double share, Candidate& candidate) {
  const size_t count = candidate.stages.size();
  std::vector<size_t> by_need(count), by_room(peers.size());
  std::iota(by_need.begin(), by_need.end(), 0);
  std::iota(by_room.begin(), by_room.end(), 0);
  const auto room = [&](size_t i) {
    return peers[i].memory_bytes == 0 ? UINT64_MAX : peers[i].memory_bytes;
  };
  std::stable_sort(by_need.begin(), by_need.end(), [&](size_t a, size_t b) {
    return candidate.stages[a].memory_bytes > candidate.stages[b].memory_bytes;
  });
  std::stable_sort(by_room.begin(), by_room.end(),
                   [&](size_t a, size_t b) { return room(a) > room(b); });
  // Among peers of equal room keep the given order along the pipeline, so that plans read well.
  candidate.peers.assign(count, "");
  for (size_t i = 0; i < count; ++i) {
    const uint64_t need = static_cast<uint64_t>(candidate.stages[by_need[i]].memory_bytes);
    const size_t peer = by_room[i];
    if (peers[peer].memory_bytes != 0 &&
        static_cast<double>(need) > share * static_cast<double>(peers[peer].memory_bytes)) {
      return make_error(
          Code::kUnavailable,
          fmt::format("too little memory for {} stage{}: stage {} needs about {}, the best peer "
                      "left ({}) has {}",
                      count, count == 1 ? "" : "s", by_need[i], mebibytes(need), peers[peer].id,
                      mebibytes(peers[peer].memory_bytes)),
          "add peers, ask for more stages, or export a smaller micro-batch");
    }
    candidate.peers[by_need[i]] = peers[peer].id;
  }
  const bool equal = std::all_of(peers.begin(), peers.end(), [&](const PlannerPeer& peer) {
    return peer.memory_bytes == peers[0].memory_bytes;
  });
  if (equal) {
    for (size_t i = 0; i < count; ++i) candidate.peers[i] = peers[i].id;
  }
  return {};
}

struct Inputs {
  const opdag::Graph& graph;
  const job::JobSpec& spec;
  const std::vector<PlannerPeer>& peers;
  const std::vector<PlannerLink>& links;
  const PlannerOptions& options;
  job::ScheduleOptions schedule;
  std::vector<double> nodes, units;
};

// Seconds the slowest stage takes for a micro-batch; 0: not every peer's speed is known.
double compute_seconds(const Inputs& in, const Candidate& candidate) {
  double slowest = 0;
  for (size_t i = 0; i < candidate.stages.size(); ++i) {
    const auto peer = std::find_if(in.peers.begin(), in.peers.end(), [&](const PlannerPeer& p) {
      return p.id == candidate.peers[i];
    });
    if (peer == in.peers.end() || !(peer->gflops > 0)) return 0;
    slowest = std::max(slowest, candidate.stages[i].flops / (1e9 * peer->gflops));
  }
  return slowest;
}

// The widest gap any way between two stages asks for. A micro-batch's messages of all edges from
// one stage to another share the way; gradients take the way back.
void choose_gap(const Inputs& in, const opdag::StageGraph& graph, Candidate& candidate) {
  candidate.gap = 1;
  candidate.gap_reason.clear();
  const double compute_s = compute_seconds(in, candidate);
  std::map<std::pair<std::string, std::string>, int64_t> bytes;
  for (const opdag::Edge& edge : graph.edges) {
    const std::string& from = candidate.peers.at(static_cast<size_t>(edge.from));
    const std::string& to = candidate.peers.at(static_cast<size_t>(edge.to));
    bytes[{from, to}] += edge.bytes;
    if (edge.needs_grad) bytes[{to, from}] += edge.bytes;
  }
  for (const PlannerLink& link : in.links) {
    const auto used = bytes.find({link.from, link.to});
    if (used == bytes.end()) continue;
    const double latency_s = std::max(0.0, link.latency_ms / 1e3);
    const double transfer_s = link.bandwidth_mbit_s > 0 ? static_cast<double>(used->second) * 8 /
                                                              (1e6 * link.bandwidth_mbit_s)
                                                        : 0;
    // More warm-up than micro-batches is none.
    const int32_t gap =
        std::min(job::gap_for(latency_s, transfer_s, compute_s), in.schedule.micro_batches);
    if (gap <= candidate.gap) continue;
    candidate.gap = gap;
    candidate.gap_reason =
        fmt::format(" (from {} to {}: {:.3g} ms and {:.3g} ms a message, for {:.3g} ms of work)",
                    link.from, link.to, 1e3 * latency_s, 1e3 * transfer_s, 1e3 * compute_s);
  }
}

// Stages' needs and their peers. A wider gap keeps more activations: it is halved until they fit.
Status settle(const Inputs& in, Candidate& candidate) {
  job::ScheduleOptions schedule = in.schedule;
  WEFT_TRY(const opdag::StageGraph graph, opdag::stage_graph(in.graph, candidate.partition));
  WEFT_TRY(candidate.stages, estimate_stages(in.graph, in.spec, candidate.partition, schedule));
  WEFT_TRY_STATUS(place(in.peers, in.options.memory_share, candidate));
  choose_gap(in, graph, candidate);
  const int32_t wanted = candidate.gap;
  for (candidate.gap = 1, schedule.gap = wanted; schedule.gap > 1; schedule.gap /= 2) {
    Candidate wider = candidate;
    WEFT_TRY(wider.stages, estimate_stages(in.graph, in.spec, wider.partition, schedule));
    if (!place(in.peers, in.options.memory_share, wider).ok()) continue;
    candidate = std::move(wider);
    candidate.gap = schedule.gap;
    break;
  }
  if (candidate.gap < wanted) {
    candidate.gap_reason +=
        fmt::format(", {} for want of memory instead of {}", candidate.gap, wanted);
  }
  return {};
}

Result<Candidate> candidate_for(const Inputs& in, int32_t stages) {
  Candidate candidate;
  WEFT_TRY(candidate.partition, opdag::split_contiguous(in.graph, in.units, stages));
  WEFT_TRY_STATUS(settle(in, candidate));
  std::vector<double> cost(static_cast<size_t>(stages), 0.0);
  for (size_t i = 0; i < in.nodes.size(); ++i) {
    cost[static_cast<size_t>(candidate.partition.stage_of[i])] += in.nodes[i];
  }
  const auto most = std::max_element(cost.begin(), cost.end());
  candidate.bottleneck = static_cast<int32_t>(most - cost.begin());
  const double total = std::accumulate(cost.begin(), cost.end(), 0.0);
  candidate.bottleneck_share = total > 0 ? *most / total : 1.0 / stages;
  candidate.step = (in.schedule.micro_batches + stages - 1) * *most;
  return candidate;
}

// Plays the plan's schedule with the credits the workers will have. Every further micro-batch
// repeats what those before it did, so of very many only some are played: these bounds took 0.1 to
// 0.25 s over chains and over 32 stages with an edge between any two.
Status check_schedule(const Inputs& in, const Candidate& candidate) {
  constexpr size_t kMessages = 500000, kLeastMicroBatches = 64;
  WEFT_TRY(const opdag::StageGraph graph, opdag::stage_graph(in.graph, candidate.partition));
  const size_t a_micro_batch = graph.edges.size() + static_cast<size_t>(graph.stages);
  const size_t most = std::max(kLeastMicroBatches, kMessages / a_micro_batch);
  job::ScheduleOptions schedule = in.schedule;
  schedule.gap = candidate.gap;
  schedule.micro_batches =
      static_cast<int32_t>(std::min(static_cast<size_t>(in.schedule.micro_batches), most));
  const Status runs = job::check_runnable(graph, in.options.make_schedule(graph, schedule));
  if (runs.ok()) return {};
  return make_error(Code::kInternal,
                    fmt::format("the plan of {} stages under {} cannot run: {}", graph.stages,
                                job::name_of(in.schedule.kind), runs.error().message),
                    "ask for another pipeline.schedule or another number of stages, and report it");
}

Result<job::Plan> finish(const Inputs& in, Candidate candidate, const std::string& how) {
  WEFT_TRY_STATUS(check_schedule(in, candidate));
  job::Plan plan;
  const int32_t stages = candidate.partition.stages;
  plan.partition = std::move(candidate.partition);
  plan.stages = std::move(candidate.stages);
  for (size_t i = 0; i < plan.stages.size(); ++i) plan.stages[i].replicas = {candidate.peers[i]};
  plan.schedule = in.schedule.kind;
  plan.gap = candidate.gap;
  plan.reason = fmt::format(
      "{} over {} idle peer{}: bottleneck is stage {} with {:.0f} % of the work (even would be "
      "{:.0f} %); {} micro-batch{} a step, {}, gap {}{}; {} spare{}",
      how, in.peers.size(), in.peers.size() == 1 ? "" : "s", candidate.bottleneck,
      100 * candidate.bottleneck_share, 100.0 / stages, in.schedule.micro_batches,
      in.schedule.micro_batches == 1 ? "" : "es", job::name_of(in.schedule.kind), candidate.gap,
      candidate.gap_reason, in.peers.size() - static_cast<size_t>(stages),
      in.peers.size() - static_cast<size_t>(stages) == 1 ? "" : "s");
  return plan;
}

Result<job::Plan> plan_auto(const Inputs& in) {
  const int32_t most =
      std::min({static_cast<int32_t>(in.peers.size()), static_cast<int32_t>(in.units.size()),
                in.options.max_auto_stages});
  std::optional<Candidate> best;
  std::optional<Error> why;
  for (int32_t stages = 1; stages <= most; ++stages) {
    Result<Candidate> candidate = candidate_for(in, stages);
    if (!candidate.ok()) {
      why = candidate.error();
      continue;
    }
    if (!best || candidate->step < best->step * (1 - in.options.least_gain)) {
      best = std::move(candidate).value();
    }
  }
  if (!best) return std::move(*why);
  const int32_t stages = best->partition.stages;
  std::string how = fmt::format("auto: {} stage{}", stages, stages == 1 ? "" : "s");
  if (stages < most) {
    how += fmt::format(", more would not shorten the step by {:.0f} % each",
                       100 * in.options.least_gain);
  }
  return finish(in, std::move(*best), how);
}

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

}  // namespace

Result<int64_t> exported_batch(const opdag::Graph& graph, const job::JobSpec& spec) {
  std::optional<int64_t> batch;
  std::string first;
  for (const opdag::Leaf& leaf : graph.leaves) {
    if (leaf.kind != opdag::LeafKind::kUserInput) continue;
    const bool bound =
        std::any_of(spec.data.bindings.begin(), spec.data.bindings.end(),
                    [&](const job::Binding& binding) { return binding.input == leaf.target; });
    if (!bound) continue;
    const auto& sizes = graph.value(leaf.value).meta.sizes;
    if (sizes.empty()) {
      return make_error(Code::kInvalid,
                        fmt::format("input {} is a scalar, it has no batch dimension", leaf.target),
                        "export the model with batched inputs");
    }
    if (batch && *batch != sizes[0]) {
      return make_error(Code::kInvalid,
                        fmt::format("inputs {} and {} were exported with different batches: {} "
                                    "and {}",
                                    first, leaf.target, *batch, sizes[0]),
                        "export the model with one batch size");
    }
    batch = sizes[0];
    first = leaf.target;
  }
  if (!batch || *batch <= 0) {
    return make_error(Code::kInvalid, "no input of the graph is bound to data",
                      "bind columns to inputs in [data.inputs] of the job file");
  }
  return *batch;
}

Result<int32_t> micro_batches_of(const opdag::Graph& graph, const job::JobSpec& spec) {
  WEFT_TRY(const int64_t exported, exported_batch(graph, spec));
  if (spec.train.micro_batch != 0 && spec.train.micro_batch != exported) {
    return make_error(
        Code::kInvalid,
        fmt::format("train.micro_batch is {}, the export's batch is fixed at {}",
                    spec.train.micro_batch, exported),
        "leave train.micro_batch out, or export with one torch.export.Dim for dimension 0 of "
        "every input");
  }
  if (spec.train.batch <= 0 || spec.train.batch % exported != 0) {
    return make_error(
        Code::kInvalid,
        fmt::format("train.batch is {}, not a multiple of the exported batch {}", spec.train.batch,
                    exported),
        fmt::format("set train.batch to a multiple of {}, or export another batch", exported));
  }
  const int64_t count = spec.train.batch / exported;
  if (count > 65536) {
    return make_error(Code::kTooLarge, fmt::format("{} micro-batches a step; at most 65536", count),
                      "lower train.batch or export a larger batch");
  }
  return static_cast<int32_t>(count);
}

Result<job::Plan> make_plan(const opdag::Graph& graph, const job::JobSpec& spec,
                            const std::vector<PlannerPeer>& peers,
                            const std::vector<PlannerLink>& links, const PlannerOptions& options) {
  WEFT_TRY(const int32_t micro_batches, micro_batches_of(graph, spec));
  WEFT_TRY(const job::PipelineSchedule kind, schedule_of(spec));
  Inputs in{graph, spec, peers, links, options, {kind, micro_batches, 1}, node_weights(graph), {}};
  for (const std::vector<int32_t>& unit : opdag::cut_units(graph)) {
    double weight = 0;
    for (int32_t node : unit) weight += in.nodes[static_cast<size_t>(node)];
    in.units.push_back(weight);
  }
  const int32_t asked = spec.pipeline.stages;
  if (asked > static_cast<int32_t>(in.units.size())) {
    return make_error(Code::kInvalid,
                      fmt::format("more stages than nodes: {} stages asked, the graph can be cut "
                                  "into at most {} pieces",
                                  asked, in.units.size()),
                      fmt::format("ask for at most {} stages", in.units.size()));
  }
  if (peers.empty()) {
    return make_error(Code::kUnavailable, "no peers: none is idle",
                      "invite machines with `weft peer invite`, or start some with `weft up`");
  }
  if (asked > static_cast<int32_t>(peers.size())) {
    return make_error(Code::kUnavailable,
                      fmt::format("{} stages need {} peers, {} {} idle", asked, asked, peers.size(),
                                  peers.size() == 1 ? "is" : "are"),
                      "add peers or ask for fewer stages");
  }
  if (asked == 0) return plan_auto(in);
  WEFT_TRY(Candidate candidate, candidate_for(in, asked));
  return finish(in, std::move(candidate),
                fmt::format("{} stage{} as asked", asked, asked == 1 ? "" : "s"));
}

}  // namespace weft::broker
