#include "broker/planner/stash.h"

#include <algorithm>

#include "opdag/derive.h"

namespace weft::broker {
namespace {

// A view without a backward hands on who reads it.
std::vector<std::vector<int32_t>> keepers_of(const opdag::Graph& graph,
                                             const std::vector<bool>& backward) {
  std::vector<std::vector<int32_t>> keepers(graph.values.size());
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const opdag::Node& node = graph.nodes[i];
    std::vector<int32_t> found;
    if (backward[i]) {
      found.push_back(static_cast<int32_t>(i));
    } else if (only_views(graph, node)) {
      for (const opdag::ValueId id : opdag::outputs_of(graph, node)) {
        const auto& readers = keepers[static_cast<size_t>(id)];
        found.insert(found.end(), readers.begin(), readers.end());
      }
      std::sort(found.begin(), found.end());
      found.erase(std::unique(found.begin(), found.end()), found.end());
    }
    for (const opdag::ValueId id : opdag::inputs_of(node)) {
      auto& all = keepers[static_cast<size_t>(id)];
      all.insert(all.end(), found.begin(), found.end());
    }
  }
  return keepers;
}

// By value: the last node that reads it or a view of it; -1 where none does.
std::vector<int32_t> last_reads(const opdag::Graph& graph) {
  std::vector<int32_t> last(graph.values.size(), -1);
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const opdag::Node& node = graph.nodes[i];
    auto read = static_cast<int32_t>(i);
    if (only_views(graph, node)) {
      for (const opdag::ValueId id : opdag::outputs_of(graph, node)) {
        read = std::max(read, last[static_cast<size_t>(id)]);
      }
    }
    for (const opdag::ValueId id : opdag::inputs_of(node)) {
      last[static_cast<size_t>(id)] = std::max(last[static_cast<size_t>(id)], read);
    }
  }
  return last;
}

std::vector<double> live_at(const opdag::Graph& graph, const std::vector<double>& passing) {
  const std::vector<int32_t> last = last_reads(graph);
  std::vector<double> change(graph.nodes.size() + 1, 0.0);
  for (const opdag::Value& value : graph.values) {
    const double bytes = passing[static_cast<size_t>(value.id)];
    if (bytes <= 0) continue;
    const int32_t made = graph.node_index(value.producer);
    change[static_cast<size_t>(made)] += bytes;
    change[static_cast<size_t>(std::max(made, last[static_cast<size_t>(value.id)])) + 1] -= bytes;
  }
  double live = 0;
  for (double& at : change) at = live += at;
  change.pop_back();
  return change;
}

// While a node's backward runs: the gradients of what it made and read, and as much again, for
// those of other branches and what kernels take.
std::vector<double> gradients_at(const opdag::Graph& graph, const std::vector<bool>& backward,
                                 const std::vector<bool>& gradient, const ValueBytes& bytes) {
  std::vector<double> at_node(graph.nodes.size(), 0.0);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!backward[i]) continue;
    const opdag::Node& node = graph.nodes[i];
    std::vector<opdag::ValueId> values = opdag::outputs_of(graph, node);
    for (const opdag::ValueId id : opdag::inputs_of(node)) {
      if (graph.value(id).producer != opdag::kNone) values.push_back(id);
    }
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    for (const opdag::ValueId id : values) {
      const auto at = static_cast<size_t>(id);
      if (gradient[at]) at_node[i] += 2 * std::min(bytes.kept[at], bytes.sent[at]);
    }
  }
  return at_node;
}

