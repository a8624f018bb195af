// Small models for runtime tests: weights and inputs by seed, clusters over the simulated network.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "executor/check_inputs.h"
#include "executor/local_cluster.h"
#include "opdag/cut.h"
#include "opdag/derive.h"
#include "tests/support/graph_builder.h"
#include "tests/support/must.h"

namespace weft::executor::testing {

// Bytes of a weight: normal numbers seeded by its path, so that tied leaves agree.
inline WeightSource random_weights(uint64_t seed = 1) {
  return [seed](const opdag::WeightRef& ref) -> Result<Buffer> {
    uint64_t hash = seed;
    for (char c : ref.path) hash = mix64(hash ^ static_cast<uint64_t>(c));
    Rng rng(hash);
    std::vector<std::byte> bytes(ref.bytes);
    if (ref.stored_dtype == DType::kFloat32) {
      auto* data = reinterpret_cast<float*>(bytes.data());
      for (size_t i = 0; i < ref.bytes / 4; ++i) data[i] = static_cast<float>(rng.uniform() - 0.5);
    }
    return Buffer(std::move(bytes));
  };
}

// Random tensors that differ by input, split, step and micro-batch.
class RandomFeed final : public Feed {
 public:
  explicit RandomFeed(const opdag::Graph& graph) : graph_(graph) {}
  Result<at::Tensor> input(const std::string& name, Split split, int64_t step,
                           int32_t micro_batch) override {
    auto tensors = must(random_inputs(
        graph_, derive_seed({static_cast<uint64_t>(split), static_cast<uint64_t>(step),
                             static_cast<uint64_t>(micro_batch)})));
    return tensors.at(name);
  }
  int32_t eval_micro_batches() const override { return 2; }

 private:
  opdag::Graph graph_;
};

inline opdag::Partition one_stage(const opdag::Graph& graph) {
  opdag::Partition partition;
  partition.stage_of.assign(graph.nodes.size(), 0);
  return partition;
}

inline ClusterOptions cluster_options(const opdag::Partition& partition, uint64_t seed = 0) {
  ClusterOptions options;
  options.runtime.plan = local_plan(partition, job::PipelineSchedule::k1F1B);
  options.runtime.micro_batches = 3;
  options.runtime.train.steps = 20;
  options.runtime.train.lr = 1e-2;
  options.runtime.train.optimizer = job::Optimizer::kAdamW;
  options.runtime.train.weight_decay = 0.01;
  options.runtime.train.precision = job::Precision::kFp64;
  options.runtime.train.seed = 5;
  options.seed = options.network.seed = seed;
  return options;
}

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> state;  // cloned
};

inline Trained train(const opdag::Graph& graph, const ClusterOptions& options, int steps) {
  RandomFeed feed(graph);
  auto cluster = must(LocalCluster::make(graph, {}, options, random_weights(), feed));
  Trained result;
  for (int step = 0; step < steps; ++step) {
    const StepResult told = must(cluster->step(step));
    result.losses.push_back(told.loss);
    result.norms.push_back(told.grad_norm);
  }
  for (const auto& [name, tensor] : cluster->state()) result.state[name] = tensor.clone();
  return result;
}

inline void expect_bitwise(const std::map<std::string, at::Tensor>& a,
                           const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
  }
}

}  // namespace weft::executor::testing
