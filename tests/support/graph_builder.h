// Small graphs, and random ones, for tests. Free of torch; header only.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.h"
#include "opdag/graph_builder.h"

namespace weft::opdag::testing {

using opdag::GraphBuilder;
using opdag::Sizes;

// x -> (linear, tanh) x layers -> mean: the simplest pipeline.
inline Result<Graph> chain_graph(int layers) {
  GraphBuilder b;
  ValueId x = b.input("x", {4, 8});
  for (int i = 0; i < layers; ++i) x = b.tanh(b.linear(x, "w" + std::to_string(i), 8));
  b.loss(b.mean(x));
  return b.build();
}

// A tower used twice: two independent branches through the same weights, then joined. Two convex
// halves that take one layer of each branch the wrong way round wait for each other.
inline Result<Graph> twin_tower_graph() {
  GraphBuilder b;
  const ValueId left = b.input("left", {4, 8}), right = b.input("right", {4, 8});
  const ValueId w0 = b.parameter("tower.0", {8, 8}), w1 = b.parameter("tower.1", {8, 8});
  const ValueId l = b.linear(b.tanh(b.linear(left, w0)), w1);
  const ValueId r = b.linear(b.tanh(b.linear(right, w0)), w1);
  b.loss(b.mean(b.mul(l, r)));
  return b.build();
}

// A tied embedding and head around a chain, with a skip from the first to the last layer.
inline Result<Graph> tied_skip_graph() {
  GraphBuilder b;
  const ValueId x = b.input("x", {4, 8});
  const ValueId first = b.parameter("embed", {8, 8});
  const ValueId early = b.linear(x, first);
  ValueId y = b.tanh(early);
  for (int i = 0; i < 4; ++i) y = b.relu(b.linear(y, "w" + std::to_string(i), 8));
  const ValueId head = b.tied_parameter("head", first);
  b.loss(b.mean(b.linear(b.add(y, early), head)));
  return b.build();
}

// A random directed acyclic graph of about `nodes` nodes on [4, 8] tensors: fan-out, long skips,
// lists, shared and frozen parameters, random operators, values computed from constants alone,
// sometimes an atomic group. One loss.
inline Result<Graph> random_graph(Rng& rng, int nodes) {
  GraphBuilder b;
  std::vector<ValueId> pool{b.input("x0", {4, 8}), b.constant("one", {4, 8}), b.input("x1", {4, 8}),
                            b.buffer("scale", {4, 8})};
  std::vector<ValueId> constants{pool[1]};
  std::vector<ValueId> weights{b.parameter("w0", {8, 8})};
  // Prefers recent values, so that the graph is deep, and takes any now and then: a long skip.
  const auto pick = [&] {
    const size_t window = rng.below(4) == 0 ? pool.size() : std::min<size_t>(3, pool.size());
    return pool[pool.size() - 1 - rng.below(window)];
  };
  while (static_cast<int>(b.graph.nodes.size()) < nodes) {
    switch (rng.below(8)) {
      case 0:
        pool.push_back(b.relu(pick()));
        break;
      case 1:
        pool.push_back(b.tanh(pick()));
        break;
      case 2:
        pool.push_back(b.add(pick(), pick()));
        break;
      case 3:
        pool.push_back(b.mul(pick(), pick()));
        break;
      case 4:
        pool.push_back(b.dropout(pick()));
        break;
      case 5: {
        if (rng.below(2) == 0) {
          const std::string name = "w" + std::to_string(weights.size());
          weights.push_back(rng.below(4) == 0
                                ? b.tied_parameter(name, weights[rng.below(weights.size())])
                                : b.parameter(name, {8, 8}, rng.below(5) != 0));
        }
        pool.push_back(b.linear(pick(), weights[rng.below(weights.size())]));
        break;
      }
      case 6: {
        const ValueId other = constants[rng.below(constants.size())];
        constants.push_back(rng.below(2) == 0 ? b.tanh(other) : b.full({4, 8}, 0.25));
        pool.push_back(constants.back());
        break;
      }
      default: {
        std::vector<ValueId> parts = b.split2(pick());
        rng.shuffle(parts);
        pool.push_back(b.cat(parts));
      }
    }
  }
  // Everything nobody read reaches the loss, so that nothing dangles.
  std::vector<bool> read(b.graph.values.size() + 2 * pool.size(), false);
  for (const Node& node : b.graph.nodes) {
    for (ValueId id : inputs_of(node)) read[static_cast<size_t>(id)] = true;
  }
  ValueId sum = pool.back();
  for (size_t i = 0; i + 1 < pool.size(); ++i) {
    if (!read[static_cast<size_t>(pool[i])]) sum = b.add(sum, pool[i]);
  }
  b.output("hidden", pool[pool.size() / 2]);
  b.loss(b.mean(sum));
  if (rng.below(3) == 0 && b.graph.nodes.size() > 4) {
    const size_t at = rng.below(b.graph.nodes.size() - 2);
    b.graph.nodes[at].atomic_group = b.graph.nodes[at + 1].atomic_group = 0;
  }
  return b.build();
}

}  // namespace weft::opdag::testing
