// What the costs of stages and chains of one graph are added up from, found once for all plans that
// are tried. Private to the planner. Pure.
#pragma once

#include <vector>

#include "broker/planner/cost.h"
#include "broker/planner/stash.h"
#include "opdag/cuts.h"

namespace weft::broker {

struct GraphCosts {
  GraphCosts(const opdag::Graph& graph, job::Precision precision)
      : cuts(graph),
        bytes(value_bytes(graph, precision)),
        stash(stash_of(graph, precision, bytes)),
        work(job::training_work(graph)) {}

  opdag::Cuts cuts;
  ValueBytes bytes;
  Stash stash;
  std::vector<job::Work> work;  // by node
};

}  // namespace weft::broker
