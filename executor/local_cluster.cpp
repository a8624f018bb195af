#include "executor/local_cluster.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <optional>

#include "executor/worker_links.h"

namespace weft::executor {
LocalCluster::LocalCluster(const ClusterOptions& options, int32_t stages)
    : options_(options), network_(stages, options.network), rng_(options.seed) {
  for (int32_t i = 0; i < stages; ++i) meters_.push_back(std::make_shared<MemoryMeter>());
}

Result<std::unique_ptr<LocalCluster>> LocalCluster::make(const opdag::Graph& graph,
                                                         const opdag::Graph& eval_graph,
                                                         const ClusterOptions& options,
                                                         const WeightSource& weights, Feed& feed) {
  const int32_t stages = options.runtime.plan.partition.stages;
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(options, stages));
  if (options.limit_credits) {
    WEFT_TRY(const auto links,
             edge_links(graph, eval_graph, options.runtime.plan, options.runtime.micro_batches));
    cluster->network_.set_credits(links);
  }
  for (int32_t stage = 0; stage < stages; ++stage) {
    RuntimeOptions runtime = options.runtime;
    runtime.stage = stage;
    std::optional<MemoryMeter::Scope> scope;
    if (options.measure_memory) scope.emplace(cluster->meters_[static_cast<size_t>(stage)]);
    WEFT_TRY(auto made, StageRuntime::make(graph, eval_graph, runtime, weights,
                                           cluster->network_.endpoint(stage), feed));
    cluster->runtimes_.push_back(std::move(made));
  }
  return cluster;
}

Result<StepResult> LocalCluster::run() {
  std::vector<size_t> open(runtimes_.size());
  std::iota(open.begin(), open.end(), size_t{0});
  while (!open.empty()) {
    bool ran = false;
    rng_.shuffle(open);
    for (size_t i = 0; i < open.size();) {
      std::optional<MemoryMeter::Scope> scope;
      if (options_.measure_memory) scope.emplace(meters_[open[i]]);
      WEFT_TRY(const Progress progress, runtimes_[open[i]]->advance());
      if (progress != Progress::kWaiting) ran = true;  // a copy ends by itself
      if (progress == Progress::kDone) {
        open[i] = open.back();
        open.pop_back();
      } else {
        ++i;
      }
    }
    if (open.empty() || (ran && rng_.below(2) == 0)) continue;
    if (!network_.deliver_next() && !ran) {
      return make_error(Code::kTimeout,
                        fmt::format("stage {} waits for a message that nobody sends", open[0]));
    }
  }
  StepResult merged;
  merged.loss = std::nan("");
  for (const auto& runtime : runtimes_) {
    const StepResult result = runtime->result();
    if (!std::isnan(result.loss)) merged.loss = result.loss;
    merged.grad_norm = std::max(merged.grad_norm, result.grad_norm);
    merged.loss_scale = std::max(merged.loss_scale, result.loss_scale);
    merged.skipped = merged.skipped || result.skipped;
    merged.skipped_steps = std::max(merged.skipped_steps, result.skipped_steps);
    merged.accuracy = std::max(merged.accuracy, result.accuracy);
    merged.busy_s += result.busy_s;
    merged.compute_s += result.compute_s;
  }
  return merged;
}

Result<StepResult> LocalCluster::step(int64_t step) {
  for (const auto& runtime : runtimes_) WEFT_TRY_STATUS(runtime->begin_step(step));
  return run();
}

Result<StepResult> LocalCluster::evaluate(int64_t ordinal, int32_t micro_batches) {
  for (const auto& runtime : runtimes_) {
    WEFT_TRY_STATUS(runtime->begin_eval(ordinal, micro_batches));
  }
  return run();
}

std::map<std::string, at::Tensor> LocalCluster::state() const {
  std::map<std::string, at::Tensor> merged;
  for (const auto& runtime : runtimes_) merged.merge(runtime->state());
  return merged;
}

std::map<std::string, at::Tensor> LocalCluster::gradients() const {
  std::map<std::string, at::Tensor> merged;
  for (const auto& runtime : runtimes_) merged.merge(runtime->gradients());
  return merged;
}

std::map<std::string, at::Tensor> LocalCluster::outputs() const {
  std::map<std::string, at::Tensor> merged;
  for (const auto& runtime : runtimes_) merged.merge(runtime->outputs());
  return merged;
}

Status LocalCluster::load_state(const std::map<std::string, at::Tensor>& state) {
  for (const auto& runtime : runtimes_) WEFT_TRY_STATUS(runtime->load_state(state));
  return {};
}

double LocalCluster::busy_s(int32_t stage) const {
  return runtimes_.at(static_cast<size_t>(stage))->result().busy_s;
}

int64_t LocalCluster::peak_bytes(int32_t stage) const {
  return meters_.at(static_cast<size_t>(stage))->peak_bytes();
}

job::Plan local_plan(const opdag::Partition& partition, job::PipelineSchedule schedule,
                     int32_t gap) {
  job::Plan plan;
  plan.partition = partition;
  plan.schedule = schedule;
  plan.gap = gap;
  for (int32_t i = 0; i < partition.stages; ++i) {
    job::StagePlan stage;
    stage.replicas = {fmt::format("local-{}", i)};
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

}  // namespace weft::executor
