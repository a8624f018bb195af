#include "opdag/cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>

#include "opdag/cut_flow.h"

namespace weft::opdag {
namespace {

std::string describe(const Graph& graph, int32_t position) {
  const Node& node = graph.nodes[static_cast<size_t>(position)];
  return fmt::format("node {} ({})", node.id, node.op);
}

// Whether stage `to` is reached from stage `from` over edges between stages.
bool stage_reaches(const CutFlow& flow, const std::vector<int32_t>& stage_of, int32_t stages,
                   int32_t from, int32_t to) {
  std::vector<std::vector<int32_t>> next(static_cast<size_t>(stages));
  for (size_t i = 0; i < flow.successors.size(); ++i) {
    for (int32_t j : flow.sends_to(i)) {
      const int32_t a = stage_of[i], b = stage_of[static_cast<size_t>(j)];
      if (a != b) next[static_cast<size_t>(a)].push_back(b);
    }
  }
  std::vector<bool> seen(static_cast<size_t>(stages), false);
  std::vector<int32_t> open{from};
  while (!open.empty()) {
    const int32_t stage = open.back();
    open.pop_back();
    if (stage == to) return true;
    if (seen[static_cast<size_t>(stage)]) continue;
    seen[static_cast<size_t>(stage)] = true;
    for (int32_t other : next[static_cast<size_t>(stage)]) open.push_back(other);
  }
  return false;
}

Status check_shape(const Graph& graph, const Partition& partition) {
  const size_t nodes = graph.nodes.size();
  if (partition.stages < 1) {
    return make_error(Code::kInvalid, fmt::format("a cut into {} stages", partition.stages));
  }
  if (partition.stage_of.size() != nodes) {
    return make_error(Code::kInvalid,
                      fmt::format("the cut names stages of {} nodes, the graph has {}",
                                  partition.stage_of.size(), nodes));
  }
  if (static_cast<size_t>(partition.stages) > std::max<size_t>(nodes, 1)) {
    return make_error(Code::kInvalid, fmt::format("more stages than nodes: {} stages, {} nodes",
                                                  partition.stages, nodes));
  }
  std::vector<bool> used(static_cast<size_t>(partition.stages), false);
  for (size_t i = 0; i < nodes; ++i) {
    const int32_t stage = partition.stage_of[i];
    if (stage < 0 || stage >= partition.stages) {
      return make_error(Code::kInvalid, fmt::format("{} is in stage {}, the cut has {}",
                                                    describe(graph, static_cast<int32_t>(i)), stage,
                                                    partition.stages));
    }
    used[static_cast<size_t>(stage)] = true;
  }
  const auto empty = std::find(used.begin(), used.end(), false);
  if (empty != used.end() && nodes > 0) {
    return make_error(Code::kInvalid, fmt::format("stage {} has no node", empty - used.begin()));
  }
  return {};
}

// Sets that may not part, merged into disjoint ones.
class DisjointSets {
 public:
  explicit DisjointSets(size_t count) : parent_(count) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }
  int32_t find(int32_t item) {
    while (parent_[static_cast<size_t>(item)] != item) {
      auto& up = parent_[static_cast<size_t>(item)];
      up = parent_[static_cast<size_t>(up)];
      item = up;
    }
    return item;
  }
  // The smaller item represents the union.
  void unite(int32_t a, int32_t b) {
    a = find(a);
    b = find(b);
    parent_[static_cast<size_t>(std::max(a, b))] = std::min(a, b);
  }

 private:
  std::vector<int32_t> parent_;
};

// Tarjan's strongly connected components without recursion (graphs may be long chains).
class Components {
 public:
  explicit Components(const std::vector<std::vector<int32_t>>& next)
      : next_(next),
        index_(next.size(), kNone),
        low_(next.size(), 0),
        component_(next.size(), kNone) {
    for (size_t i = 0; i < next.size(); ++i) {
      if (index_[i] == kNone) visit(static_cast<int32_t>(i));
    }
  }
  int32_t of(int32_t item) const { return component_[static_cast<size_t>(item)]; }
  int32_t count() const { return count_; }

