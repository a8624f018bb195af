// Plan: who runs what. Made by the planner (a pure function: peers, links, graph costs -> plan and
// reason), carried to every worker of the job inside its WorkerSpec.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "job/spec.h"
#include "opdag/cut.h"

namespace weft::job {

struct StagePlan {
  std::vector<std::string> replicas;  // peer ids; one today, the form allows several
  double flops = 0;                   // forward + backward of one micro-batch
  int64_t parameter_bytes = 0;
  int64_t memory_bytes = 0;  // estimate: weights, gradients, optimizer, activations in flight
  double compute_s = 0;      // predicted, of a step; 0: the peer's speed is not known
  // What the peer's profile was multiplied by; 0: the speed is from elsewhere.
  double correction = 0;
  double send_s = 0, receive_s = 0;  // predicted, of a step's messages, on the slowest way of each
  int32_t in_flight = 0;             // micro-batches whose activations it keeps; 0: not said
  // Of those it keeps the inputs only, and runs each forward again right before its backward.
  bool recompute = false;
};

struct Plan {
  uint32_t epoch = 1;          // fencing: messages of another epoch are refused
  opdag::Partition partition;  // by position in graph.nodes
  std::vector<StagePlan> stages;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int32_t gap = 1;     // of 1F1B, see schedule.h
  double step_s = 0;   // predicted; 0: some peer's speed is not known
  std::string reason;  // why this plan, for logs, API and `weft job explain`
};

nlohmann::json plan_to_json(const Plan& plan);
Result<Plan> plan_from_json(const nlohmann::json& json);

}  // namespace weft::job
