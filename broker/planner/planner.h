// The planner: peers, links and graph costs to a plan and its reason. One pure function, the same
// in the broker, in `weft job submit --dry-run` and in a simulator; OP-Fence will stand behind the
// same interface.
//
// Today: contiguous stages of least bottleneck over the cut units (dynamic programme), as many as
// asked; "auto" takes the count with the best predicted step, and leaves peers idle where more
// stages would not pay. The biggest stages go to the biggest peers. The gap of the schedule follows
// from the links between them and their speed, where those were measured: job::gap_for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "job/plan.h"
#include "job/schedule.h"
#include "job/spec.h"
#include "opdag/graph.h"

namespace weft::broker {

struct PlannerPeer {
  std::string id;
  uint32_t cores = 1;
  uint64_t memory_bytes = 0;  // of the device that computes; 0: unknown, taken as enough
  double gflops = 0;          // it does per second, in the terms of StagePlan::flops; 0: unknown
};

// One direction of the way between two peers; one that is not listed is unknown and delays nothing.
struct PlannerLink {
  std::string from, to;
  double latency_ms = 0;        // one way
  double bandwidth_mbit_s = 0;  // 0: unknown, messages take no time
};

using ScheduleFunction = std::function<std::vector<job::StageActions>(const opdag::StageGraph&,
                                                                      const job::ScheduleOptions&)>;

struct PlannerOptions {
  int32_t max_auto_stages = 32;
  // A further stage must shorten the predicted step by this share, or the peer stays a spare.
  double least_gain = 0.02;
  double memory_share = 0.9;  // of a peer's memory a stage may plan with
  // What the workers will do; a plan is given out only if this can run to its end.
  ScheduleFunction make_schedule = job::make_schedule;
};

// Micro-batches of a step; kInvalid when batch is not a multiple of the exported batch.
Result<int32_t> micro_batches_of(const opdag::Graph& graph, const job::JobSpec& spec);
// First dimension of the graph's bound inputs: the exported batch.
Result<int64_t> exported_batch(const opdag::Graph& graph, const job::JobSpec& spec);

// Errors: kInvalid for more stages than units ("more stages than nodes") or a schedule nobody
// knows; kInternal for a schedule that would deadlock; kUnavailable for no
// peers, fewer peers than stages asked, or too little memory for any split.
Result<job::Plan> make_plan(const opdag::Graph& graph, const job::JobSpec& spec,
                            const std::vector<PlannerPeer>& peers,
                            const std::vector<PlannerLink>& links,
                            const PlannerOptions& options = {});

}  // namespace weft::broker
