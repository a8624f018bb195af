#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "opdag/cut.h"
#include "opdag/cut_flow.h"
#include "opdag/derive.h"

namespace weft::opdag {
namespace {

int32_t stage_of_node(const Partition& partition, int32_t node) {
  return partition.stage_of[static_cast<size_t>(node)];
}

// The stage that gives a graph output: its producer's, or for a leaf the lowest that reads it.
int32_t output_stage(const Flow& flow, const Partition& partition, ValueId value) {
  const int32_t from = flow.producer[static_cast<size_t>(value)];
  if (from != kNone) return stage_of_node(partition, from);
  int32_t lowest = partition.stages;
  for (int32_t user : flow.consumers[static_cast<size_t>(value)]) {
    lowest = std::min(lowest, stage_of_node(partition, user));
  }
  return lowest == partition.stages ? 0 : lowest;
}

// Whether a stage runs each node: its own, and what it computes from nothing for their sake.
std::vector<bool> nodes_run_by(const Partition& partition, const CutFlow& flow, int32_t stage) {
  std::vector<bool> runs(partition.stage_of.size(), false);
  for (size_t i = runs.size(); i-- > 0;) {
    const auto& users = flow.successors[i];
    runs[i] = partition.stage_of[i] == stage ||
              (flow.copied[i] && std::any_of(users.begin(), users.end(), [&](int32_t user) {
                 return runs[static_cast<size_t>(user)];
               }));
  }
  return runs;
}

StageGraph make_stage_graph(const Graph& graph, const Partition& partition, const CutFlow& flow) {
  StageGraph result;
  result.stages = partition.stages;
  const std::vector<bool> gradient = values_with_gradient(graph);
  for (const Value& value : graph.values) {
    const int32_t producer = flow.sender[static_cast<size_t>(value.id)];
    if (producer == kNone || value.kind != ValueKind::kTensor) continue;
    const int32_t from = stage_of_node(partition, producer);
    std::set<int32_t> targets;
    for (int32_t user : flow.consumers[static_cast<size_t>(value.id)]) {
      if (const int32_t to = stage_of_node(partition, user); to != from) targets.insert(to);
    }
    for (int32_t to : targets) {
      result.edges.push_back(
          {0, value.id, from, to, gradient[static_cast<size_t>(value.id)], meta_bytes(value.meta)});
    }
  }
  std::sort(result.edges.begin(), result.edges.end(), [](const Edge& a, const Edge& b) {
    return std::tie(a.from, a.to, a.value) < std::tie(b.from, b.to, b.value);
  });
  for (size_t i = 0; i < result.edges.size(); ++i) result.edges[i].id = static_cast<int32_t>(i);
  const int32_t loss = graph.loss_output != kNone ? graph.loss_output : 0;
  if (static_cast<size_t>(loss) < graph.outputs.size()) {
    result.loss_stage =
        output_stage(flow, partition, graph.outputs[static_cast<size_t>(loss)].value);
  }
  return result;
}

std::vector<int32_t> neighbours(const std::vector<Edge>& edges, int32_t Edge::*own,
                                int32_t Edge::*other, int32_t stage) {
  std::set<int32_t> found;
  for (const Edge& edge : edges) {
    if (edge.*own == stage) found.insert(edge.*other);
  }
  return {found.begin(), found.end()};
}

std::vector<int32_t> leaves_of_stage(const Graph& graph, const Partition& partition,
                                     const Flow& flow, int32_t index,
                                     const std::vector<int32_t>& nodes) {
  std::set<ValueId> needed;
  for (int32_t i : nodes) {
    for (ValueId id : inputs_of(graph.nodes[static_cast<size_t>(i)])) needed.insert(id);
  }
  for (const Output& output : graph.outputs) {
    if (output_stage(flow, partition, output.value) == index) needed.insert(output.value);
  }
  std::set<std::string> updated, updated_anywhere;
  for (const BufferUpdate& update : graph.buffer_updates) {
    updated_anywhere.insert(update.target);
    if (output_stage(flow, partition, update.value) == index) updated.insert(update.target);
  }
  std::set<int32_t> read_groups;
  for (const Leaf& leaf : graph.leaves) {
    if (!flow.consumers[static_cast<size_t>(leaf.value)].empty()) {
      read_groups.insert(leaf.tied_group);
    }
  }
  const auto unread_state = [&](const Leaf& leaf) {
    const bool state =
        leaf.kind == LeafKind::kParameter || (leaf.kind == LeafKind::kBuffer && leaf.persistent);
    return state && flow.consumers[static_cast<size_t>(leaf.value)].empty() &&
           !updated_anywhere.contains(leaf.target) &&
           (leaf.tied_group == kNone || !read_groups.contains(leaf.tied_group));
  };
  std::vector<int32_t> leaves;
  for (size_t i = 0; i < graph.leaves.size(); ++i) {
    const Leaf& leaf = graph.leaves[i];
    const bool written = leaf.kind != LeafKind::kUserInput && updated.contains(leaf.target);
    const bool kept = index == 0 && unread_state(leaf);
    if (written || kept || needed.contains(leaf.value)) leaves.push_back(static_cast<int32_t>(i));
  }
  return leaves;
}

Stage stage_at(const Graph& graph, const Partition& partition, const CutFlow& flow,
               const StageGraph& stages, int32_t index) {
  Stage stage;
  stage.index = index;
  const std::vector<bool> runs = nodes_run_by(partition, flow, index);
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i]) stage.nodes.push_back(static_cast<int32_t>(i));
  }
  stage.leaves = leaves_of_stage(graph, partition, flow, index, stage.nodes);
  for (const Edge& edge : stages.edges) {
    if (edge.to == index) stage.inputs.push_back(edge);
    if (edge.from == index) stage.outputs.push_back(edge);
  }
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    if (output_stage(flow, partition, graph.outputs[i].value) == index) {
      stage.graph_outputs.push_back(static_cast<int32_t>(i));
    }
  }
  return stage;
}

}  // namespace

