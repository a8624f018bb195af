// What a stage costs: time in arbitrary units, FLOPs, and memory. Private to the planner.
#pragma once

#include <vector>

#include "broker/planner/planner.h"
#include "job/plan.h"
#include "job/schedule.h"
#include "job/work.h"
#include "opdag/cut.h"

namespace weft::broker {

// Bytes of each value of a graph in training, by ValueId; 0 for what is no tensor.
struct ValueBytes {
  std::vector<double> kept;  // in memory: the element type that autocast gives it
  std::vector<double> sent;  // as a message: dimensions that repeat one element are sent once
  std::vector<DType> dtype;  // in memory and sent
};
ValueBytes value_bytes(const opdag::Graph& graph, job::Precision precision);

// Whether a node's results are views of what it reads, without memory of their own. A conversion to
// another type is none.
bool only_views(const opdag::Graph& graph, const opdag::Node& node);

// What each node with a backward leaves behind for it, per micro-batch, besides its inputs: its
// results that are no views, the places of maxima, and under autocast the copies of wider arguments
// that it computes with.
std::vector<double> node_stash(const opdag::Graph& graph, job::Precision precision,
                               const ValueBytes& bytes);

// Bytes that training keeps for a parameter or buffer: weight, gradient, optimizer state.
double leaf_bytes(const opdag::Graph& graph, const opdag::Leaf& leaf, const job::TrainSpec& train);

// What a checkpoint holds of it: no gradient.
double stored_bytes(const opdag::Graph& graph, const opdag::Leaf& leaf,
                    const job::TrainSpec& train);

// Of a weight's gradient, or of the weight, when stages that share it exchange them.
double tied_bytes(const opdag::Graph& graph, const opdag::Leaf& leaf, const job::TrainSpec& train);

// Seconds of one micro-batch's work on a peer: by the speed that somebody wrote down, else by its
// profile, times its correction. A peer of unknown speed does kNominalGflops FLOP equivalents:
// ratios are right, seconds are not.
job::PassSeconds seconds_of(const job::Work& work, const PlannerPeer& peer,
                            job::Precision precision);

// Of a peer's speed as seconds_of takes it; zeros where only gflops are known, or nothing.
MemorySpeed memory_speed_of(const PlannerPeer& peer);

// flops, parameter_bytes and memory_bytes of every stage of a partition; no replicas. The memory of
// a stage is fixed (with what its forward needs for a moment and keeps for no backward) + stash x
// micro-batches in flight.
struct StageCosts {
  opdag::StageGraph graph;  // with Edge::bytes as sent without codecs
  std::vector<DType> edge_dtype;
  std::vector<job::StagePlan> stages;
  std::vector<job::Work> work;
  std::vector<double> fixed_bytes, stash_bytes;
  std::vector<double> shard_bytes;  // of a checkpoint
  // Of a micro-batch: what other stages and the feed give; 0 where nothing has a backward.
  std::vector<double> input_bytes;
  std::vector<double> shared_bytes;  // PipelineStage
};
// costs: the graph's, in the job's precision (graph_costs.h).
struct GraphCosts;
Result<StageCosts> estimate_stages(const opdag::Graph& graph, const GraphCosts& costs,
                                   const job::JobSpec& spec, const opdag::Partition& partition);

}  // namespace weft::broker
