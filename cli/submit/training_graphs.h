// The two graphs of a job, from its archives: what is trained and what is evaluated.
#pragma once

#include <string>
#include <vector>

#include "job/spec.h"
#include "opdag/graph.h"
#include "opdag/import.h"

namespace weft::cli {

struct TrainingGraphs {
  opdag::Archive archive;
  opdag::Archive eval_archive;  // equal to archive unless the job names an eval_model
  opdag::Graph train;
  opdag::Graph eval;  // weight paths of a separate eval_model start with "eval:"
  job::JobSpec spec;  // with the loss target bound
  std::vector<std::string> warnings;
};

inline constexpr const char* kEvalPrefix = "eval:";

Result<TrainingGraphs> load_training_graphs(const job::JobSpec& spec);

}  // namespace weft::cli
