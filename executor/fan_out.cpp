#include "executor/fan_out.h"

#include <algorithm>

namespace weft::executor {

std::vector<int32_t> consumer_positions(const opdag::Graph& graph, opdag::ValueId value) {
  std::vector<int32_t> positions;
  for (opdag::NodeId node : graph.value(value).consumers) {
    positions.push_back(graph.node_index(node));
  }
  std::sort(positions.begin(), positions.end());
  return positions;
}

std::set<opdag::ValueId> fan_out_values(const opdag::Graph& graph,
                                        const std::vector<bool>& with_gradient) {
  const auto group_of = [&graph](opdag::NodeId node) {
    return graph.nodes[static_cast<size_t>(graph.node_index(node))].atomic_group;
  };
  // Every node that touches memory with an unproven write is in one group (opdag/functional.h): a
  // value that a node outside reads or makes is written by nobody.
  const auto may_be_written = [&](const opdag::Value& value) {
    const int32_t group = group_of(value.consumers.front());
    if (group == opdag::kNone) return false;
    if (value.producer != opdag::kNone && group_of(value.producer) != group) return false;
    return std::all_of(value.consumers.begin(), value.consumers.end(),
                       [&](opdag::NodeId node) { return group_of(node) == group; });
  };
  std::set<opdag::ValueId> result;
  for (const opdag::Value& value : graph.values) {
    if (!with_gradient[static_cast<size_t>(value.id)] || value.consumers.size() < 2) continue;
    if (value.kind != opdag::ValueKind::kTensor) continue;
    if (may_be_written(value)) continue;
    result.insert(value.id);
  }
  return result;
}

std::vector<std::vector<int32_t>> gradient_groups(const opdag::Graph& graph,
                                                  const opdag::Partition& partition,
                                                  const opdag::Edge& edge, bool fans_out) {
  const std::vector<int32_t> all = consumer_positions(graph, edge.value);
  std::vector<std::vector<int32_t>> groups;
  bool last_run = true;  // still among the consumers that come last of all
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    if (partition.stage_of[static_cast<size_t>(*it)] != edge.to) {
      last_run = false;
      continue;
    }
    if (groups.empty() || (fans_out && !last_run)) groups.emplace_back();
    groups.back().insert(groups.back().begin(), *it);
  }
  return groups;
}

}  // namespace weft::executor
