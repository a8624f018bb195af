// The report of a plan as JSON: what `weft plan -o json` prints (docs/planning.md).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "broker/planner/planner.h"

namespace weft::broker {

nlohmann::json report_to_json(const PlanReport& report, const opdag::Graph& graph);

}  // namespace weft::broker
