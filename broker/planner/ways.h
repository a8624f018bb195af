// Ways between peers and the lines they share, from two sources: what was measured, and what
// somebody who knows the network wrote down. Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "broker/planner/network.h"

namespace weft::broker {

struct PlannerWays {
  std::vector<PlannerLink> links;
  std::vector<PlannerAccess> access;
};

// What was measured between these peers. Asked for those only that a plan is made over.
using MeasuredWays = std::function<PlannerWays(const std::vector<std::string>& ids)>;

// Both, as Network takes them. What was told counts more, for each direction: a measured link gives
// way to a told one, a measured line to that of a told group with one of its peers, an assumed line
// to a told link that passes it; a measured line carries no less than such a link.
PlannerWays join_ways(PlannerWays measured, const PlannerWays& told);

// The network of both between these peers; measured may be empty.
Network joined_network(const std::vector<std::string>& ids, const MeasuredWays& measured,
                       const std::vector<PlannerLink>& links,
                       const std::vector<PlannerAccess>& access);

// The same without lines that are assumed: flows of their sites count as independent.
MeasuredWays without_assumed(MeasuredWays measured);

// Remembers the last answer: who asks about some of the same peers again gets what was said then.
// Empty for empty. One thread at a time.
MeasuredWays remembered(MeasuredWays measured);

}  // namespace weft::broker
