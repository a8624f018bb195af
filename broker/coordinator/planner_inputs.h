// What a job is planned with: the idle peers as they described themselves, and what the operator
// knows of them and of the network (settings peers_file and links_file, docs/planning.md), joined
// by the names of the peers. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "broker/coordinator/device_lessons.h"
#include "broker/coordinator/state.h"
#include "broker/planner/links_file.h"
#include "broker/planner/planner.h"

namespace weft::broker {

struct PlannerInputs {
  std::vector<PlannerPeer> peers;  // by peer id
  std::vector<PlannerLink> links;
  std::vector<PlannerAccess> access;
};

// Several peers of one name are all taken for the one that is known. Memory that the operator wrote
// counts more than what a peer tells of its own, in all and free.
PlannerInputs planner_inputs(const std::vector<const Peer*>& idle, const PlannerWorld& known,
                             const DeviceLessons& lessons);
// Their peers alone, in the order given.
std::vector<PlannerPeer> planner_peers(const std::vector<const Peer*>& idle,
                                       const PlannerWorld& known, const DeviceLessons& lessons);

// What the times that a peer's profile predicts are multiplied with: what a run that drifted has
// shown of it, else what the lessons say.
double planned_correction(const Peer& peer, const DeviceLessons& lessons);

// Whether the operator wrote the peer's speed down: its profile does not count then.
bool speed_written(const Peer& peer, const PlannerWorld& known);

// What a user asked for, with what a resume has changed since.
job::JobSpec spec_to_plan(job::JobSpec spec, const Job& job);

// make_plan (planner.h) with those inputs: how the broker plans, and a simulation of it. The access
// of the options is replaced by what is known.
Result<job::Plan> plan_over_idle(const opdag::Graph& graph, const job::JobSpec& spec,
                                 const std::vector<const Peer*>& idle, const PlannerWorld& known,
                                 const DeviceLessons& lessons, PlannerOptions options);

// Directions in which a plan sends, from peer to peer.
std::vector<std::pair<std::string, std::string>> ways_of(const opdag::Graph& graph,
                                                         const job::Plan& plan);

}  // namespace weft::broker
