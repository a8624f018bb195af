// The feed of a job: data columns bound to graph inputs. The exported batch (first dimension of an
// input) is the micro-batch; micro-batch m of step s holds samples [m b, (m + 1) b) of
// job::SampleOrder::at(s). The eval split runs in file order in whole micro-batches; what remains
// of it is dropped.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "executor/feed.h"
#include "job/spec.h"
#include "opdag/graph.h"

namespace weft::executor {

// How a job's batch lies over a graph: the same on every stage, with or without data files.
struct BatchShape {
  int64_t micro_batch = 0;    // samples: the first dimension of the bound inputs
  int32_t micro_batches = 0;  // of one training step
  int64_t sequence = 0;       // tokens of a sample; 0 where no token column is bound
};
// Errors: kInvalid when inputs disagree, or the batch is not a multiple of the micro-batch.
Result<BatchShape> batch_shape(const opdag::Graph& graph, const job::JobSpec& spec);

// The binding of every user input of the graph: those of the job file, and the one input left over
// bound to loss_target where the job appends its own loss.
Result<std::map<std::string, job::Binding>> bind_inputs(const opdag::Graph& graph,
                                                        const job::JobSpec& spec);

struct FeedFiles {
  std::map<std::string, std::string> paths;  // "train", "eval", "train/images", ... -> file
  std::string token_dtype;                   // of token files without a sidecar; may be empty
};

// inputs: the user inputs this stage reads; only their columns are opened. A missing train file
// is kInvalid; without eval files the eval set is empty.
Result<std::unique_ptr<Feed>> make_feed(const opdag::Graph& graph, const opdag::Graph& eval_graph,
                                        const job::JobSpec& spec, const FeedFiles& files,
                                        const std::set<std::string>& inputs);

}  // namespace weft::executor