// Values with a gradient that are the same for every micro-batch: weights and what follows from
// them alone.
std::vector<bool> values_of_weights(const opdag::Graph& graph, std::vector<bool> gradient) {
  std::vector<bool> fed(graph.values.size(), false);
  for (const opdag::Leaf& leaf : graph.leaves) {
    if (leaf.kind == opdag::LeafKind::kUserInput) fed[static_cast<size_t>(leaf.value)] = true;
  }
  for (const opdag::Node& node : graph.nodes) {
    const std::vector<opdag::ValueId> read = opdag::inputs_of(node);
    if (std::none_of(read.begin(), read.end(),
                     [&](const opdag::ValueId id) { return fed[static_cast<size_t>(id)]; })) {
      continue;
    }
    for (const opdag::ValueId id : opdag::outputs_of(graph, node)) {
      fed[static_cast<size_t>(id)] = true;
    }
  }
  for (size_t i = 0; i < fed.size(); ++i) gradient[i] = gradient[i] && !fed[i];
  return gradient;
}

std::vector<double> owed_at(const opdag::Graph& graph, const std::vector<bool>& gradient,
                            const std::vector<double>& own, const ValueBytes& bytes) {
  const std::vector<bool> weight = values_of_weights(graph, gradient);
  std::vector<double> at_node(graph.nodes.size(), 0.0);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const opdag::Node& node = graph.nodes[i];
    bool any = false;
    double owed = own[i];  // results, and copies that autocast makes
    for (const opdag::ValueId id : opdag::inputs_of(node)) {
      any = any || weight[static_cast<size_t>(id)];
      owed += bytes.kept[static_cast<size_t>(id)];
    }
    if (any) at_node[i] = owed;
  }
  return at_node;
}

std::vector<std::vector<int32_t>> below_of(const opdag::Graph& graph,
                                           const std::vector<bool>& gradient) {
  std::vector<std::vector<int32_t>> below(graph.nodes.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const opdag::ValueId id : opdag::inputs_of(graph.nodes[i])) {
      const opdag::NodeId producer = graph.value(id).producer;
      if (producer == opdag::kNone || !gradient[static_cast<size_t>(id)]) continue;
      below[i].push_back(graph.node_index(producer));
    }
  }
  return below;
}

}  // namespace

void SharedBytes::add(size_t node, bool flows_on) {
  by_autograd_ = by_autograd_ || stash_.by_autograd[node];
  if (!stash_.backward[node]) return;
  left_ += stash_.owed[node];
  all_waits_ = all_waits_ || !flows_on;
}

double SharedBytes::of(double stash_bytes, double moment) const {
  if (by_autograd_) return 0;
  return std::max(0.0, std::min(stash_bytes - left_, all_waits_ ? moment : stash_bytes));
}

Stash stash_of(const opdag::Graph& graph, job::Precision precision, const ValueBytes& bytes) {
  Stash stash;
  stash.backward = opdag::nodes_with_backward(graph);
  stash.own = node_stash(graph, precision, bytes);
  stash.passing.assign(graph.values.size(), 0.0);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (stash.backward[i]) continue;
    stash.own[i] = 0;
    if (only_views(graph, graph.nodes[i])) continue;
    for (const opdag::ValueId id : opdag::outputs_of(graph, graph.nodes[i])) {
      stash.passing[static_cast<size_t>(id)] = bytes.kept[static_cast<size_t>(id)];
    }
  }
  stash.keepers = keepers_of(graph, stash.backward);
  stash.live = live_at(graph, stash.passing);
  const std::vector<bool> gradient = opdag::values_with_gradient(graph);
  stash.gradients = gradients_at(graph, stash.backward, gradient, bytes);
  stash.owed = owed_at(graph, gradient, stash.own, bytes);
  stash.below = below_of(graph, gradient);
  for (const opdag::Node& node : graph.nodes) {
    const std::vector<opdag::ValueId> read = opdag::inputs_of(node);
    stash.by_autograd.push_back(node.atomic_group != opdag::kNone ||
                                std::any_of(read.begin(), read.end(), [&](const opdag::ValueId id) {
                                  return graph.value(id).kind == opdag::ValueKind::kTensorList;
                                }));
  }
  return stash;
}

}  // namespace weft::broker
