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
  // By node: of a split backward, bytes that stay between its parts where gradients flow on to
  // another stage: of a node that reads weights, or what follows from weights alone, its arguments,
  // copies that autocast makes of them, and the gradients of its results and of those weights.
  std::vector<double> owed;
  // By node: other nodes whose results it has a gradient for.
  std::vector<std::vector<int32_t>> below;
  // By node: backwards of its stage are autograd's, whose first part makes and keeps the gradients
  // of all weights.
  std::vector<bool> by_autograd;
};
// What a micro-batch of a stage that recomputes has beyond what the first part of a split backward
// leaves of it: the next one uses the same memory. Counted up node by node.
class SharedBytes {
 public:
  explicit SharedBytes(const Stash& stash) : stash_(stash) {}
  // flows_on: a gradient goes on from it to another stage. Where none does, the first part does
  // nothing.
  void add(size_t node, bool flows_on);
  // stash_bytes: of the stage, with what its largest backward needs for a moment.
  double of(double stash_bytes, double moment) const;

 private:
  const Stash& stash_;
  double left_ = 0;
  bool all_waits_ = false, by_autograd_ = false;
};
Stash stash_of(const opdag::Graph& graph, job::Precision precision, const ValueBytes& bytes);

}  // namespace weft::broker
