// What every run of a chain keeps in memory. Private to chain.cpp, whose units and flows it takes.
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "broker/planner/problem.h"
#include "broker/planner/stash.h"

namespace weft::broker {

// A value between units: who makes it, who reads it, and of these who keeps it for a backward
// (both ascending, each once), what it weighs.
struct Flow {
  int32_t made = 0;
  std::vector<int32_t> readers, keepers;
  double kept = 0, sent = 0;
  bool gradient = false;
  DType dtype = DType::kFloat32;
};

struct Units {
  std::vector<std::vector<int32_t>> nodes;
  std::vector<int32_t> of_node;
  std::vector<bool> copied;     // by node: every stage that reads it runs it (opdag/from_nothing.h)
  std::vector<int32_t> sender;  // by value (opdag/cuts.h)
};

void add_all(std::vector<int32_t>& items, const std::vector<int32_t>& more);
std::vector<int32_t> sorted_once(std::vector<int32_t> items);

struct ChainMemory {
  const opdag::Graph& graph;
  const job::TrainSpec& train;
  const Units& units;
  const std::vector<Flow>& flows;
  const Stash& stash;
  const std::vector<double>& kept;   // ValueBytes::kept
  std::vector<int32_t> run_of_unit;  // unit is in run [r, r + 1) of the chain

  // Fills bytes of all runs, and the ties.
  void fill(Chain& chain) const;

 private:
  int32_t run_of(size_t node) const {
    return run_of_unit[static_cast<size_t>(units.of_node[node])];
  }
  std::vector<int32_t> runs_of(const std::vector<int32_t>& some_units) const;
  std::vector<int32_t> runs_reading(opdag::ValueId value) const;
  void add_leaves(Chain& chain) const;
  void add_own(Chain& chain) const;
  void add_passing(Chain& chain) const;
  void add_received(Chain& chain) const;
  void add_moment(Chain& chain) const;
  void drop_inputs_without_backward(Chain& chain) const;
};

}  // namespace weft::broker
