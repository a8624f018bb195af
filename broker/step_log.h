// StepLog: one row a training step out of the reports of its stages, which come in any order. A
// row is released once every stage has reported it, and the evaluation due after it has come too,
// so that a reader who asks "after step N" never misses what belongs to N. Pure, one thread.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "job/spec.h"
#include "job/worker_spec.h"

namespace weft::broker {

class StepLog {
 public:
  StepLog(job::TrainSpec train, int32_t stages, bool evaluates)
      : train_(std::move(train)), stages_(stages), evaluates_(evaluates) {}

  void add_step(int32_t stage, const job::WorkerEvent& event);
  // The evaluation's row, to be stored at once.
  nlohmann::json add_eval(const job::WorkerEvent& event);
  // Rows that are whole now, ascending. all: whatever there is (the job has ended).
  std::vector<std::pair<int64_t, nlohmann::json>> take(bool all = false);

 private:
  struct Row {
    nlohmann::json json;
    std::map<int32_t, nlohmann::json> stages;
  };
  bool whole(const Row& row) const;
  bool eval_due(int64_t step) const;

  job::TrainSpec train_;
  int32_t stages_;
  bool evaluates_;
  int64_t last_eval_ = -1;
  std::map<int64_t, Row> rows_;
};

}  // namespace weft::broker
