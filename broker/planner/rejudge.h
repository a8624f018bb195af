// Plans that somebody has, judged beside each other by the model that plan_job judges with. Pure.
#pragma once

#include <vector>

#include "broker/planner/planner.h"

namespace weft::broker {

// Seconds of a step under each plan, or what storing checkpoints takes of one where that is more,
// over the same peers and links. Errors as evaluate_plan's.
Result<std::vector<double>> step_seconds_of(const opdag::Graph& graph, const job::JobSpec& spec,
                                            const std::vector<const job::Plan*>& plans,
                                            const std::vector<PlannerPeer>& peers,
                                            const std::vector<PlannerLink>& links,
                                            const PlannerOptions& options = {});

}  // namespace weft::broker
