// From a WorkerSpec to a stage that can run: graphs, batch shape, links, feed, weights, resume.
// Compute thread only.
#pragma once

#include <functional>
#include <memory>

#include "executor/device_memory.h"
#include "executor/feed_job.h"
#include "executor/stage_runtime.h"
#include "executor/worker_links.h"
#include "job/worker_spec.h"

namespace weft::executor {

// What the files of a spec say before any weight is read.
struct StageFiles {
  opdag::Graph graph;  // promoted to float64 where the job asks for it
  opdag::Graph eval_graph;
  BatchShape batch;
  WorkerLinks links;
  std::set<std::string> inputs;  // user inputs this stage reads
};
// kTooLarge: the stage cannot fit in the memory where it is to compute.
Result<StageFiles> load_stage_files(const job::WorkerSpec& spec,
                                    const CardMemory& of_card = card_memory_bytes);

struct LoadedStage {
  std::unique_ptr<Feed> feed;
  std::unique_ptr<StageRuntime> runtime;  // uses feed and the endpoint: ends first
  int32_t eval_micro_batches = 0;         // of one evaluation; 0: this job does not evaluate
};
// Reads data and weights, then the starting weights (`init`) or the checkpoint to resume from.
// `moved` is called before each weight: a slow disk is no hang.
Result<LoadedStage> load_stage(StageFiles files, const job::WorkerSpec& spec, Compute compute,
                               net::Endpoint& endpoint, const std::function<void()>& moved);

}  // namespace weft::executor
