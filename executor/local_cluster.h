// LocalCluster: all stages of a plan in one thread over the simulated network: how equality is
// proven in tests and in `weft model check`. Stages are advanced in a seeded random order, messages
// arrive in a seeded order; no result may depend on either.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "executor/memory_meter.h"
#include "executor/stage_runtime.h"
#include "net/sim/sim_network.h"

namespace weft::executor {

struct ClusterOptions {
  RuntimeOptions runtime;  // stage is ignored
  net::SimOptions network;
  uint64_t seed = 0;          // order of stages
  bool limit_credits = true;  // as the data plane would
  bool measure_memory = false;
};

class LocalCluster {
 public:
  static Result<std::unique_ptr<LocalCluster>> make(const opdag::Graph& graph,
                                                    const opdag::Graph& eval_graph,
                                                    const ClusterOptions& options,
                                                    const WeightSource& weights, Feed& feed);

  // One training step, or one evaluation; what the loss stage reports. kTimeout: deadlock.
  Result<StepResult> step(int64_t step);
  Result<StepResult> evaluate(int64_t ordinal, int32_t micro_batches);

  // Merged over all stages.
  std::map<std::string, at::Tensor> state() const;
  std::map<std::string, at::Tensor> gradients() const;
  std::map<std::string, at::Tensor> outputs() const;
  Status load_state(const std::map<std::string, at::Tensor>& state);

  int32_t stages() const { return static_cast<int32_t>(runtimes_.size()); }
  StageRuntime& stage(int32_t index) { return *runtimes_.at(static_cast<size_t>(index)); }
  double busy_s(int32_t stage) const;
  int64_t peak_bytes(int32_t stage) const;  // with measure_memory

 private:
  LocalCluster(const ClusterOptions& options, int32_t stages);
  Result<StepResult> run();

  ClusterOptions options_;
  net::SimNetwork network_;
  Rng rng_;
  std::vector<std::shared_ptr<MemoryMeter>> meters_;
  std::vector<std::unique_ptr<StageRuntime>> runtimes_;
};

// A plan of one replica a stage for a cut, for tests and checks.
job::Plan local_plan(const opdag::Partition& partition, job::PipelineSchedule schedule,
                     int32_t gap = 1);

}  // namespace weft::executor
