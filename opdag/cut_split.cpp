#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "opdag/cut.h"
#include "opdag/cut_flow.h"
#include "opdag/op_table.h"

namespace weft::opdag {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Status check_counts(size_t units, int32_t stages) {
  if (stages < 1) {
    return make_error(Code::kInvalid, fmt::format("cannot cut into {} stages", stages),
                      "ask for at least one stage");
  }
  if (static_cast<size_t>(stages) > units) {
    return make_error(Code::kInvalid,
                      fmt::format("more stages than nodes: {} stages, and the graph has {} units "
                                  "that can be cut apart",
                                  stages, units),
                      fmt::format("ask for at most {} stages", units));
  }
  return {};
}

Partition from_borders(const std::vector<std::vector<int32_t>>& units, size_t nodes,
                       const std::vector<size_t>& ends) {
  Partition partition;
  partition.stages = static_cast<int32_t>(ends.size());
  partition.stage_of.assign(nodes, 0);
  size_t unit = 0;
  for (size_t stage = 0; stage < ends.size(); ++stage) {
    for (; unit < ends[stage]; ++unit) {
      for (int32_t node : units[unit]) {
        partition.stage_of[static_cast<size_t>(node)] = static_cast<int32_t>(stage);
      }
    }
  }
  return partition;
}

// Bytes that cross each border of the unit order: border[j] lies before unit j.
std::vector<double> border_bytes(const Graph& graph, const CutFlow& flow,
                                 const std::vector<std::vector<int32_t>>& units) {
  std::vector<size_t> unit_of(graph.nodes.size(), 0);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    for (int32_t node : units[unit]) unit_of[static_cast<size_t>(node)] = unit;
  }
  std::vector<double> change(units.size() + 2, 0.0);
  for (const Value& value : graph.values) {
    const int32_t from = flow.sender[static_cast<size_t>(value.id)];
    if (from == kNone || value.kind != ValueKind::kTensor) continue;
    const size_t made = unit_of[static_cast<size_t>(from)];
    size_t last = made;
    for (int32_t user : flow.consumers[static_cast<size_t>(value.id)]) {
      last = std::max(last, unit_of[static_cast<size_t>(user)]);
    }
    const auto bytes = static_cast<double>(meta_bytes(value.meta));
    change[made + 1] += bytes;
    change[last + 1] -= bytes;
  }
  std::vector<double> border(units.size() + 1, 0.0);
  double live = 0;
  for (size_t j = 0; j <= units.size(); ++j) border[j] = live += change[j];
  return border;
}

// The least largest sum of `stages` non-empty runs. best[i]: of the first i units in k runs; it
// grows with i while the last run shrinks, so the best border is found by bisection.
double least_largest(const std::vector<double>& sums, int32_t stages) {
  const size_t n = sums.size() - 1;
  std::vector<double> best(n + 1, kInfinity), next;
  for (size_t i = 1; i <= n; ++i) best[i] = sums[i];
  for (int32_t k = 2; k <= stages; ++k) {
    next.assign(n + 1, kInfinity);
    const auto runs = static_cast<size_t>(k);
    for (size_t i = runs; i <= n; ++i) {
      size_t low = runs - 1, high = i - 1;  // first j where best[j] >= the last run, or i - 1
      while (low < high) {
        const size_t j = (low + high) / 2;
        if (best[j] >= sums[i] - sums[j]) {
          high = j;
        } else {
          low = j + 1;
        }
      }
      next[i] = std::max(best[low], sums[i] - sums[low]);
      if (low > runs - 1) {
        next[i] = std::min(next[i], std::max(best[low - 1], sums[i] - sums[low - 1]));
      }
    }
    best.swap(next);
  }
  return best[n];
}

// Of the splits whose runs stay within `bound`, the one with the least sum of border bytes.
std::vector<size_t> cheapest_borders(const std::vector<double>& sums,
                                     const std::vector<double>& border, int32_t stages,
                                     double bound) {
  const size_t n = sums.size() - 1;
  const auto count = static_cast<size_t>(stages);
  std::vector<std::vector<size_t>> from(count + 1, std::vector<size_t>(n + 1, 0));
  std::vector<double> best(n + 1, kInfinity), next;
  best[0] = 0;
  for (size_t k = 1; k <= count; ++k) {
    next.assign(n + 1, kInfinity);
    for (size_t i = k; i <= n; ++i) {
      for (size_t j = i; j-- > k - 1;) {
        if (sums[i] - sums[j] > bound) break;  // runs only get longer from here
        const double bytes = best[j] + (j > 0 ? border[j] : 0.0);
        if (bytes < next[i]) {
          next[i] = bytes;
          from[k][i] = j;
        }
      }
    }
    best.swap(next);
  }
  std::vector<size_t> ends(count);
  size_t end = n;
  for (size_t k = count; k > 0; --k) {
    ends[k - 1] = end;
    end = from[k][end];
  }
  return ends;
}

// The one node of a unit that is not computed by each stage for itself; kNone where more are.
int32_t only_sender(const std::vector<int32_t>& unit, const CutFlow& flow) {
  int32_t only = kNone;
  for (int32_t node : unit) {
    if (flow.copied[static_cast<size_t>(node)]) continue;
    if (only != kNone) return kNone;
    only = node;
  }
  return only;
}

