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
  const auto grouped = [&graph](opdag::NodeId node) {
    const int32_t position = graph.node_index(node);
    return graph.nodes[static_cast<size_t>(position)].atomic_group != opdag::kNone;
  };
  std::set<opdag::ValueId> result;
  for (const opdag::Value& value : graph.values) {
    if (!with_gradient[static_cast<size_t>(value.id)] || value.consumers.size() < 2) continue;
    if (value.kind != opdag::ValueKind::kTensor) continue;
    if (value.producer != opdag::kNone && grouped(value.producer)) continue;
    if (std::any_of(value.consumers.begin(), value.consumers.end(), grouped)) continue;
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
