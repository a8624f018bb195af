// From numbers back to the graph: a layout or a partition with its peers, measured by the graph's
// own edges, weights and activations. Private to the planner. Pure.
#pragma once

#include <string>
#include <vector>

#include "broker/planner/cost.h"
#include "broker/planner/graph_costs.h"
#include "broker/planner/planner.h"

namespace weft::broker {

// What all plans of one call share. Peers that had no speed are given one here.
struct PlanInputs {
  const opdag::Graph& graph;
  const job::JobSpec& spec;
  const PlannerOptions& options;
  std::vector<PlannerPeer> peers;
  std::vector<bool> speed_known;
  Network network{0};
  job::ScheduleOptions schedule;
  std::vector<std::string> notes;
  GraphCosts costs;
  job::Work work;  // of the whole graph
  Compressor compressor;
  // [peer]: seconds that a byte of a checkpoint takes to the broker, shared out over the steps
  // until the next one; empty: none on the way.
  std::vector<double> store_s;

  double seconds_alone(const PlannerPeer& peer) const;  // of a micro-batch, forward and backward
};

// peers: of an earlier check, not empty. Fills unknown speeds, builds the network, notes both.
Result<PlanInputs> make_inputs(const opdag::Graph& graph, const job::JobSpec& spec,
                               const std::vector<PlannerPeer>& peers,
                               const std::vector<PlannerLink>& links,
                               const PlannerOptions& options);

// A plan in the terms of the graph.
struct Realised {
  opdag::Partition partition;
  std::vector<int32_t> peers;  // per stage, index into PlanInputs::peers
  StageCosts costs;
  Pipeline pipeline;
  int32_t gap = 1;
  std::string gap_reason;  // empty for 1
  double step_s = 0;
  double pace_s = 0;   // step_s, or what storing checkpoints takes of a step where that is more
  bool timed = false;  // every peer's speed is known
};

// Bytes a plan may use of a peer; infinite where its memory is unknown. And if others used none.
double room_of(const PlannerPeer& peer, const PlannerOptions& options);
double room_if_free(const PlannerPeer& peer, const PlannerOptions& options);
double room_of(const PlanInputs& in, int32_t peer);
double room_if_free(const PlanInputs& in, int32_t peer);

// Its messages compressed as the options have it.
Result<Realised> realise(const PlanInputs& in, opdag::Partition partition,
                         std::vector<int32_t> peers);

// The fastest of its memory plans (memory_plan.h) up to the gap that links ask for, predicted;
// false where there is none.
bool settle_memory(const PlanInputs& in, Realised& realised);
// Predicts step and pace as it is.
void predict_step(const PlanInputs& in, Realised& realised);
// Seconds that storing a stage's checkpoints takes of a step.
double storing_seconds(const PlanInputs& in, const Realised& realised, size_t stage);

// The first stage whose peer is too small under a gap, or -1.
int32_t stage_over_memory(const PlanInputs& in, const Realised& realised, int32_t gap);
// Bytes each stage needs under a gap.
std::vector<double> stage_memories(const PlanInputs& in, const Realised& realised, int32_t gap);

// A plan of somebody else's, its step predicted; `in` takes its schedule. kInvalid: a stage without
// a peer, an unknown peer or one with two stages.
Result<Realised> realise_plan(PlanInputs& in, const job::Plan& plan);

}  // namespace weft::broker
