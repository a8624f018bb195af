// What a micro-batch leaves in a stage until its backward, in terms of nodes and values; chains and
// stages add it up. A node without a backward (below the first trained parameter) keeps nothing: of
// what it makes, and of what it reads, only that is kept which a node with one reads, too. Private
// to the planner. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "broker/planner/cost.h"

namespace weft::broker {

struct Stash {
  std::vector<bool> backward;  // by node: whether it has one
  // By node: what it keeps besides what it reads (node_stash).
  std::vector<double> own;
  // By value: nodes with a backward that read it, or a view of it made without one.
  std::vector<std::vector<int32_t>> keepers;
  // By value: bytes of what a node without a backward makes, views left out. They are kept where a
  // keeper runs in the node's stage; elsewhere they are gone once they are read and sent.
  std::vector<double> passing;
  // By node: bytes of passing values while it runs: those made so far and still to be read.
  std::vector<double> live;
  // By node: bytes that its backward needs for a moment. Each micro-batch in flight has them:
  // passes captured on a card have memory of their own.
  std::vector<double> gradients;
};
Stash stash_of(const opdag::Graph& graph, job::Precision precision, const ValueBytes& bytes);

}  // namespace weft::broker
