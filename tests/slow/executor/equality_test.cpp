// The executor against PyTorch itself, on models exported by plain PyTorch: one stage and several,
// over random legal cuts and both schedules. The yardstick is tests/models/reference.py.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "executor/check_inputs.h"
#include "executor/local_cluster.h"
#include "job/safetensors.h"
#include "opdag/derive.h"
#include "opdag/import.h"

namespace weft::executor {
namespace {

namespace fs = std::filesystem;

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().text());
  return std::move(result).value();
}

const std::vector<std::string> kModels{"gpt2", "llama", "resnet18", "skips"};
constexpr int kSteps = 20;

// Exports the models and lets PyTorch compute the truth, once per process.
fs::path model_folder() {
  static const fs::path folder = [] {
    fs::path made = fs::path(::testing::TempDir()) / "weft_equality";
    if (const char* given = std::getenv("WEFT_EQUALITY_DIR")) return fs::path(given);
    const char* root = std::getenv("WEFT_SOURCE_DIR");
    const fs::path source = root != nullptr ? root : ".";
    const std::string python = (source / ".venv/bin/python").string();
    const std::string models = (source / "tests/models").string();
    const std::string commands =
        python + " " + models + "/export_models.py --out " + made.string() + " && " + python + " " +
        models + "/reference.py --dir " + made.string() + " gpt2 llama resnet18 skips";
    if (std::system(commands.c_str()) != 0) throw std::runtime_error("the scripts failed");
    return made;
  }();
  return folder;
}

struct Model {
  opdag::Graph graph;
  WeightSource weights;
  std::map<std::string, at::Tensor> inputs;
};

Model load(const std::string& name, bool f64) {
  at::set_num_threads(1);
  auto archive = must(opdag::Archive::open(model_folder() / (name + ".pt2")));
  Model model;
  model.graph = must(opdag::prune_to(must(opdag::import_graph(archive)), {}));
  if (f64) model.graph = must(opdag::promote_f64(model.graph));
  model.weights = [archive](const opdag::WeightRef& ref) { return archive.entry(ref.path); };
  model.inputs = must(
      inputs_from_file(model.graph, (model_folder() / (name + ".inputs.safetensors")).string()));
  return model;
}

std::map<std::string, at::Tensor> reference(const std::string& name, const std::string& kind) {
  std::map<std::string, at::Tensor> result;
  const auto file =
      must(job::read_safetensors(model_folder() / (name + "." + kind + ".safetensors")));
  for (const auto& [key, view] : file.tensors) result[key] = must(tensor_of(view)).to(at::kDouble);
  return result;
}

double difference(const at::Tensor& truth, const at::Tensor& found) {
  const at::Tensor a = truth.to(at::kDouble), b = found.to(at::kDouble);
  if (a.numel() == 0) return 0;
  const double scale = a.abs().max().item<double>();
  const double gap = (a - b).abs().max().item<double>();
  return scale > 0 ? gap / scale : gap;
}

opdag::Partition whole_of(const opdag::Graph& graph) {
  opdag::Partition partition;
  partition.stage_of.assign(graph.nodes.size(), 0);
  return partition;
}

ClusterOptions options_for(const opdag::Partition& cut, uint64_t seed, bool f64) {
  ClusterOptions options;
  options.runtime.plan =
      local_plan(cut, seed % 2 == 0 ? job::PipelineSchedule::kGPipe : job::PipelineSchedule::k1F1B);
  options.runtime.train.steps = kSteps;
  options.runtime.train.lr = 1e-3;
  options.runtime.train.weight_decay = 0.01;
  options.runtime.train.precision = f64 ? job::Precision::kFp64 : job::Precision::kFp32;
  options.runtime.train.seed = 11;
  options.seed = options.network.seed = seed;
  return options;
}

struct Computed {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};

Computed differentiate(const Model& model, const opdag::Partition& cut, uint64_t seed, bool f64,
                       int32_t micro_batches = 1) {
  FixedFeed feed(model.inputs);
  ClusterOptions options = options_for(cut, seed, f64);
  options.runtime.keep_gradients = true;
  options.runtime.micro_batches = micro_batches;
  auto cluster = must(LocalCluster::make(model.graph, {}, options, model.weights, feed));
  Computed computed;
  computed.loss = must(cluster->step(0)).loss;
  computed.gradients = cluster->gradients();
  return computed;
}

