// Where an evaluation graph runs when the training graph is cut. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "opdag/cut.h"
#include "opdag/graph.h"

namespace weft::opdag {

// Stages of evaluation are numbered among those that have evaluation nodes; everything outside this
// struct speaks of training stages, so every number is mapped through it.
struct EvalPartition {
  // An edge between two stages, under the number it has on the wire: that of the training edge that
  // carries the same value, else one from the number of training edges on.
  struct Link {
    uint32_t wire = 0;
    int32_t from = 0, to = 0;  // training stages
    bool trained = false;      // the wire number is a training edge's
  };

  Partition partition;               // by position in eval.nodes
  std::vector<int32_t> train_stage;  // of each stage of partition, ascending
  StageGraph stages;                 // of partition
  std::vector<Link> links;           // of each edge of stages
  bool derived = false;              // derived_from(eval, train)

  // The number in `partition` of a training stage; kNone where it has no evaluation node.
  int32_t stage_of(int32_t train_stage) const;
};

// A derived graph keeps node ids: each node stays in its stage. A separately exported model is laid
// along the training stages by its weights: a cut unit goes to the lowest stage that has its
// parameters and the buffers training writes, and stands at or after its inputs; the loss goes to
// the training loss stage. kInvalid where a weight would be needed in a stage that does not hold
// it. Weights training never reads are needed by no stage in particular. A graph without nodes has
// no stages.
Result<EvalPartition> eval_partition(const Graph& train, const Partition& partition,
                                     const Graph& eval);

}  // namespace weft::opdag
