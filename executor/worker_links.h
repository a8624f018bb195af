// What the data plane of one stage must know of a plan. Pure.
#pragma once

#include <vector>

#include "job/plan.h"
#include "job/worker_spec.h"
#include "net/link_plan.h"
#include "net/tls/tls_endpoint.h"
#include "opdag/graph.h"

namespace weft::executor {

struct WorkerLinks {
  std::vector<net::EdgeLink> edges;         // of training and evaluation, that start or end here
  std::vector<int32_t> control_neighbours;  // linked without an edge: the loss stage, tied groups
  std::vector<int32_t> neighbours;          // all linked stages, ascending
  int32_t loss_stage = 0;
};

// Every edge of training, then the edges only evaluation has, with credits that follow from the
// schedules of the plan over `micro_batches`.
Result<std::vector<net::EdgeLink>> edge_links(const opdag::Graph& graph,
                                              const opdag::Graph& eval_graph, const job::Plan& plan,
                                              int32_t micro_batches);

// graph: the training graph; eval_graph may be another model with edges of its own.
Result<WorkerLinks> plan_links(const opdag::Graph& graph, const opdag::Graph& eval_graph,
                               const job::Plan& plan, int32_t stage, int32_t micro_batches);

// The addresses of this stage's neighbours, checked against the plan's peers.
Result<std::vector<net::Neighbour>> neighbours_of(const WorkerLinks& links, const job::Plan& plan,
                                                  const std::vector<job::StageAddress>& addresses);

// Id of the peer that runs a stage's replica; empty where the plan names none.
std::string peer_of(const job::Plan& plan, int32_t stage, int32_t replica);

}  // namespace weft::executor
