#include "broker/planner/cost.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "broker/planner/graph_costs.h"
#include "opdag/op_table.h"

namespace weft::broker {
namespace {

// A CPU core does about 5 multiply-adds in the time one byte moves (measured order of magnitude).
constexpr double kFlopsPerByte = 5;

// Bytes a parameter element occupies while training: weight, gradient, optimizer state, in fp32
// (methods 3), twice that in fp64.
int64_t bytes_per_trained_element(const job::TrainSpec& train) {
  int64_t bytes = train.optimizer != job::Optimizer::kSgd ? 16 : train.momentum > 0 ? 12 : 8;
  if (train.precision == job::Precision::kFp64) bytes *= 2;
  return bytes;
}

}  // namespace

double leaf_bytes(const opdag::Graph& graph, const opdag::Leaf& leaf, const job::TrainSpec& train) {
  const opdag::TensorMeta& meta = graph.value(leaf.value).meta;
  if (leaf.kind != opdag::LeafKind::kParameter || !leaf.trainable) {
    return static_cast<double>(opdag::meta_bytes(meta));
  }
  return static_cast<double>(element_count(meta.sizes).value_or(0) *
                             bytes_per_trained_element(train));
}

double stored_bytes(const opdag::Graph& graph, const opdag::Leaf& leaf,
                    const job::TrainSpec& train) {
  if (leaf.kind == opdag::LeafKind::kParameter) {
    return leaf_bytes(graph, leaf, train) - (leaf.trainable ? tied_bytes(graph, leaf, train) : 0);
  }
  return leaf.kind == opdag::LeafKind::kBuffer && leaf.persistent ? leaf_bytes(graph, leaf, train)
                                                                  : 0;
}

double tied_bytes(const opdag::Graph& graph, const opdag::Leaf& leaf, const job::TrainSpec& train) {
  const auto bytes = static_cast<double>(opdag::meta_bytes(graph.value(leaf.value).meta));
  return train.precision == job::Precision::kFp64 ? 2 * bytes : bytes;
}

double PlannerPeer::promised_gflops() const {
  if (gflops > 0 || !profile) return std::max(gflops, 0.0);
  const auto matrix = static_cast<size_t>(job::OpClass::kMatrix);
  const double each = profile->fp32.costs[matrix].forward.flop_s * correction;
  return each > 0 ? 1e-9 / each : 0;
}

job::PassSeconds seconds_of(const job::Work& work, const PlannerPeer& peer,
                            job::Precision precision) {
  job::PassSeconds seconds;
  if (peer.gflops > 0) {
    const double per_byte = peer.memory_gbyte_s > 0 ? 1e-9 / peer.memory_gbyte_s : 0;
    seconds = job::seconds_of(
        work, job::plain_costs(1e-9 / peer.gflops, per_byte, std::max(peer.op_us, 0.0) * 1e-6));
  } else if (peer.profile) {
    seconds = job::seconds_of(work, *peer.profile, precision);
  } else {
    constexpr double kPerFlop = 1e-9 / kNominalGflops;
    return job::seconds_of(work, job::plain_costs(kPerFlop, kFlopsPerByte * kPerFlop, 0));
  }
  return {seconds.forward * peer.correction, seconds.backward * peer.correction};
}

MemorySpeed memory_speed_of(const PlannerPeer& peer) {
  MemorySpeed speed;
  if (peer.gflops > 0) {
    speed.op_s = std::max(peer.op_us, 0.0) * 1e-6;
    speed.byte_s = peer.memory_gbyte_s > 0 ? 1e-9 / peer.memory_gbyte_s : 0;
  } else if (peer.profile) {
    const auto moves = static_cast<size_t>(job::OpClass::kElementwise);
    const job::OpCost& cost = peer.profile->fp32.costs[moves].forward;
    speed = {cost.op_s, cost.byte_s};
  }
  return {speed.op_s * peer.correction, speed.byte_s * peer.correction};
}

Result<StageCosts> estimate_stages(const opdag::Graph& graph, const GraphCosts& of,
                                   const job::JobSpec& spec, const opdag::Partition& partition) {
  const ValueBytes& bytes = of.bytes;
  const Stash& stash = of.stash;
  StageCosts costs;
  WEFT_TRY(costs.graph, of.cuts.stage_graph(partition));
  for (opdag::Edge& edge : costs.graph.edges) {
    edge.bytes = std::llround(bytes.sent[static_cast<size_t>(edge.value)]);
    costs.edge_dtype.push_back(bytes.dtype[static_cast<size_t>(edge.value)]);
  }
  WEFT_TRY(const std::vector<opdag::Stage> stages, of.cuts.stages(partition));
  for (const opdag::Stage& stage : stages) {
    job::StagePlan plan;
    const auto here = [&](int32_t node) {
      return partition.stage_of[static_cast<size_t>(node)] == stage.index;
    };
    double fixed = 0, shard = 0, kept = 0, given = 0, live = 0, gradients = 0;
    SharedBytes shared(stash);
    std::set<int32_t> flowing;  // nodes whose gradients flow on to other stages
    const auto flows_on = [&](int32_t node) {
      const auto& below = stash.below[static_cast<size_t>(node)];
      return std::any_of(below.begin(), below.end(),
                         [&](int32_t other) { return !here(other) || flowing.contains(other); });
    };
    bool backward = false;
    job::Work sum;
    for (int32_t node : stage.nodes) {
      const auto at = static_cast<size_t>(node);
      sum.add(of.work[at]);
      kept += stash.own[at];
      if (here(node)) {
        live = std::max(live, stash.live[at]);
        gradients = std::max(gradients, stash.gradients[at]);
        if (flows_on(node)) flowing.insert(node);
        shared.add(at, flowing.contains(node));
      }
      backward = backward || stash.backward[at];
      for (const opdag::ValueId id : opdag::outputs_of(graph, graph.nodes[at])) {
        const auto& keepers = stash.keepers[static_cast<size_t>(id)];
        if (std::any_of(keepers.begin(), keepers.end(), here)) {
          kept += stash.passing[static_cast<size_t>(id)];
        }
      }
    }
    fixed += live;
    kept += gradients;
    const job::ClassWork total = sum.total();
    plan.flops = total.flops_forward + total.flops_backward;
    for (const opdag::Edge& edge : stage.inputs) {
      const auto& keepers = stash.keepers[static_cast<size_t>(edge.value)];
      if (std::any_of(keepers.begin(), keepers.end(), here)) {
        kept += bytes.kept[static_cast<size_t>(edge.value)];
      }
      given += bytes.kept[static_cast<size_t>(edge.value)];
    }
    std::set<int32_t> tied;  // several names of one weight are stored once
    for (int32_t leaf_index : stage.leaves) {
      const opdag::Leaf& leaf = graph.leaves[static_cast<size_t>(leaf_index)];
      if (leaf.kind == opdag::LeafKind::kUserInput) {
        given += bytes.kept[static_cast<size_t>(leaf.value)];
        continue;
      }
      if (leaf.tied_group != opdag::kNone && !tied.insert(leaf.tied_group).second) continue;
      if (leaf.kind == opdag::LeafKind::kParameter) {
        plan.parameter_bytes += opdag::meta_bytes(graph.value(leaf.value).meta);
      }
      fixed += leaf_bytes(graph, leaf, spec.train);
      shard += stored_bytes(graph, leaf, spec.train);
    }
    costs.stages.push_back(std::move(plan));
    costs.work.push_back(sum);
    costs.fixed_bytes.push_back(fixed);
    costs.shard_bytes.push_back(shard);
    costs.stash_bytes.push_back(kept);
    costs.input_bytes.push_back(backward ? given : 0);
    costs.shared_bytes.push_back(shared.of(kept, gradients));
  }
  return costs;
}

}  // namespace weft::broker
