// What the GPU tests share: exported models with PyTorch's own numbers on the same card, one way to
// run them under any cut on any device, and the reason printed where there is no card.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "executor/check_inputs.h"
#include "executor/local_cluster.h"
#include "opdag/graph.h"

namespace weft::executor::gpu {

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().text());
  return std::move(result).value();
}

using Tensors = std::map<std::string, at::Tensor>;
using job::Precision;

constexpr auto kGPipe = job::PipelineSchedule::kGPipe, k1F1B = job::PipelineSchedule::k1F1B;
inline const std::string kCard = "cuda:0";

// Tests of this folder are of a class derived from this one.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override;
};

struct Model {
  opdag::Graph graph;
  WeightSource weights;
  Tensors inputs;
};

// A model of tests/models/export_models.py; the first call exports them all and lets PyTorch
// compute on the card. WEFT_GPU_MODELS reuses a folder made before, WEFT_PYTHON names the Python.
Model load(const std::string& name, bool f64);
// NAME.f64.cuda.safetensors of tests/models/reference.py.
Tensors reference(const std::string& name);

// The largest difference, relative to the largest magnitude of the truth.
double difference(const at::Tensor& truth, const at::Tensor& found);

struct RunSpec {
  int32_t stages = 1;
  job::PipelineSchedule schedule = k1F1B;
  Precision precision = Precision::kFp64;
  std::string device = kCard;
  int32_t micro_batches = 2;
  uint64_t seed = 11;  // of dropout
  bool keep_gradients = false;
};

// A cluster over a random legal cut (the same for the same number of stages).
std::unique_ptr<LocalCluster> cluster_of(const Model& model, const RunSpec& spec, Feed& feed);

struct Computed {
  double loss = 0;
  Tensors gradients;
};
// One forward and backward over micro-batches that all hold the model's inputs.
Computed differentiate(const Model& model, RunSpec spec);
// State after some steps of AdamW.
Tensors train(const Model& model, const RunSpec& spec, int64_t steps);

void expect_same_bits(const Tensors& truth, const Tensors& found);

}  // namespace weft::executor::gpu
