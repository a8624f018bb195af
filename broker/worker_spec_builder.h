// What one stage's daemon is sent: the worker's spec with exactly the blobs this stage needs. Pure.
#pragma once

#include "broker/coordinator/state.h"
#include "broker/submission.h"

namespace weft::broker {

// Of a job that has a plan. Weights: leaves its nodes read in either graph; data: only if it reads
// user inputs; resume shards: all of the last complete checkpoint.
Result<job::WorkerSpec> build_worker_spec(const Job& job, const Submission& submission,
                                          const JobGraphs& graphs, int32_t stage);

// Every blob of a spec, each once.
std::vector<job::BlobRef> blobs_of(const job::WorkerSpec& spec);

}  // namespace weft::broker