std::map<std::string, at::Tensor> train(const Model& model, const opdag::Partition& cut,
                                        uint64_t seed) {
  FixedFeed feed(model.inputs);
  auto cluster =
      must(LocalCluster::make(model.graph, {}, options_for(cut, seed, true), model.weights, feed));
  for (int step = 0; step < kSteps; ++step) must(cluster->step(step));
  return cluster->state();
}

class Equality : public ::testing::TestWithParam<std::string> {};

void expect_equals_f64(const Computed& found, const std::map<std::string, at::Tensor>& truth) {
  const double loss = truth.at("loss").item<double>();
  EXPECT_LE(std::abs(found.loss - loss), 1e-10 * std::abs(loss));
  size_t gradients = 0;
  for (const auto& [name, tensor] : truth) {
    if (!name.starts_with("grad.")) continue;
    ++gradients;
    ASSERT_TRUE(found.gradients.contains(name.substr(5))) << name;
    EXPECT_LE(difference(tensor, found.gradients.at(name.substr(5))), 1e-10) << name;
  }
  EXPECT_EQ(gradients, found.gradients.size());
}

TEST_P(Equality, LossAndGradientsInFloat64) {
  const Model model = load(GetParam(), true);
  const auto truth = reference(GetParam(), "f64");
  const Computed whole = differentiate(model, whole_of(model.graph), 0, true);
  expect_equals_f64(whole, truth);
  Rng rng(17);
  for (uint64_t trial = 0; trial < 12; ++trial) {
    const auto stages = static_cast<int32_t>(2 + trial % 4);
    const auto cut = must(opdag::random_partition(model.graph, stages, rng));
    const Computed parts = differentiate(model, cut, trial, true);
    expect_equals_f64(parts, truth);
    EXPECT_EQ(parts.loss, whole.loss);
    for (const auto& [name, tensor] : whole.gradients) {
      EXPECT_TRUE(at::equal(tensor, parts.gradients.at(name))) << name << " trial " << trial;
    }
  }
}

TEST_P(Equality, ParametersAfterTwentyStepsOfAdamW) {
  const Model model = load(GetParam(), true);
  const auto truth = reference(GetParam(), "f64");
  Rng rng(23);
  for (int32_t stages : {1, 2, 5}) {
    const auto cut = stages == 1 ? whole_of(model.graph)
                                 : must(opdag::random_partition(model.graph, stages, rng));
    const auto state = train(model, cut, static_cast<uint64_t>(stages));
    for (const auto& [name, tensor] : truth) {
      if (!name.starts_with("param.")) continue;
      ASSERT_TRUE(state.contains(name.substr(6))) << name;
      EXPECT_LE(difference(tensor, state.at(name.substr(6))), 1e-8) << name;
    }
    for (const auto& [name, tensor] : truth) {
      if (!name.starts_with("buffer.") || !state.contains(name.substr(7))) continue;
      EXPECT_LE(difference(tensor, state.at(name.substr(7))), 1e-8) << name;
    }
  }
}

TEST_P(Equality, Float32IsAsNearToTheTruthAsPyTorch) {
  const Model model = load(GetParam(), false);
  const auto truth = reference(GetParam(), "f64");
  const auto torch32 = reference(GetParam(), "f32");
  Rng rng(29);
  for (int32_t stages : {1, 3}) {
    const auto cut = stages == 1 ? whole_of(model.graph)
                                 : must(opdag::random_partition(model.graph, stages, rng));
    const Computed found = differentiate(model, cut, 1, false);
    double ours = 0, theirs = 0;
    for (const auto& [name, tensor] : found.gradients) {
      ours = std::max(ours, difference(truth.at("grad." + name), tensor));
      theirs = std::max(theirs, difference(truth.at("grad." + name), torch32.at("grad." + name)));
    }
    EXPECT_LE(ours, 3 * theirs);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Equality, ::testing::ValuesIn(kModels));

TEST(EqualityDropout, SeveralStagesEqualOneBitForBit) {
  const Model model = load("gpt2_dropout", true);
  const Computed whole = differentiate(model, whole_of(model.graph), 0, true, 3);
  const std::vector<double> even(opdag::cut_units(model.graph).size(), 1.0);
  for (int32_t stages = 2; stages <= 5; ++stages) {
    const auto cut = must(opdag::split_contiguous(model.graph, even, stages));
    const Computed parts = differentiate(model, cut, static_cast<uint64_t>(stages), true, 3);
    EXPECT_EQ(parts.loss, whole.loss);
    for (const auto& [name, tensor] : whole.gradients) {
      EXPECT_TRUE(at::equal(tensor, parts.gradients.at(name))) << name;
    }
  }
}

}  // namespace
}  // namespace weft::executor
