#include "broker/planner/rejudge.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "broker/planner/realise.h"

namespace weft::broker {

namespace {

Result<std::vector<int32_t>> stage_peers_of(const PlanInputs& in, const job::Plan& plan) {
  std::vector<int32_t> stage_peers;
  std::set<std::string> used;
  if (plan.stages.size() != static_cast<size_t>(plan.partition.stages)) {
    return make_error(Code::kInvalid,
                      fmt::format("the plan cuts {} stages and gives peers to {}",
                                  plan.partition.stages, plan.stages.size()),
                      "list one entry in stages for each stage of the partition");
  }
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    if (plan.stages[s].replicas.empty()) {
      return make_error(Code::kInvalid, fmt::format("stage {} of the plan has no peer", s),
                        "name one in its replicas");
    }
    const std::string& id = plan.stages[s].replicas[0];
    const auto peer = std::find_if(in.peers.begin(), in.peers.end(),
                                   [&](const PlannerPeer& known) { return known.id == id; });
    if (peer == in.peers.end()) {
      return make_error(Code::kInvalid,
                        fmt::format("stage {} of the plan runs on {}, which is no peer", s, id),
                        "use the ids of the peers given");
    }
    if (!used.insert(id).second) {
      return make_error(Code::kInvalid, fmt::format("{} runs two stages of the plan", id),
                        "give each stage a peer of its own");
    }
    stage_peers.push_back(static_cast<int32_t>(peer - in.peers.begin()));
  }
  return stage_peers;
}

}  // namespace

Result<Realised> realise_plan(PlanInputs& in, const job::Plan& plan) {
  in.schedule.kind = plan.schedule;
  WEFT_TRY(const std::vector<int32_t> stage_peers, stage_peers_of(in, plan));
  WEFT_TRY(Realised realised, realise(in, plan.partition, stage_peers));
  realised.gap = plan.gap;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    realised.pipeline.stages[s].recompute = plan.stages[s].recompute;
  }
  predict_step(in, realised);
  return realised;
}

Result<std::vector<double>> step_seconds_of(const opdag::Graph& graph, const job::JobSpec& spec,
                                            const std::vector<const job::Plan*>& plans,
                                            const std::vector<PlannerPeer>& peers,
                                            const std::vector<PlannerLink>& links,
                                            const PlannerOptions& options) {
  WEFT_TRY(PlanInputs in, make_inputs(graph, spec, peers, links, options));
  std::vector<double> seconds;
  for (const job::Plan* plan : plans) {
    WEFT_TRY(const Realised realised, realise_plan(in, *plan));
    seconds.push_back(realised.pace_s);
  }
  return seconds;
}

}  // namespace weft::broker