// Moves units that only make or view values (masks, position ids, expanded views) to the first
// stage that uses them, last unit first so that chains follow. A unit whose results are needed in
// several later stages still moves: it then feeds those from the first of them.
// What stands with such a unit because each stage computes it for itself goes along.
void pull_to_users(const Graph& graph, const CutFlow& flow,
                   const std::vector<std::vector<int32_t>>& units,
                   const std::vector<double>& weights, double bound, Partition& partition) {
  auto& stage_of = partition.stage_of;
  std::vector<double> load(static_cast<size_t>(partition.stages), 0.0);
  std::vector<int32_t> members(load.size(), 0);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const auto stage = static_cast<size_t>(stage_of[static_cast<size_t>(units[unit].front())]);
    load[stage] += weights[unit];
    ++members[stage];
  }
  for (size_t unit = units.size(); unit-- > 0;) {
    const int32_t only = only_sender(units[unit], flow);
    if (only == kNone) continue;
    const auto position = static_cast<size_t>(only);
    const Node& node = graph.nodes[position];
    const OpInfo* info = find_op(node.op);
    const bool cheap = info != nullptr && (info->cost_class == CostClass::kCreate ||
                                           info->cost_class == CostClass::kView);
    const auto& users = flow.successors[position];
    if (!cheap || users.empty()) continue;
    const auto here = static_cast<size_t>(stage_of[position]);
    int32_t first = partition.stages;
    for (int32_t user : users) first = std::min(first, stage_of[static_cast<size_t>(user)]);
    const auto there = static_cast<size_t>(first);
    if (there == here || members[here] == 1 || load[there] + weights[unit] > bound) continue;
    int64_t read = 0;
    for (ValueId id : inputs_of(node)) {
      if (flow.sender[static_cast<size_t>(id)] == kNone) continue;
      read += meta_bytes(graph.value(id).meta);
    }
    if (read >= bytes_made(graph, node)) continue;
    for (int32_t member : units[unit]) stage_of[static_cast<size_t>(member)] = first;
    load[here] -= weights[unit];
    load[there] += weights[unit];
    --members[here];
    ++members[there];
  }
}

}  // namespace

Result<Partition> split_contiguous(const Graph& graph, const std::vector<double>& unit_weights,
                                   int32_t stages, double slack) {
  const auto units = cut_units(graph);
  WEFT_TRY_STATUS(check_counts(units.size(), stages));
  if (unit_weights.size() != units.size()) {
    return make_error(Code::kInvalid,
                      fmt::format("{} weights for {} units", unit_weights.size(), units.size()));
  }
  std::vector<double> sums(units.size() + 1, 0.0);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (!std::isfinite(unit_weights[unit]) || unit_weights[unit] < 0) {
      return make_error(Code::kInvalid,
                        fmt::format("weight {} of unit {}", unit_weights[unit], unit));
    }
    sums[unit + 1] = sums[unit] + unit_weights[unit];
  }
  const CutFlow flow(graph);
  const double bound = least_largest(sums, stages) * (1 + std::max(slack, 0.0));
  const auto ends = cheapest_borders(sums, border_bytes(graph, flow, units), stages, bound);
  Partition partition = from_borders(units, graph.nodes.size(), ends);
  pull_to_users(graph, flow, units, unit_weights, bound, partition);
  return partition;
}

Result<Partition> split_at(const Graph& graph, const std::vector<int32_t>& ends) {
  const CutFlow flow(graph);
  return split_at(graph, flow, cut_units(graph, flow), ends);
}

Result<Partition> split_at(const Graph& graph, const CutFlow& flow,
                           const std::vector<std::vector<int32_t>>& units,
                           const std::vector<int32_t>& ends) {
  std::vector<size_t> checked;
  for (const int32_t end : ends) {
    const size_t before = checked.empty() ? 0 : checked.back();
    if (end < 0 || static_cast<size_t>(end) <= before || static_cast<size_t>(end) > units.size()) {
      return make_error(Code::kInvalid, fmt::format("a stage that ends before unit {} of {}, "
                                                    "behind one that ends before unit {}",
                                                    end, units.size(), before));
    }
    checked.push_back(static_cast<size_t>(end));
  }
  if (checked.empty() || checked.back() != units.size()) {
    return make_error(Code::kInvalid,
                      fmt::format("the last stage must end behind unit {}", units.size()));
  }
  Partition partition = from_borders(units, graph.nodes.size(), checked);
  const std::vector<double> weightless(units.size(), 0.0);
  pull_to_users(graph, flow, units, weightless, 0, partition);
  return partition;
}

Result<Partition> random_partition(const Graph& graph, int32_t stages, Rng& rng) {
  const auto units = cut_units(graph);
  WEFT_TRY_STATUS(check_counts(units.size(), stages));
  const CutFlow flow(graph);
  std::vector<size_t> unit_of(graph.nodes.size(), 0);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    for (int32_t node : units[unit]) unit_of[static_cast<size_t>(node)] = unit;
  }
  std::vector<std::vector<size_t>> next(units.size());
  std::vector<int32_t> waiting(units.size(), 0);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (int32_t user : flow.sends_to(i)) {
      const size_t to = unit_of[static_cast<size_t>(user)];
      if (to == unit_of[i]) continue;
      next[unit_of[i]].push_back(to);
      ++waiting[to];
    }
  }
  std::vector<size_t> ready;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (waiting[unit] == 0) ready.push_back(unit);
  }
  std::vector<std::vector<int32_t>> order;
  while (!ready.empty()) {
    std::swap(ready[rng.below(ready.size())], ready.back());
    const size_t unit = ready.back();
    ready.pop_back();
    order.push_back(units[unit]);
    for (size_t to : next[unit]) {
      if (--waiting[to] == 0) ready.push_back(to);
    }
  }
  // Distinct borders: the first stages - 1 of shuffled inner positions.
  std::vector<size_t> borders;
  for (size_t j = 1; j < order.size(); ++j) borders.push_back(j);
  rng.shuffle(borders);
  borders.resize(static_cast<size_t>(stages - 1));
  std::sort(borders.begin(), borders.end());
  borders.push_back(order.size());
  return from_borders(order, graph.nodes.size(), borders);
}

}  // namespace weft::opdag
