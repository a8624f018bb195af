// A plan as a picture: sites as boxes, peers in them, stages on the peers, the ways between stages
// as wide as they are busy. Pure.
#pragma once

#include <string>

#include "broker/planner/planner.h"

namespace weft::cli {

std::string plan_svg(const broker::PlanReport& report);

}  // namespace weft::cli
