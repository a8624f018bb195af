#include "broker/planner/chain_memory.h"

#include <algorithm>
#include <map>
#include <set>

#include "broker/planner/cost.h"

namespace weft::broker {
namespace {

// Adds bytes to every run that holds any of the ascending units, and begins behind `behind`.
void add_where_any(const Chain& chain, const std::vector<int32_t>& units, double bytes,
                   std::vector<double>& table, int32_t behind = -1) {
  int32_t begin = behind + 1;
  for (const int32_t unit : units) {
    for (; begin <= unit; ++begin) {
      for (int32_t end = unit + 1; end <= chain.units; ++end) table[chain.at(begin, end)] += bytes;
    }
  }
}

// Adds bytes to every run that holds any of both ascending lists, and begins behind `behind`.
void add_where_both(const Chain& chain, const std::vector<int32_t>& some,
                    const std::vector<int32_t>& others, double bytes, std::vector<double>& table,
                    int32_t behind = -1) {
  auto one = some.begin(), other = others.begin();
  for (int32_t begin = behind + 1; begin < chain.units; ++begin) {
    one = std::lower_bound(one, some.end(), begin);
    other = std::lower_bound(other, others.end(), begin);
    if (one == some.end() || other == others.end()) break;
    for (int32_t end = std::max(*one, *other) + 1; end <= chain.units; ++end) {
      table[chain.at(begin, end)] += bytes;
    }
  }
}

}  // namespace

void add_all(std::vector<int32_t>& items, const std::vector<int32_t>& more) {
  items.insert(items.end(), more.begin(), more.end());
}

std::vector<int32_t> sorted_once(std::vector<int32_t> items) {
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
  return items;
}

std::vector<int32_t> ChainMemory::runs_of(const std::vector<int32_t>& some_units) const {
  std::vector<int32_t> runs;
  for (const int32_t unit : some_units) runs.push_back(run_of_unit[static_cast<size_t>(unit)]);
  return sorted_once(std::move(runs));
}

// Runs between neighbouring cuts that read a value, be it for what they compute from nothing.
std::vector<int32_t> ChainMemory::runs_reading(opdag::ValueId value) const {
  std::vector<int32_t> readers;
  std::set<opdag::ValueId> seen{value};
  std::vector<opdag::ValueId> open{value};
  while (!open.empty()) {
    const opdag::ValueId next = open.back();
    open.pop_back();
    for (const opdag::NodeId user : graph.value(next).consumers) {
      const auto position = static_cast<size_t>(graph.node_index(user));
      readers.push_back(run_of(position));
      if (!units.copied[position]) continue;
      for (const opdag::ValueId made : opdag::outputs_of(graph, graph.nodes[position])) {
        if (seen.insert(made).second) open.push_back(made);
      }
    }
  }
  return sorted_once(std::move(readers));
}

void ChainMemory::add_leaves(Chain& chain) const {
  std::map<int32_t, std::vector<int32_t>> by_group;  // a tied weight is stored once
  int32_t alone = -1;
  std::map<int32_t, double> bytes_of, stored_of, weight_of;
  for (const opdag::Leaf& leaf : graph.leaves) {
    if (leaf.kind == opdag::LeafKind::kUserInput) {
      add_where_any(chain, runs_reading(leaf.value), kept[static_cast<size_t>(leaf.value)],
                    chain.input_bytes);
      continue;
    }
    const int32_t key = leaf.tied_group != opdag::kNone ? leaf.tied_group : alone--;
    auto& readers = by_group[key];
    add_all(readers, runs_reading(leaf.value));
    if (readers.empty()) readers.push_back(0);  // what nothing reads lies in the first stage
    bytes_of[key] = std::max(bytes_of[key], leaf_bytes(graph, leaf, train));
    stored_of[key] = std::max(stored_of[key], stored_bytes(graph, leaf, train));
    weight_of[key] = leaf.trainable ? tied_bytes(graph, leaf, train) : 0;
  }
  for (auto& [key, readers] : by_group) {
    readers = sorted_once(std::move(readers));
    add_where_any(chain, readers, bytes_of[key], chain.fixed_bytes);
    add_where_any(chain, readers, stored_of[key], chain.shard_bytes);
    if (readers.size() > 1 && weight_of[key] > 0) {
      chain.ties.push_back({readers.front(), readers.back(), weight_of[key]});
    }
  }
}

// What nodes keep of their own, and what passes while they run.
void ChainMemory::add_own(Chain& chain) const {
  std::vector<double> own(static_cast<size_t>(chain.units), 0.0), live = own;
  for (size_t i = 0; i < stash.own.size(); ++i) {
    const auto run = static_cast<size_t>(run_of(i));
    own[run] += stash.own[i];
    live[run] = std::max(live[run], stash.live[i]);
  }
  for (int32_t begin = 0; begin < chain.units; ++begin) {
    double sum = 0, most = 0;
    for (int32_t end = begin + 1; end <= chain.units; ++end) {
      sum += own[static_cast<size_t>(end) - 1];
      most = std::max(most, live[static_cast<size_t>(end) - 1]);
      chain.stash_bytes[chain.at(begin, end)] += sum;
      chain.fixed_bytes[chain.at(begin, end)] += most;
    }
  }
}

// Values that passed but for a keeper in the same run.
void ChainMemory::add_passing(Chain& chain) const {
  for (const opdag::Value& value : graph.values) {
    const auto at = static_cast<size_t>(value.id);
    if (stash.passing[at] <= 0 || stash.keepers[at].empty()) continue;
    const auto maker = static_cast<size_t>(graph.node_index(value.producer));
    const int32_t made = run_of(maker);
    std::vector<int32_t> keepers;
    for (const int32_t node : stash.keepers[at]) {
      keepers.push_back(run_of(static_cast<size_t>(node)));
    }
    keepers = sorted_once(std::move(keepers));
    if (units.copied[maker]) {
      add_where_both(chain, runs_reading(value.id), keepers, stash.passing[at], chain.stash_bytes);
      continue;
    }
    const int32_t first = keepers.front();
    for (int32_t begin = 0; begin <= made; ++begin) {
      for (int32_t end = std::max(made, first) + 1; end <= chain.units; ++end) {
        chain.stash_bytes[chain.at(begin, end)] += stash.passing[at];
      }
    }
  }
}

// What a run receives: values made before it that it reads. Some keep a view that is made between
// run and value: they receive the view.
void ChainMemory::add_received(Chain& chain) const {
  for (const Flow& flow : flows) {
    const int32_t made = run_of_unit[static_cast<size_t>(flow.made)];
    const std::vector<int32_t> readers = runs_of(flow.readers), keepers = runs_of(flow.keepers);
    add_where_any(chain, readers, flow.kept, chain.input_bytes, made);
    add_where_both(chain, readers, keepers, flow.kept, chain.stash_bytes, made);
  }
}

// Nothing runs there twice.
void ChainMemory::drop_inputs_without_backward(Chain& chain) const {
  std::vector<bool> any(static_cast<size_t>(chain.units), false);
  for (size_t i = 0; i < stash.backward.size(); ++i) {
    if (stash.backward[i]) any[static_cast<size_t>(run_of(i))] = true;
  }
  for (int32_t begin = 0; begin < chain.units; ++begin) {
    for (int32_t end = begin + 1; end <= chain.units && !any[static_cast<size_t>(end) - 1]; ++end) {
      chain.input_bytes[chain.at(begin, end)] = 0;
    }
  }
}

// What a backward needs for a moment; and, now that this was the last of the stash, what of it
// micro-batches that are recomputed share.
void ChainMemory::add_moment(Chain& chain) const {
  // By node: the first run that a gradient flows on to from it.
  std::vector<int32_t> first(stash.backward.size());
  std::vector<std::vector<size_t>> nodes(static_cast<size_t>(chain.units));
  std::vector<double> gradients(static_cast<size_t>(chain.units), 0.0);
  for (size_t i = 0; i < first.size(); ++i) {
    first[i] = run_of(i);
    const auto run = static_cast<size_t>(first[i]);
    nodes[run].push_back(i);
    gradients[run] = std::max(gradients[run], stash.gradients[i]);
    for (const int32_t other : stash.below[i]) {
      first[i] = std::min(first[i], first[static_cast<size_t>(other)]);
    }
  }
  for (int32_t begin = 0; begin < chain.units; ++begin) {
    SharedBytes shared(stash);
    double moment = 0;
    for (int32_t end = begin + 1; end <= chain.units; ++end) {
      const auto last = static_cast<size_t>(end) - 1;
      for (const size_t node : nodes[last]) shared.add(node, first[node] < begin);
      moment = std::max(moment, gradients[last]);
      const size_t run = chain.at(begin, end);
      chain.stash_bytes[run] += moment;
      chain.shared_bytes[run] = shared.of(chain.stash_bytes[run], moment);
    }
  }
}

void ChainMemory::fill(Chain& chain) const {
  add_leaves(chain);
  add_own(chain);
  add_passing(chain);
  add_received(chain);
  add_moment(chain);
  drop_inputs_without_backward(chain);
}

}  // namespace weft::broker
