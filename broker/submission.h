// Submission: what POST /api/v1/jobs carries, parsed strictly and checked against the blobs it
// names; and the graphs behind it. Everything a stranger sends is bounded and validated here, so
// that the planner and the workers see only what holds together.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "job/spec.h"
#include "job/worker_spec.h"
#include "net/blob/blob_store.h"
#include "opdag/graph.h"

namespace weft::broker {

struct Submission {
  job::JobSpec spec;
  job::BlobRef graph, eval_graph, init;  // init: empty sha256 when absent
  std::map<std::string, job::BlobRef> weights;
  std::map<std::string, job::BlobRef> data;
  std::string token_dtype;
};

struct JobGraphs {
  opdag::Graph graph, eval_graph;
};

// Strict: unknown or missing fields are refused by name.
Result<Submission> submission_from_json(const nlohmann::json& body);
// Every blob it names, each once.
std::vector<job::BlobRef> blobs_of(const Submission& submission);

// Decodes the stored graphs. kNotFound: a graph blob is not stored.
Result<JobGraphs> load_graphs(const Submission& submission, const net::BlobStore& blobs);

// All that can be known before a peer is involved: inputs bound, batch divisible, samples enough,
// stages possible, weights present, every blob stored in its stated size. dry_run: data and weight
// blobs need not be stored, their stated sizes count.
Status check_submission(const Submission& submission, const JobGraphs& graphs,
                        const net::BlobStore& blobs, bool dry_run);

// Turns eval_batches = 0 ("the whole eval set") into its number of whole micro-batches: a stage
// without data files cannot count them, and all stages must come to the same number. The
// submission has passed check_submission.
Status settle_eval_batches(Submission& submission, const JobGraphs& graphs,
                           const net::BlobStore& blobs);

// Remarks that do not stop a job.
std::vector<std::string> warnings_of(const Submission& submission, const JobGraphs& graphs);

}  // namespace weft::broker
