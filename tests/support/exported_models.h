// Models exported by plain PyTorch (tests/models/export_models.py) with PyTorch's own numbers
// beside them (tests/models/reference.py), and one way to run them under any cut on any device.
//
// Environment: WEFT_MODELS reuses a folder made before, WEFT_PYTHON names the Python.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "executor/feed.h"
#include "executor/local_cluster.h"
#include "opdag/graph.h"
#include "tests/support/must.h"

namespace weft::executor::testing {

using Tensors = std::map<std::string, at::Tensor>;
using job::Precision;

constexpr auto kGPipe = job::PipelineSchedule::kGPipe, k1F1B = job::PipelineSchedule::k1F1B,
               kZbH1 = job::PipelineSchedule::kZbH1;

// Of reference.py: micro-batches of a step, steps of its training run.
constexpr int32_t kMicroBatches = 2;
constexpr int64_t kSteps = 20;

struct Model {
  opdag::Graph graph;
  WeightSource weights;
  Tensors inputs;
};

// The file of a model. The first call exports every model of its kind and lets PyTorch compute, on
// `device` too if not the CPU.
std::filesystem::path exported(const std::string& name, const std::string& device = "cpu");
Model load(const std::string& name, bool f64, const std::string& device = "cpu");
// NAME.KIND.safetensors of reference.py: kind is f64, f32, fp16, or one of them and ".cuda".
Tensors reference(const std::string& name, const std::string& kind);
// The tensors whose names start with a prefix, without it.
Tensors part_of(const Tensors& all, const std::string& prefix);

// The largest difference, relative to the largest magnitude of the truth, or to `least` where that
// is larger. Complex tensors may stand for themselves or as pairs of their parts.
double difference(const at::Tensor& truth, const at::Tensor& found, double least = 0);

// Micro-batches that differ, the same ones every step: the model's inputs, rolled along the last
// dimension by the number of the micro-batch. reference.py does so too and says why.
class RolledFeed final : public Feed {
 public:
  explicit RolledFeed(Tensors inputs) : inputs_(std::move(inputs)) {}
  Result<at::Tensor> input(const std::string& name, Split split, int64_t step,
                           int32_t micro_batch) override;
  int32_t eval_micro_batches() const override { return 1; }

 private:
  Tensors inputs_;
};

struct RunSpec {
  int32_t stages = 1;
  job::PipelineSchedule schedule = k1F1B;
  Precision precision = Precision::kFp64;
  std::string device = "cpu";
  uint64_t cut_seed = 1;  // of the random legal cut
  uint64_t seed = 11;     // of dropout
  bool keep_gradients = false;
  bool recompute = false;  // every stage keeps its inputs only
  bool capture = true;     // on a card
  Differentiation differentiation = Differentiation::kTape;
};

// A cluster over a random legal cut and the simulated network.
std::unique_ptr<LocalCluster> cluster_of(const Model& model, const RunSpec& spec, Feed& feed);

struct Computed {
  double loss = 0;
  Tensors gradients;
  Tensors state{};  // after the step
};
// One step.
Computed differentiate(const Model& model, RunSpec spec);
// State after some steps of AdamW.
Tensors train(const Model& model, const RunSpec& spec, int64_t steps = kSteps);

// The run of reference.py with a GradScaler: as many steps, the same settings.
struct ScaledRun {
  std::vector<double> losses, scales, skipped;
  Tensors state;
};
ScaledRun train_fp16(const Model& model, RunSpec spec);
// Which steps are skipped and every scale exactly; losses and parameters up to tolerances relative
// to the largest. what: printed beside the largest difference.
void expect_as_grad_scaler(const ScaledRun& found, const Tensors& truth, double losses_tolerance,
                           double parameters_tolerance, const std::string& what);

// Loss and every gradient of reference.py's float64 up to 1e-10.
void expect_equals_f64(const Computed& found, const Tensors& truth);
// In float32 no further from that truth than three times PyTorch's own float32 (or one rounding).
void expect_as_near_as_torch(const Computed& found, const Tensors& truth, const Tensors& torch32);
void expect_same_bits(const Tensors& truth, const Tensors& found);

}  // namespace weft::executor::testing
