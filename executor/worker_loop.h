// The training loop of one stage. Every stage runs the same passes at the same step boundaries
// (training step, evaluation, checkpoint), all derived from the spec: no message coordinates them,
// but for one that asks all stages to wait behind a step to come.
// Compute thread only.
#pragma once

#include <functional>
#include <optional>

#include "base/os/file.h"
#include "executor/feed_job.h"
#include "executor/stage_runtime.h"
#include "executor/threads.h"
#include "executor/worker_lines.h"
#include "job/worker_spec.h"
#include "net/endpoint.h"

namespace weft::executor {

// What happens when `done` steps of a job are done.
struct Boundary {
  bool evaluate = false;
  bool checkpoint = false;
};
Boundary boundary_at(const job::TrainSpec& train, int64_t done, bool evaluates);

struct LoopOptions {
  job::WorkerSpec spec;
  BatchShape batch;
  int32_t eval_micro_batches = 0;  // 0: no evaluation
  bool loss_stage = false;
  int32_t poll_ms = 100;   // between looks at shards that are being uploaded
  int32_t wait_ms = 1000;  // longest single wait; what it waits for may take longer
};

class TrainingLoop {
 public:
  // Rates of links are told no more often: they are of a minute.
  static constexpr double kTellTrafficS = 5;

  TrainingLoop(LoopOptions options, StageRuntime& runtime, net::Endpoint& endpoint,
               WorkerControl& control, EventSink events);

  // Runs to the last step, reporting on the way, and flushes. kCancelled when stopped.
  Status run();
  int64_t steps_done() const { return done_; }

 private:
  Status train_step();
  Status at_boundary();
  Status evaluate();
  Status checkpoint();
  Status hold(bool stored);
  Status await_uploads();
  Status drive();  // the pass begun last, to its end
  void report_step(double seconds);
  void add_traffic(const net::EndpointStats& stats, job::WorkerEvent& event);

  LoopOptions options_;
  StageRuntime& runtime_;
  net::Endpoint& endpoint_;
  WorkerControl& control_;
  EventSink events_;
  int64_t done_ = 0;
  std::string shard_path_;
  std::vector<os::Path> stored_;  // shards written here and, as last seen, not uploaded yet
  std::map<uint32_t, int64_t> sent_bytes_;  // as of the last report
  std::map<int32_t, int64_t> told_runs_;    // of each neighbour's, as of when it was told
  double told_s_ = -kTellTrafficS;
};

}  // namespace weft::executor
