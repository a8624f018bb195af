// Where an evaluation graph runs when the training graph is cut. Pure; no torch.
#pragma once

#include "base/result.h"
#include "opdag/cut.h"
#include "opdag/graph.h"

namespace weft::executor {

struct EvalPartition {
  opdag::Partition partition;  // by position in eval.nodes; stages without a node are left out
  std::vector<int32_t> train_stage;  // of each stage of partition
  bool derived = false;              // the evaluation graph has the training graph's nodes
};

// A derived graph keeps node ids: each node stays in its stage. A separately exported model is laid
// along the training stages by its weights: a node goes to the lowest stage that has its parameters
// and stands at or after its inputs; its loss goes to the training loss stage. kInvalid where a
// weight would be needed in a stage that does not hold it.
Result<EvalPartition> eval_partition(const opdag::Graph& train, const opdag::Partition& partition,
                                     const opdag::Graph& eval);

}  // namespace weft::executor
