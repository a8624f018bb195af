// What a stage costs: time in arbitrary units, FLOPs, and memory. Private to the planner.
#pragma once

#include <vector>

#include "job/plan.h"
#include "job/schedule.h"
#include "opdag/cut.h"

namespace weft::broker {

// Predicted cost of each node's forward and backward, in FLOP equivalents.
std::vector<double> node_weights(const opdag::Graph& graph);

// Fills flops, parameter_bytes and memory_bytes of every stage of a partition; no replicas.
Result<std::vector<job::StagePlan>> estimate_stages(const opdag::Graph& graph,
                                                    const job::JobSpec& spec,
                                                    const opdag::Partition& partition,
                                                    const job::ScheduleOptions& schedule);

}  // namespace weft::broker
