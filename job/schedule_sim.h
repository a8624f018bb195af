// A schedule played in virtual time: when would each stage do what, given the cost of its work and
// the delay of its edges? Pure; used to derive credits, by tests, and to price a plan.
#pragma once

#include <vector>

#include "job/schedule.h"

namespace weft::job {

struct StageTimes {
  double forward = 1, backward = 1;  // seconds of one micro-batch (or any one unit)
  // Of the backward, what only makes gradients of weights, where a schedule splits it.
  double weight_share = 0.5;
};

struct SimulationOptions {
  std::vector<StageTimes> stages;    // empty: one unit each
  std::vector<double> edge_delay;    // of a message, either direction; empty: none
  std::vector<EdgeCredits> credits;  // empty: unlimited
};

struct MessageTimes {
  std::vector<double> sent, received;  // by micro-batch; negative: never
};

struct Simulation {
  bool finished = false;                  // false: some stage waits for ever
  double makespan = 0;                    // end of the last action of any stage
  std::vector<double> busy;               // per stage: time in forward and backward
  std::vector<MessageTimes> activations;  // per edge
  std::vector<MessageTimes> gradients;
};

// The schedule must belong to the graph (edges in range). A send costs its stage no time.
Simulation simulate_schedule(const opdag::StageGraph& graph,
                             const std::vector<StageActions>& schedule,
                             const SimulationOptions& options = {});

}  // namespace weft::job
