#include "broker/planner/chain.h"

#include <algorithm>

#include "broker/planner/chain_memory.h"
#include "broker/planner/cost.h"
#include "broker/planner/part.h"
#include "opdag/derive.h"
#include "opdag/op_table.h"

namespace weft::broker {
namespace {

Units units_of(const opdag::Graph& graph, const opdag::Cuts& cuts) {
  Units units{cuts.units(), std::vector<int32_t>(graph.nodes.size(), 0), cuts.from_nothing(),
              cuts.senders()};
  for (size_t unit = 0; unit < units.nodes.size(); ++unit) {
    for (int32_t node : units.nodes[unit]) {
      units.of_node[static_cast<size_t>(node)] = static_cast<int32_t>(unit);
    }
  }
  return units;
}

// Whether a node is the only one of its unit, but for those that every stage runs for itself.
bool alone(const Units& units, size_t node) {
  const auto& unit = units.nodes[static_cast<size_t>(units.of_node[node])];
  return !units.copied[node] && std::all_of(unit.begin(), unit.end(), [&](int32_t other) {
    return static_cast<size_t>(other) == node || units.copied[static_cast<size_t>(other)];
  });
}

// What only makes or views values (masks of padding, ids of positions) follows its first user
// across a cut where that sends less: its users read its inputs instead (opdag::split_at moves it).
std::vector<Flow> flows_of(const opdag::Graph& graph, const Units& units, const ValueBytes& bytes,
                           const Stash& stash) {
  std::vector<std::vector<int32_t>> readers(graph.values.size()), keepers = readers;
  for (const opdag::Value& value : graph.values) {
    for (const int32_t node : stash.keepers[static_cast<size_t>(value.id)]) {
      keepers[static_cast<size_t>(value.id)].push_back(units.of_node[static_cast<size_t>(node)]);
    }
    for (const opdag::NodeId user : value.consumers) {
      const auto position = static_cast<size_t>(graph.node_index(user));
      readers[static_cast<size_t>(value.id)].push_back(units.of_node[position]);
    }
  }
  std::vector<bool> follows(graph.values.size(), false);
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const opdag::Node& node = graph.nodes[i];
    const opdag::OpInfo* info = opdag::find_op(node.op);
    const bool cheap = info != nullptr && (info->cost_class == opdag::CostClass::kCreate ||
                                           info->cost_class == opdag::CostClass::kView);
    if (!cheap || !alone(units, i)) continue;
    double read = 0, made = 0;
    std::vector<int32_t> users, keeping;
    for (const opdag::ValueId id : node.outputs) {
      if (id == opdag::kNone) continue;
      made += bytes.sent[static_cast<size_t>(id)];
      add_all(users, readers[static_cast<size_t>(id)]);
      if (stash.backward[i]) add_all(keeping, readers[static_cast<size_t>(id)]);
    }
    std::vector<opdag::ValueId> inputs;
    for (const opdag::ValueId id : opdag::inputs_of(node)) {
      if (units.sender[static_cast<size_t>(id)] == opdag::kNone) continue;
      read += bytes.sent[static_cast<size_t>(id)];
      inputs.push_back(id);
    }
    if (read >= made) continue;
    for (const opdag::ValueId id : node.outputs) {
      if (id != opdag::kNone) follows[static_cast<size_t>(id)] = true;
    }
    for (const opdag::ValueId id : inputs) {
      add_all(readers[static_cast<size_t>(id)], users);
      add_all(keepers[static_cast<size_t>(id)], keeping);
    }
  }
  const std::vector<bool> gradient = opdag::values_with_gradient(graph);
  std::vector<Flow> flows;
  for (const opdag::Value& value : graph.values) {
    const auto at = static_cast<size_t>(value.id);
    const int32_t sender = units.sender[at];
    if (sender == opdag::kNone || value.kind != opdag::ValueKind::kTensor) continue;
    if (follows[at]) continue;
    Flow flow{units.of_node[static_cast<size_t>(sender)],
              sorted_once(std::move(readers[at])),
              sorted_once(std::move(keepers[at])),
              bytes.kept[at],
              bytes.sent[at],
              gradient[at],
              bytes.dtype[at]};
    if (!flow.readers.empty()) flows.push_back(std::move(flow));
  }
  return flows;
}

std::vector<double> crossing(const std::vector<Flow>& flows, size_t units, bool backward) {
  std::vector<double> change(units + 2, 0.0), bytes(units + 1, 0.0);
  for (const Flow& flow : flows) {
    if (flow.readers.back() <= flow.made || (backward && !flow.gradient)) continue;
    change[static_cast<size_t>(flow.made) + 1] += flow.sent;
    change[static_cast<size_t>(flow.readers.back()) + 1] -= flow.sent;
  }
  double live = 0;
  for (size_t cut = 0; cut <= units; ++cut) {
    live += change[cut];
    bytes[cut] = std::max(live, 0.0);
  }
  return bytes;
}

// What crosses each of the cuts, by kind.
std::vector<std::vector<Chain::Values>> crossing_values(const std::vector<Flow>& flows,
                                                        const std::vector<int32_t>& cuts) {
  std::vector<std::vector<Chain::Values>> result(cuts.size());
  for (const Flow& flow : flows) {
    if (flow.sent <= 0) continue;
    const auto first = std::upper_bound(cuts.begin(), cuts.end(), flow.made);
    for (auto cut = first; cut != cuts.end() && *cut <= flow.readers.back(); ++cut) {
      auto& kinds = result[static_cast<size_t>(cut - cuts.begin())];
      const auto known = std::find_if(kinds.begin(), kinds.end(), [&](const Chain::Values& kind) {
        return kind.dtype == flow.dtype && kind.gradient == flow.gradient;
      });
      if (known == kinds.end()) {
        kinds.push_back({flow.dtype, flow.gradient, 1, flow.sent});
      } else {
        ++known->count;
        known->bytes += flow.sent;
      }
    }
  }
  return result;
}

// Cut before which a unit lies: unit is in run [c - 1, c).
std::vector<int32_t> run_of_unit(const std::vector<int32_t>& cuts) {
  std::vector<int32_t> run(static_cast<size_t>(cuts.back()), 0);
  for (size_t c = 1; c < cuts.size(); ++c) {
    for (int32_t unit = cuts[c - 1]; unit < cuts[c]; ++unit) {
      run[static_cast<size_t>(unit)] = static_cast<int32_t>(c) - 1;
    }
  }
  return run;
}

// Work of the units before each cut.
std::vector<job::Work> sums_over(const std::vector<job::Work>& unit_work,
                                 const std::vector<int32_t>& cuts) {
  std::vector<job::Work> sums(1);
  job::Work sum;
  for (size_t c = 1; c < cuts.size(); ++c) {
    for (int32_t unit = cuts[c - 1]; unit < cuts[c]; ++unit) {
      sum.add(unit_work[static_cast<size_t>(unit)]);
    }
    sums.push_back(sum);
  }
  return sums;
}

}  // namespace