 private:
  struct Frame {
    int32_t item;
    size_t edge;
  };
  void enter(int32_t item) {
    index_[static_cast<size_t>(item)] = low_[static_cast<size_t>(item)] = clock_++;
    stack_.push_back(item);
    frames_.push_back({item, 0});
  }
  void leave(int32_t item) {
    const auto i = static_cast<size_t>(item);
    if (low_[i] == index_[i]) {
      int32_t member = kNone;
      do {
        member = stack_.back();
        stack_.pop_back();
        component_[static_cast<size_t>(member)] = count_;
      } while (member != item);
      ++count_;
    }
    frames_.pop_back();
    if (!frames_.empty()) {
      auto& up = low_[static_cast<size_t>(frames_.back().item)];
      up = std::min(up, low_[i]);
    }
  }
  void visit(int32_t root) {
    enter(root);
    while (!frames_.empty()) {
      Frame& frame = frames_.back();
      const auto i = static_cast<size_t>(frame.item);
      if (frame.edge == next_[i].size()) {
        leave(frame.item);
        continue;
      }
      const int32_t to = next_[i][frame.edge++];
      if (index_[static_cast<size_t>(to)] == kNone) {
        enter(to);
      } else if (component_[static_cast<size_t>(to)] == kNone) {
        low_[i] = std::min(low_[i], index_[static_cast<size_t>(to)]);
      }
    }
  }

  const std::vector<std::vector<int32_t>>& next_;
  std::vector<int32_t> index_, low_, component_, stack_;
  std::vector<Frame> frames_;
  int32_t clock_ = 0, count_ = 0;
};

// Units in topological order; among the ready ones the smallest first node goes first.
std::vector<std::vector<int32_t>> order_units(std::vector<std::vector<int32_t>> units,
                                              const std::vector<int32_t>& unit_of,
                                              const CutFlow& flow) {
  std::vector<int32_t> waiting(units.size(), 0);
  const auto for_each_edge = [&](size_t unit, const std::function<void(size_t)>& visit) {
    for (int32_t node : units[unit]) {
      for (int32_t user : flow.sends_to(static_cast<size_t>(node))) {
        const auto other = static_cast<size_t>(unit_of[static_cast<size_t>(user)]);
        if (other != unit) visit(other);
      }
    }
  };
  for (size_t unit = 0; unit < units.size(); ++unit) {
    for_each_edge(unit, [&](size_t other) { ++waiting[other]; });
  }
  using Ready = std::pair<int32_t, size_t>;  // first node, unit
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (waiting[unit] == 0) ready.emplace(units[unit].front(), unit);
  }
  std::vector<size_t> order;
  while (!ready.empty()) {
    const size_t unit = ready.top().second;
    ready.pop();
    order.push_back(unit);
    for_each_edge(unit, [&](size_t other) {
      if (--waiting[other] == 0) ready.emplace(units[other].front(), other);
    });
  }
  std::vector<std::vector<int32_t>> sorted;
  sorted.reserve(order.size());
  for (size_t unit : order) sorted.push_back(std::move(units[unit]));
  return sorted;
}

// What each stage computes for itself stands with its first reader.
std::vector<std::vector<int32_t>> with_first_readers(const std::vector<std::vector<int32_t>>& units,
                                                     const CutFlow& flow) {
  std::vector<size_t> unit_of(flow.copied.size(), 0);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    for (int32_t node : units[unit]) unit_of[static_cast<size_t>(node)] = unit;
  }
  for (size_t i = unit_of.size(); i-- > 0;) {
    if (!flow.copied[i] || flow.successors[i].empty()) continue;
    size_t first = units.size();
    for (int32_t user : flow.successors[i]) {
      first = std::min(first, unit_of[static_cast<size_t>(user)]);
    }
    unit_of[i] = first;
  }
  std::vector<std::vector<int32_t>> result(units.size());
  for (size_t i = 0; i < unit_of.size(); ++i) result[unit_of[i]].push_back(static_cast<int32_t>(i));
  std::erase_if(result, [](const auto& unit) { return unit.empty(); });
  return result;
}

}  // namespace

