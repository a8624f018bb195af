// What `weft-worker measure` runs: families of small graphs, each a chain of operators of one class
// in growing sizes. Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "job/work.h"
#include "opdag/graph.h"

namespace weft::executor {

struct CaseFamily {
  std::string name;
  job::OpClass op_class = job::OpClass::kElementwise;
  int levels = 0;
  // The graph of a level from 0, validated; each level is several times the work of the one before.
  // Its outputs[0] is what gradients flow back from.
  std::function<Result<opdag::Graph>(int level)> make;
};

std::vector<CaseFamily> measure_families();

// A chain of so many operators on next to nothing.
Result<opdag::Graph> empty_chain(int operators);

}  // namespace weft::executor