GraphChain chain_of(const opdag::Graph& graph, const GraphCosts& costs, const job::TrainSpec& train,
                    const std::vector<PlannerPeer>& peers, int32_t most_cuts) {
  const Units units = units_of(graph, costs.cuts);
  const ValueBytes& bytes = costs.bytes;
  const Stash& stash = costs.stash;
  const std::vector<Flow> flows = flows_of(graph, units, bytes, stash);
  const std::vector<double> forward = crossing(flows, units.nodes.size(), false);
  const std::vector<double> backward = crossing(flows, units.nodes.size(), true);
  std::vector<job::Work> unit_work(units.nodes.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    unit_work[static_cast<size_t>(units.of_node[i])].add(costs.work[i]);
  }
  std::vector<double> weight;
  for (const job::Work& work : unit_work) {
    const job::PassSeconds seconds = seconds_of(work, PlannerPeer{}, train.precision);
    weight.push_back(seconds.forward + seconds.backward);
  }
  GraphChain result;
  result.cuts = thin_cuts(weight, forward, most_cuts);
  Problem& problem = result.problem;
  problem.chain = Chain(static_cast<int32_t>(result.cuts.size()) - 1);
  for (size_t cut = 0; cut < result.cuts.size(); ++cut) {
    problem.chain.forward_bytes[cut] = forward[static_cast<size_t>(result.cuts[cut])];
    problem.chain.backward_bytes[cut] = backward[static_cast<size_t>(result.cuts[cut])];
  }
  problem.chain.crossing = crossing_values(flows, result.cuts);
  const ChainMemory memory{graph, train, units, flows, stash, bytes.kept, run_of_unit(result.cuts)};
  memory.fill(problem.chain);
  const std::vector<job::Work> sums = sums_over(unit_work, result.cuts);
  for (const PlannerPeer& peer : peers) {
    std::vector<double> forward_s, backward_s;
    for (const job::Work& work : sums) {
      const job::PassSeconds seconds = seconds_of(work, peer, train.precision);
      forward_s.push_back(seconds.forward);
      backward_s.push_back(seconds.backward);
    }
    problem.forward_s.push_back(std::move(forward_s));
    problem.backward_s.push_back(std::move(backward_s));
  }
  return result;
}

}  // namespace weft::broker
