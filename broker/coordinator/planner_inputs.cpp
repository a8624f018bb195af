#include "broker/coordinator/planner_inputs.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "opdag/cut.h"

namespace weft::broker {

double planned_correction(const Peer& peer, const DeviceLessons& lessons) {
  return peer.slowness.factor > 0 ? peer.slowness.factor : lessons.factor(peer);
}

std::vector<PlannerPeer> planner_peers(const std::vector<const Peer*>& idle,
                                       const PlannerWorld& known, const DeviceLessons& lessons) {
  // The world may know many more than are asked about.
  std::unordered_map<std::string_view, const PlannerPeer*> by_name;
  for (const Peer* peer : idle) by_name.emplace(peer->name, nullptr);
  for (const PlannerPeer& peer : known.peers) {
    const auto found = by_name.find(peer.id);
    if (found != by_name.end() && found->second == nullptr) found->second = &peer;
  }
  std::vector<PlannerPeer> peers;
  for (const Peer* peer : idle) {
    PlannerPeer planned;
    if (const PlannerPeer* found = by_name.at(peer->name)) planned = *found;
    // What the operator wrote down counts more than what was measured, but for what a run that
    // drifted has shown.
    if (planned.gflops <= 0) planned.profile = peer->profile;
    if (planned.profile || peer->slowness.factor > 0) {
      planned.correction = planned_correction(*peer, lessons);
    }
    planned.id = peer->id;
    planned.cores = peer->capabilities.cores;
    planned.card = job::is_card(peer->capabilities.device);
    if (planned.memory_bytes == 0) {
      planned.memory_bytes = memory_bytes_of(*peer);
      planned.free_memory_bytes = peer->free_memory_bytes;
    }
    peers.push_back(std::move(planned));
  }
  return peers;
}

bool speed_written(const Peer& peer, const PlannerWorld& known) {
  const auto found = std::find_if(known.peers.begin(), known.peers.end(),
                                  [&](const PlannerPeer& p) { return p.id == peer.name; });
  return found != known.peers.end() && found->gflops > 0;
}

PlannerInputs planner_inputs(const std::vector<const Peer*>& idle, const PlannerWorld& known,
                             const DeviceLessons& lessons) {
  PlannerInputs inputs;
  inputs.peers = planner_peers(idle, known, lessons);
  std::unordered_map<std::string_view, std::vector<std::string>> ids;  // by name
  for (const Peer* peer : idle) ids[peer->name].push_back(peer->id);
  std::unordered_set<std::string_view> groups;
  for (const PlannerAccess& access : known.access) groups.insert(access.name);
  for (const PlannerLink& link : known.links) {
    const auto from = ids.find(link.from), to = ids.find(link.to);
    if (from == ids.end() && to == ids.end() && groups.contains(link.from) &&
        groups.contains(link.to)) {
      inputs.links.push_back(link);  // of all their peers
      continue;
    }
    if (from == ids.end() || to == ids.end()) continue;
    for (const std::string& a : from->second) {
      for (const std::string& b : to->second) {
        if (a != b) inputs.links.push_back({a, b, link.latency_ms, link.bandwidth_mbit_s});
      }
    }
  }
  for (const PlannerAccess& access : known.access) {
    PlannerAccess shared{access.name, {}, access.up_mbit_s, access.down_mbit_s};
    for (const std::string& name : access.peers) {
      const auto found = ids.find(name);
      if (found == ids.end()) continue;
      shared.peers.insert(shared.peers.end(), found->second.begin(), found->second.end());
    }
    if (!shared.peers.empty()) inputs.access.push_back(std::move(shared));
  }
  return inputs;
}

job::JobSpec spec_to_plan(job::JobSpec spec, const Job& job) {
  spec.pipeline.stages = job.requested_stages;
  spec.train.steps = job.steps;
  return spec;
}

Result<job::Plan> plan_over_idle(const opdag::Graph& graph, const job::JobSpec& spec,
                                 const std::vector<const Peer*>& idle, const PlannerWorld& known,
                                 const DeviceLessons& lessons, PlannerOptions options) {
  PlannerInputs inputs = planner_inputs(idle, known, lessons);
  options.access = std::move(inputs.access);
  return make_plan(graph, spec, inputs.peers, inputs.links, options);
}

std::vector<std::pair<std::string, std::string>> ways_of(const opdag::Graph& graph,
                                                         const job::Plan& plan) {
  std::set<std::pair<int32_t, int32_t>> pairs;
  const auto stages = opdag::stage_graph(graph, plan.partition);
  if (!stages.ok()) return {};  // then nothing will run
  for (const opdag::Edge& edge : stages->edges) pairs.emplace(edge.from, edge.to);
  for (const opdag::TiedUse& use : opdag::tied_uses(graph, plan.partition)) {
    for (const int32_t stage : use.stages) {
      if (use.trainable && stage != use.owner) pairs.emplace(use.owner, stage);
    }
  }
  std::vector<std::pair<std::string, std::string>> ways;
  const auto peer = [&](int32_t stage) {
    return plan.stages[static_cast<size_t>(stage)].replicas[0];
  };
  for (const auto& [from, to] : pairs) {
    ways.emplace_back(peer(from), peer(to));
    ways.emplace_back(peer(to), peer(from));  // gradients
  }
  return ways;
}

}  // namespace weft::broker
