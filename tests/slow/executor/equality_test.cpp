// The executor against PyTorch itself, on models exported by plain PyTorch: one stage and several,
// over random legal cuts and both schedules. The yardstick is tests/models/reference.py.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>

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
        models + "/reference.py --dir " + made.string() + " gpt2 llama resnet18 skips gpt2_eval";
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

constexpr auto kGPipe = job::PipelineSchedule::kGPipe, k1F1B = job::PipelineSchedule::k1F1B;

opdag::Partition cut_into(const opdag::Graph& graph, int32_t stages, Rng& rng) {
  return stages == 1 ? whole_of(graph) : must(opdag::random_partition(graph, stages, rng));
}

ClusterOptions options_for(const opdag::Partition& cut, job::PipelineSchedule schedule,
                           uint64_t seed, bool f64) {
  ClusterOptions options;
  options.runtime.plan = local_plan(cut, schedule);
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

// The feed gives the same samples in every micro-batch: the mean over several is that of one.
Computed differentiate(const Model& model, const opdag::Partition& cut,
                       job::PipelineSchedule schedule, uint64_t seed, bool f64,
                       int32_t micro_batches) {
  FixedFeed feed(model.inputs);
  ClusterOptions options = options_for(cut, schedule, seed, f64);
  options.runtime.keep_gradients = true;
  options.runtime.micro_batches = micro_batches;
  auto cluster = must(LocalCluster::make(model.graph, {}, options, model.weights, feed));
  Computed computed;
  computed.loss = must(cluster->step(0)).loss;
  computed.gradients = cluster->gradients();
  return computed;
}

std::map<std::string, at::Tensor> train(const Model& model, const opdag::Partition& cut,
                                        job::PipelineSchedule schedule, uint64_t seed) {
  FixedFeed feed(model.inputs);
  auto cluster = must(LocalCluster::make(model.graph, {}, options_for(cut, schedule, seed, true),
                                         model.weights, feed));
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
  expect_equals_f64(differentiate(model, whole_of(model.graph), k1F1B, 0, true, 1), truth);
  const Computed whole = differentiate(model, whole_of(model.graph), k1F1B, 0, true, 4);
  expect_equals_f64(whole, truth);
  Rng rng(17);
  for (int32_t stages = 2; stages <= 5; ++stages) {
    for (const auto schedule : {kGPipe, k1F1B}) {
      const auto cut = cut_into(model.graph, stages, rng);
      const Computed parts =
          differentiate(model, cut, schedule, static_cast<uint64_t>(stages), true, 4);
      expect_equals_f64(parts, truth);
      EXPECT_EQ(parts.loss, whole.loss);
      for (const auto& [name, tensor] : whole.gradients) {
        EXPECT_TRUE(at::equal(tensor, parts.gradients.at(name))) << name << " of " << stages;
      }
    }
  }
}

TEST_P(Equality, ParametersAfterTwentyStepsOfAdamW) {
  const Model model = load(GetParam(), true);
  const auto truth = reference(GetParam(), "f64");
  Rng rng(23);
  for (int32_t stages = 1; stages <= 5; ++stages) {
    const auto schedule = stages % 2 == 0 ? kGPipe : k1F1B;
    const auto state =
        train(model, cut_into(model.graph, stages, rng), schedule, static_cast<uint64_t>(stages));
    size_t compared = 0;
    for (const auto& [name, tensor] : truth) {
      const size_t dot = name.starts_with("param.") ? 6 : name.starts_with("buffer.") ? 7 : 0;
      if (dot == 0 || (dot == 7 && !state.contains(name.substr(7)))) continue;
      ASSERT_TRUE(state.contains(name.substr(dot))) << name;
      EXPECT_LE(difference(tensor, state.at(name.substr(dot))), 1e-8) << name << " of " << stages;
      ++compared;
    }
    EXPECT_GT(compared, 5u);
  }
}

TEST_P(Equality, Float32IsAsNearToTheTruthAsPyTorch) {
  const Model model = load(GetParam(), false);
  const auto truth = reference(GetParam(), "f64");
  const auto torch32 = reference(GetParam(), "f32");
  const double loss = truth.at("loss").item<double>();
  // PyTorch's loss may be right to the last bit by luck: one rounding of float32 is allowed.
  const double loss_noise = std::max(std::abs(torch32.at("loss").item<double>() - loss),
                                     std::abs(loss) * std::numeric_limits<float>::epsilon());
  Rng rng(29);
  for (int32_t stages = 1; stages <= 5; ++stages) {
    const auto schedule = stages % 2 == 0 ? k1F1B : kGPipe;
    const Computed found =
        differentiate(model, cut_into(model.graph, stages, rng), schedule, 1, false, 1);
    EXPECT_LE(std::abs(found.loss - loss), 3 * loss_noise);
    double ours = 0, theirs = 0;
    for (const auto& [name, tensor] : found.gradients) {
      ours = std::max(ours, difference(truth.at("grad." + name), tensor));
      theirs = std::max(theirs, difference(truth.at("grad." + name), torch32.at("grad." + name)));
    }
    EXPECT_LE(ours, 3 * theirs);
  }
}

// Ten steps, a checkpoint, ten more in another number of stages: the bits of twenty undisturbed.
TEST_P(Equality, ResumeInAnotherNumberOfStages) {
  const Model model = load(GetParam(), true);
  Rng rng(31);
  const auto undisturbed = train(model, whole_of(model.graph), k1F1B, 0);
  FixedFeed feed(model.inputs);
  const auto cluster_of = [&](int32_t stages) {
    return must(LocalCluster::make(model.graph, {},
                                   options_for(cut_into(model.graph, stages, rng), kGPipe, 1, true),
                                   model.weights, feed));
  };
  auto first = cluster_of(4);
  for (int step = 0; step < kSteps / 2; ++step) must(first->step(step));
  auto second = cluster_of(3);
  ASSERT_TRUE(second->load_state(first->state()).ok());
  for (int step = kSteps / 2; step < kSteps; ++step) must(second->step(step));
  const auto resumed = second->state();
  ASSERT_EQ(resumed.size(), undisturbed.size());
  for (const auto& [name, tensor] : undisturbed) {
    EXPECT_TRUE(at::equal(tensor, resumed.at(name))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Equality, ::testing::ValuesIn(kModels));

TEST(EqualityDropout, SeveralStagesEqualOneBitForBit) {
  const Model model = load("gpt2_dropout", true);
  const Computed whole = differentiate(model, whole_of(model.graph), k1F1B, 0, true, 3);
  Rng rng(37);
  for (int32_t stages = 2; stages <= 5; ++stages) {
    for (const auto schedule : {kGPipe, k1F1B}) {
      const auto cut = cut_into(model.graph, stages, rng);
      const Computed parts =
          differentiate(model, cut, schedule, static_cast<uint64_t>(stages), true, 3);
      EXPECT_EQ(parts.loss, whole.loss);
      ASSERT_EQ(parts.gradients.size(), whole.gradients.size());
      for (const auto& [name, tensor] : whole.gradients) {
        EXPECT_TRUE(at::equal(tensor, parts.gradients.at(name))) << name;
      }
    }
  }
}

// The training graph has dropout, the evaluation graph is an export of the same module in eval
// mode: under any cut its loss is the module's own.
TEST(EqualityEvalModel, SeparatelyExported) {
  const Model train = load("gpt2_dropout", true);
  const Model eval = load("gpt2_eval", true);
  const double truth = reference("gpt2_eval", "f64").at("loss").item<double>();
  const WeightSource weights = [&](const opdag::WeightRef& ref) {
    const std::string prefix = "eval:";
    if (!ref.path.starts_with(prefix)) return train.weights(ref);
    opdag::WeightRef own = ref;
    own.path = ref.path.substr(prefix.size());
    return eval.weights(own);
  };
  opdag::Graph eval_graph = eval.graph;
  for (opdag::Leaf& leaf : eval_graph.leaves) {
    if (leaf.kind != opdag::LeafKind::kUserInput) leaf.weight.path = "eval:" + leaf.weight.path;
  }
  eval_graph = must(opdag::derive_eval(eval_graph));
  FixedFeed feed(train.inputs);
  const std::vector<double> even(opdag::cut_units(train.graph).size(), 1.0);
  for (int32_t stages = 1; stages <= 5; ++stages) {
    const auto cut = must(opdag::split_contiguous(train.graph, even, stages));
    auto cluster = must(LocalCluster::make(train.graph, eval_graph,
                                           options_for(cut, k1F1B, 1, true), weights, feed));
    EXPECT_LE(std::abs(must(cluster->evaluate(0, 1)).loss - truth), 1e-10 * truth) << stages;
  }
}

}  // namespace
}  // namespace weft::executor
