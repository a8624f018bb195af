// A running job planned anew: the plan, both plans judged by one model, and what a move between
// them has to carry. How the broker does it, and a simulation of it. Pure.
#pragma once

#include <functional>
#include <vector>

#include "broker/coordinator/migration.h"
#include "broker/coordinator/planner_inputs.h"

namespace weft::broker {

// Bytes beside the checkpoint that the peer of a stage of a plan must fetch; empty: none.
using OtherBytes = std::function<double(const job::Plan& plan, int32_t stage)>;

// peers: those of the job and idle ones. options: as plan_over_idle takes them. unproven:
// ReplanFunction (coordinator.h). Errors as make_plan's.
//
// A shard comes whole from the broker, wherever a stage needs one of its tensors. The way between a
// peer and the broker is measured by nobody: it counts as the middle one of the peer's ways to the
// others, and as kAssumedMbit_s where none is known.
Result<Replanned> replan_over(const opdag::Graph& graph, const job::JobSpec& spec, const Job& job,
                              const std::vector<const Peer*>& peers, const PlannerWorld& known,
                              const DeviceLessons& lessons, PlannerOptions options,
                              double unproven = 1, const OtherBytes& other_bytes = {});

inline constexpr double kAssumedMbit_s = 100;

// Bytes of the shard of each stage of a plan: its last one where the plan has stored some, else
// what its weights and the optimizer's state take.
std::vector<double> shard_bytes(const job::TrainSpec& train, const Job& job);

// Stages of one partition whose parameters each stage of another holds some of.
Result<std::vector<std::vector<int32_t>>> shards_of(const opdag::Graph& graph,
                                                    const opdag::Partition& from,
                                                    const opdag::Partition& to);

// Speeds the planner takes them for, in GFLOP/s of large products; 0: unknown.
std::vector<double> promised_speeds(const std::vector<const Peer*>& peers,
                                    const PlannerWorld& known, const DeviceLessons& lessons);

// Values the optimizer keeps for each weight.
double optimizer_states(const job::TrainSpec& train);

}  // namespace weft::broker