// A numbering that never falls along an edge is at once convex, acyclic and topological; and a
// legal cut has such a numbering. So one pass over the edges decides.
Status check_partition(const Graph& graph, const CutFlow& flow, const Partition& partition) {
  WEFT_TRY_STATUS(check_shape(graph, partition));
  const auto& stage_of = partition.stage_of;
  for (const auto& set : flow.inseparable) {
    for (int32_t node : set) {
      const int32_t a = stage_of[static_cast<size_t>(set.front())];
      const int32_t b = stage_of[static_cast<size_t>(node)];
      if (a == b) continue;
      return make_error(Code::kInvalid,
                        fmt::format("{} and {} share state or a value that cannot travel, but are "
                                    "in stages {} and {}",
                                    describe(graph, set.front()), describe(graph, node), a, b),
                        "cut between the units of the graph");
    }
  }
  for (size_t i = 0; i < flow.successors.size(); ++i) {
    for (int32_t j : flow.sends_to(i)) {
      const int32_t a = stage_of[i], b = stage_of[static_cast<size_t>(j)];
      if (a <= b) continue;
      const bool cycle = stage_reaches(flow, stage_of, partition.stages, b, a);
      return make_error(
          Code::kInvalid,
          fmt::format("{} in stage {} feeds {} in stage {}: {}",
                      describe(graph, static_cast<int32_t>(i)), a, describe(graph, j), b,
                      cycle ? "the two stages wait for each other"
                            : "stages must be numbered in a topological order"));
    }
  }
  return {};
}

Status check_partition(const Graph& graph, const Partition& partition) {
  WEFT_TRY_STATUS(check_shape(graph, partition));
  return check_partition(graph, CutFlow(graph), partition);
}

std::vector<std::vector<int32_t>> cut_units(const Graph& graph) {
  return cut_units(graph, CutFlow(graph));
}

std::vector<std::vector<int32_t>> cut_units(const Graph& graph, const CutFlow& flow) {
  const size_t nodes = graph.nodes.size();
  DisjointSets sets(nodes);
  for (const auto& set : flow.inseparable) {
    for (int32_t node : set) sets.unite(set.front(), node);
  }
  // A path from one member of a set to another through outsiders is a cycle of the merged graph, so
  // its strongly connected components are the closure.
  std::vector<std::vector<int32_t>> merged(nodes);
  for (size_t i = 0; i < nodes; ++i) {
    const int32_t from = sets.find(static_cast<int32_t>(i));
    for (int32_t j : flow.sends_to(i)) {
      if (const int32_t to = sets.find(j); to != from) {
        merged[static_cast<size_t>(from)].push_back(to);
      }
    }
  }
  const Components components(merged);
  std::vector<int32_t> unit_of(nodes, kNone);
  std::vector<int32_t> unit_of_component(static_cast<size_t>(components.count()), kNone);
  std::vector<std::vector<int32_t>> units;
  for (size_t i = 0; i < nodes; ++i) {
    const int32_t component = components.of(sets.find(static_cast<int32_t>(i)));
    auto& unit = unit_of_component[static_cast<size_t>(component)];
    if (unit == kNone) {
      unit = static_cast<int32_t>(units.size());
      units.emplace_back();
    }
    unit_of[i] = unit;
    units[static_cast<size_t>(unit)].push_back(static_cast<int32_t>(i));
  }
  return with_first_readers(order_units(std::move(units), unit_of, flow), flow);
}

}  // namespace weft::opdag