std::vector<int32_t> StageGraph::consumers_of(int32_t stage) const {
  return neighbours(edges, &Edge::from, &Edge::to, stage);
}

std::vector<int32_t> StageGraph::producers_of(int32_t stage) const {
  return neighbours(edges, &Edge::to, &Edge::from, stage);
}

Result<StageGraph> stage_graph(const Graph& graph, const Partition& partition) {
  return stage_graph(graph, CutFlow(graph), partition);
}

Result<StageGraph> stage_graph(const Graph& graph, const CutFlow& flow,
                               const Partition& partition) {
  WEFT_TRY_STATUS(check_partition(graph, flow, partition));
  return make_stage_graph(graph, partition, flow);
}

Result<Stage> extract_stage(const Graph& graph, const Partition& partition, int32_t index) {
  const CutFlow flow(graph);
  WEFT_TRY_STATUS(check_partition(graph, flow, partition));
  if (index < 0 || index >= partition.stages) {
    return make_error(Code::kInvalid,
                      fmt::format("stage {} of a cut into {}", index, partition.stages));
  }
  return stage_at(graph, partition, flow, make_stage_graph(graph, partition, flow), index);
}

Result<std::vector<Stage>> extract_stages(const Graph& graph, const CutFlow& flow,
                                          const Partition& partition) {
  WEFT_TRY_STATUS(check_partition(graph, flow, partition));
  const StageGraph edges = make_stage_graph(graph, partition, flow);
  std::vector<Stage> stages;
  for (int32_t index = 0; index < partition.stages; ++index) {
    stages.push_back(stage_at(graph, partition, flow, edges, index));
  }
  return stages;
}

std::vector<TiedUse> tied_uses(const Graph& graph, const Partition& partition) {
  return tied_uses(graph, Flow(graph), partition);
}

std::vector<TiedUse> tied_uses(const Graph& graph, const Flow& flow, const Partition& partition) {
  std::vector<TiedUse> uses;
  std::map<int32_t, size_t> use_of_group;
  for (size_t i = 0; i < graph.leaves.size(); ++i) {
    const Leaf& leaf = graph.leaves[i];
    if (leaf.kind != LeafKind::kParameter) continue;
    size_t use = uses.size();
    if (leaf.tied_group != kNone)
      use = use_of_group.try_emplace(leaf.tied_group, use).first->second;
    if (use == uses.size()) {
      uses.emplace_back();
      uses.back().tied_group = leaf.tied_group;
      uses.back().trainable = false;
    }
    uses[use].leaves.push_back(static_cast<int32_t>(i));
    uses[use].trainable = uses[use].trainable || leaf.trainable;
    for (int32_t user : flow.consumers[static_cast<size_t>(leaf.value)]) {
      uses[use].stages.push_back(stage_of_node(partition, user));
    }
  }
  for (TiedUse& use : uses) {
    std::sort(use.stages.begin(), use.stages.end());
    use.stages.erase(std::unique(use.stages.begin(), use.stages.end()), use.stages.end());
    if (!use.stages.empty()) use.owner = use.stages.front();
  }
  std::erase_if(uses, [](const TiedUse& use) { return use.stages.size() < 2; });
  return uses;
}

}  // namespace weft::opdag
