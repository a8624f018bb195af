// What one stage's daemon is sent: the worker's spec with exactly the blobs this stage needs. Pure.
#pragma once

#include "broker/coordinator/state.h"
#include "broker/submission.h"

namespace weft::broker {

// Of a job that has a plan. Weights: leaves its nodes read in either graph; data: only if it reads
// user inputs; starting weights: only at step 0 and if it reads weights; resume shards: those of
// the last complete checkpoint that hold a tensor of its leaves, under any name of a tied weight.
Result<job::WorkerSpec> build_worker_spec(const Job& job, const Submission& submission,
                                          const JobGraphs& graphs, int32_t stage);

// Whether the checkpoint a job resumes from holds every parameter and persistent buffer; a job that
// starts at step 0 needs none.
Status check_resume_point(const Job& job, const opdag::Graph& graph);

// Every blob of a spec, each once.
std::vector<job::BlobRef> blobs_of(const job::WorkerSpec& spec);

}  // namespace weft::broker
