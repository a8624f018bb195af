#include "executor/worker_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "job/schedule.h"
#include "opdag/cut_eval.h"

namespace weft::executor {

Result<std::vector<net::EdgeLink>> edge_links(const opdag::Graph& graph,
                                              const opdag::Graph& eval_graph, const job::Plan& plan,
                                              int32_t micro_batches) {
  WEFT_TRY(const opdag::StageGraph stages, opdag::stage_graph(graph, plan.partition));
  const job::PipelineSchedule kind =
      plan.schedule == job::PipelineSchedule::kAuto ? job::PipelineSchedule::k1F1B : plan.schedule;
  const auto schedule = job::make_schedule(stages, {kind, micro_batches, plan.gap});
  const auto credits = job::credits_for(stages, schedule, plan.gap);
  std::vector<net::EdgeLink> links;
  for (const opdag::Edge& edge : stages.edges) {
    const job::EdgeCredits& credit = credits.at(static_cast<size_t>(edge.id));
    const auto bytes = static_cast<uint64_t>(std::max<int64_t>(edge.bytes, 0));
    links.push_back({static_cast<uint32_t>(edge.id), edge.from, edge.to, credit.activation,
                     credit.gradient, bytes, edge.needs_grad ? bytes : 0, edge.value});
  }
  WEFT_TRY(const auto eval, opdag::eval_partition(graph, plan.partition, eval_graph));
  const auto eval_credits =
      job::credits_for(eval.stages, job::make_eval_schedule(eval.stages, micro_batches), plan.gap);
  for (size_t i = 0; i < eval.links.size(); ++i) {
    const auto& link = eval.links[i];
    if (link.trained) continue;
    links.push_back({link.wire, link.from, link.to, std::max(eval_credits[i].activation, 1), 1, 0,
                     0, eval.stages.edges[i].value});
  }
  return links;
}

Result<WorkerLinks> plan_links(const opdag::Graph& graph, const opdag::Graph& eval_graph,
                               const job::Plan& plan, int32_t stage, int32_t micro_batches) {
  if (stage < 0 || stage >= plan.partition.stages) {
    return make_error(Code::kInvalid,
                      fmt::format("stage {} of a plan of {} stages", stage, plan.partition.stages));
  }
  WEFT_TRY(const opdag::StageGraph stages, opdag::stage_graph(graph, plan.partition));
  WorkerLinks links;
  links.loss_stage = stages.loss_stage;
  std::set<int32_t> by_edge;
  WEFT_TRY(const auto all_edges, edge_links(graph, eval_graph, plan, micro_batches));
  for (const net::EdgeLink& edge : all_edges) {
    if (edge.from != stage && edge.to != stage) continue;
    links.edges.push_back(edge);
    by_edge.insert(edge.from == stage ? edge.to : edge.from);
  }
  std::set<int32_t> control;
  // Everyone speaks with the loss stage: norms, the clipping factor, the end of the job.
  if (stage == stages.loss_stage) {
    for (int32_t other = 0; other < stages.stages; ++other) control.insert(other);
  } else {
    control.insert(stages.loss_stage);
  }
  for (const opdag::TiedUse& use : opdag::tied_uses(graph, plan.partition)) {
    if (std::find(use.stages.begin(), use.stages.end(), stage) == use.stages.end()) continue;
    if (use.owner == stage) {
      control.insert(use.stages.begin(), use.stages.end());
    } else {
      control.insert(use.owner);
    }
  }
  control.erase(stage);
  std::set<int32_t> all = by_edge;
  all.insert(control.begin(), control.end());
  std::set_difference(control.begin(), control.end(), by_edge.begin(), by_edge.end(),
                      std::back_inserter(links.control_neighbours));
  links.neighbours.assign(all.begin(), all.end());
  return links;
}

std::string peer_of(const job::Plan& plan, int32_t stage, int32_t replica) {
  const auto index = static_cast<size_t>(stage);
  if (stage < 0 || index >= plan.stages.size()) return {};
  const std::vector<std::string>& replicas = plan.stages[index].replicas;
  const auto which = static_cast<size_t>(replica);
  return replica < 0 || which >= replicas.size() ? std::string() : replicas[which];
}

Result<std::vector<net::Neighbour>> neighbours_of(const WorkerLinks& links, const job::Plan& plan,
                                                  const std::vector<job::StageAddress>& addresses) {
  std::vector<net::Neighbour> result;
  for (const int32_t stage : links.neighbours) {
    const auto found = std::find_if(addresses.begin(), addresses.end(),
                                    [&](const auto& address) { return address.stage == stage; });
    if (found == addresses.end()) {
      return make_error(Code::kInvalid,
                        fmt::format("the connect line has no address of stage {}", stage));
    }
    const std::string planned = peer_of(plan, stage, 0);
    if (!planned.empty() && planned != found->peer) {
      return make_error(Code::kDenied,
                        fmt::format("the connect line names peer {} for stage {}, the plan {}",
                                    found->peer, stage, planned));
    }
    result.push_back({stage, found->peer, found->host, found->port});
  }
  return result;
}

}  // namespace weft::executor
