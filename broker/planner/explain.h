// Why a plan is as it is, in words and numbers. Private to the planner. Pure.
#pragma once

#include <optional>
#include <string>

#include "broker/planner/planner.h"
#include "broker/planner/realise.h"

namespace weft::broker {

struct Explained {
  std::string how;     // "auto: 3 stages", "2 stages as asked"
  size_t offered = 0;  // peers there were, also those not looked at
  std::optional<Realised> single_peer, single_site;
  std::vector<std::vector<int32_t>> sites;
};

// Everything of a report, the plan and its reason among it.
PlanReport explain(const PlanInputs& in, const Realised& chosen, const Explained& facts);

std::string mebibytes(double bytes);  // "12 MiB", rounded up

}  // namespace weft::broker
