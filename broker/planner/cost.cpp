#include "broker/planner/cost.h"

#include <algorithm>
#include <set>

#include "opdag/op_table.h"

namespace weft::broker {
namespace {

// A CPU core does about 5 multiply-adds in the time one byte moves; forward, backward and the
// gradient's write make three passes over memory (measured orders of magnitude, methods 3).
constexpr double kFlopsPerByte = 5;
constexpr double kMemoryPasses = 3;

// Bytes a parameter element occupies while training: weight, gradient, optimizer state, in fp32
// (methods 3), twice that in fp64.
int64_t bytes_per_trained_element(const job::TrainSpec& train) {
  int64_t bytes = train.optimizer != job::Optimizer::kSgd ? 16 : train.momentum > 0 ? 12 : 8;
  if (train.precision == job::Precision::kFp64) bytes *= 2;
  return bytes;
}

// Activations of one micro-batch that backward keeps: every output that is not a view.
int64_t stash_bytes(const opdag::Graph& graph, const opdag::Stage& stage) {
  int64_t bytes = 0;
  for (const opdag::Edge& edge : stage.inputs) bytes += edge.bytes;
  for (int32_t index : stage.nodes) {
    const opdag::Node& node = graph.nodes[static_cast<size_t>(index)];
    const opdag::OpInfo* info = opdag::find_op(node.op);
    if (info != nullptr && info->view) continue;
    for (opdag::ValueId id : node.outputs) {
      if (id == opdag::kNone || graph.value(id).kind != opdag::ValueKind::kTensor) continue;
      bytes += opdag::meta_bytes(graph.value(id).meta);
    }
  }
  return bytes;
}

}  // namespace

std::vector<double> node_weights(const opdag::Graph& graph) {
  std::vector<double> weights;
  weights.reserve(graph.nodes.size());
  for (const opdag::Node& node : graph.nodes) {
    const opdag::OpInfo* info = opdag::find_op(node.op);
    const opdag::Cost cost = opdag::node_cost(graph, node);
    double weight = cost.flops_forward + cost.flops_backward;
    if (info == nullptr || !info->view) {
      weight += kFlopsPerByte * kMemoryPasses * cost.bytes_forward;
    }
    weights.push_back(weight);
  }
  return weights;
}

Result<std::vector<job::StagePlan>> estimate_stages(const opdag::Graph& graph,
                                                    const job::JobSpec& spec,
                                                    const opdag::Partition& partition,
                                                    const job::ScheduleOptions& schedule) {
  WEFT_TRY(const opdag::StageGraph stages, opdag::stage_graph(graph, partition));
  const std::vector<int32_t> depth = job::depth_to_loss(stages);
  std::vector<job::StagePlan> result;
  for (int32_t index = 0; index < partition.stages; ++index) {
    WEFT_TRY(const opdag::Stage stage, opdag::extract_stage(graph, partition, index));
    job::StagePlan plan;
    for (int32_t node : stage.nodes) {
      const opdag::Cost cost = opdag::node_cost(graph, graph.nodes[static_cast<size_t>(node)]);
      plan.flops += cost.flops_forward + cost.flops_backward;
    }
    std::set<int32_t> tied;  // several names of one weight are stored once
    for (int32_t leaf_index : stage.leaves) {
      const opdag::Leaf& leaf = graph.leaves[static_cast<size_t>(leaf_index)];
      if (leaf.kind == opdag::LeafKind::kUserInput) continue;
      if (leaf.tied_group != opdag::kNone && !tied.insert(leaf.tied_group).second) continue;
      const opdag::TensorMeta& meta = graph.value(leaf.value).meta;
      const int64_t bytes = opdag::meta_bytes(meta);
      if (leaf.kind == opdag::LeafKind::kParameter) plan.parameter_bytes += bytes;
      const bool trained = leaf.kind == opdag::LeafKind::kParameter && leaf.trainable;
      plan.memory_bytes +=
          trained ? element_count(meta.sizes).value_or(0) * bytes_per_trained_element(spec.train)
                  : bytes;
    }
    plan.memory_bytes +=
        stash_bytes(graph, stage) * job::warm_up_of(schedule, depth[static_cast<size_t>(index)]);
    result.push_back(std::move(plan));
  }
  return result;
}

}  // namespace weft::broker
