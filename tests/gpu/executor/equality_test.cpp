// The executor on a CUDA card against PyTorch on the same card and against itself on the CPU.
// float64 differences are relative to the largest magnitude of a tensor. 1e-9 for losses and
// gradients: cuBLAS and cuDNN may choose other kernels for other calls and some kernels add with
// atomics, so bits need not agree; what is left of 1e-16 after a deep net stays far below.
// 1e-7 for parameters after 20 steps: Adam divides by the square root of small second moments.

#include <cmath>
#include <numeric>

#include "executor/capture/capturable.h"
#include "executor/checkpoint.h"
#include "job/names.h"
#include "tests/gpu/executor/card.h"
#include "tests/support/exported_models.h"

namespace weft::executor::testing {
namespace {

constexpr double kTolerance = 1e-9, kTrainedTolerance = 1e-7;
constexpr const char* kCard = "cuda:0";

class GpuTest : public OnCard<> {};

class GpuEquality : public GpuTest, public ::testing::WithParamInterface<std::string> {};

double worst_of(const Tensors& truth, const Tensors& found, std::string& name_of_worst) {
  double worst = 0;
  for (const auto& [name, tensor] : truth) {
    const double gap = found.contains(name) ? difference(tensor, found.at(name)) : INFINITY;
    if (!(gap <= worst)) {
      worst = gap;
      name_of_worst = name;
    }
  }
  return worst;
}

void expect_near(const Computed& truth, const Computed& found, const std::string& what) {
  const double loss = std::abs(found.loss - truth.loss) / std::abs(truth.loss);
  EXPECT_LE(loss, kTolerance) << what;
  ASSERT_EQ(truth.gradients.size(), found.gradients.size()) << what;
  std::string name = "none";
  const double gap = worst_of(truth.gradients, found.gradients, name);
  EXPECT_LE(gap, kTolerance) << what << ": " << name;
  std::printf("%s: loss differs by %.2g, gradients by %.2g (%s)\n", what.c_str(), loss, gap,
              name.c_str());
}

std::string named(const std::string& model, int32_t stages, job::PipelineSchedule schedule) {
  return model + ", " + std::to_string(stages) + " " + std::string(job::name_of(schedule));
}

TEST_P(GpuEquality, LossAndGradientsOfPyTorchOnTheCard) {
  const Model model = load(GetParam(), true, "cuda");
  const Tensors truth = reference(GetParam(), "f64.cuda");
  const Computed expected{truth.at("loss").item<double>(), part_of(truth, "grad.")};
  for (int32_t stages = 1; stages <= 3; ++stages) {
    for (const auto schedule : {kGPipe, k1F1B, kZbH1}) {
      const RunSpec spec{.stages = stages, .schedule = schedule, .device = kCard};
      expect_near(expected, differentiate(model, spec), named(GetParam(), stages, schedule));
    }
  }
}

TEST_P(GpuEquality, ParametersAfterTwentyStepsOfAdamW) {
  const Model model = load(GetParam(), true, "cuda");
  const Tensors truth = part_of(reference(GetParam(), "f64.cuda"), "param.");
  for (int32_t stages = 1; stages <= 3; ++stages) {
    const auto schedule = stages % 2 == 0 ? kZbH1 : k1F1B;
    const RunSpec spec{.stages = stages, .schedule = schedule, .device = kCard};
    std::string name = "none";
    const double gap = worst_of(truth, train(model, spec), name);
    EXPECT_LE(gap, kTrainedTolerance) << name << " of " << stages;
    std::printf("%s: parameters after 20 steps differ by %.2g (%s)\n",
                named(GetParam(), stages, schedule).c_str(), gap, name.c_str());
  }
}

TEST_P(GpuEquality, CardEqualsCpu) {
  const Model model = load(GetParam(), true, "cuda");
  const Computed cpu = differentiate(model, {});
  for (int32_t stages = 1; stages <= 2; ++stages) {
    expect_near(cpu, differentiate(model, {.stages = stages, .device = kCard}),
                GetParam() + " on the CPU, " + std::to_string(stages) + " on the card");
  }
}

TEST_P(GpuEquality, Bf16AutocastIsNearFloat32) {
  const Model model = load(GetParam(), false, "cuda");
  const double loss = differentiate(model, {.precision = Precision::kFp32, .device = kCard}).loss;
  for (int32_t stages = 1; stages <= 2; ++stages) {
    const Computed found =
        differentiate(model, {.stages = stages, .precision = Precision::kBf16, .device = kCard});
    EXPECT_LE(std::abs(found.loss - loss), 2e-2 * std::abs(loss)) << stages;
    EXPECT_GT(found.gradients.size(), 5u);
    for (const auto& [name, gradient] : found.gradients) {
      EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << name;
      EXPECT_EQ(gradient.scalar_type(), at::kFloat) << name;
    }
    std::printf("%s, %d stage(s): bf16 loss %.6f, float32 %.6f\n", GetParam().c_str(), stages,
                found.loss, loss);
  }
}

// Twenty steps against torch.autocast and torch.amp.GradScaler on the card, overflow included.
TEST_P(GpuEquality, Fp16EqualsAGradScalerOnTheCard) {
  const Model model = load(GetParam(), false, "cuda");
  const Tensors truth = reference(GetParam(), "fp16.cuda");
  for (int32_t stages = 1; stages <= 3; ++stages) {
    expect_as_grad_scaler(train_fp16(model, {.stages = stages, .device = kCard}), truth, 1e-2, 1e-2,
                          named(GetParam(), stages, k1F1B) + ", fp16");
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GpuEquality,
                         ::testing::Values("gpt2", "llama", "resnet18", "skips"),
                         [](const auto& info) { return info.param; });

class GpuDropout : public GpuTest {};

TEST_F(GpuDropout, SeveralStagesEqualOneBitForBit) {
  const Model model = load("gpt2_dropout", true, "cuda");
  const RunSpec one{.device = kCard};
  const Computed whole = differentiate(model, one);
  const Tensors trained = train(model, one, 3);
  const Computed other_seed = differentiate(model, {.device = kCard, .seed = 12});
  EXPECT_NE(whole.loss, other_seed.loss) << "dropout draws nothing";
  for (int32_t stages = 2; stages <= 4; ++stages) {
    for (const auto schedule : {kGPipe, k1F1B, kZbH1}) {
      SCOPED_TRACE(named("gpt2_dropout", stages, schedule));
      const RunSpec spec{.stages = stages, .schedule = schedule, .device = kCard};
      const Computed parts = differentiate(model, spec);
      EXPECT_EQ(parts.loss, whole.loss);
      expect_same_bits(whole.gradients, parts.gradients);
      expect_same_bits(trained, train(model, spec, 3));
    }
  }
}

// As double attention is made of small operators, in float32 and bfloat16 it is one kernel.
TEST_F(GpuDropout, ADrawIsTheSameCapturedOrNot) {
  for (const auto& [precision, tolerance] :
       {std::pair{Precision::kFp64, 1e-10}, {Precision::kFp32, 1e-5}, {Precision::kBf16, 1e-3}}) {
    const Model model = load("gpt2_dropout", precision == Precision::kFp64, "cuda");
    std::vector<int32_t> nodes(model.graph.nodes.size());
    std::iota(nodes.begin(), nodes.end(), 0);
    EXPECT_EQ(why_not_capturable(model.graph, nodes), "");
    const RunSpec oracle{.precision = precision,
                         .device = kCard,
                         .capture = false,
                         .differentiation = Differentiation::kAutograd};
    const Computed expected = differentiate(model, oracle);
    RunSpec other = oracle;
    other.seed = 12;
    EXPECT_GT(std::abs(differentiate(model, other).loss - expected.loss), 1e-4);
    for (const bool capture : {false, true}) {
      for (int32_t stages = 1; stages <= 2; ++stages) {
        const RunSpec spec{
            .stages = stages, .precision = precision, .device = kCard, .capture = capture};
        const Computed found = differentiate(model, spec);
        std::string name;
        const double gap = worst_of(expected.gradients, found.gradients, name);
        EXPECT_NEAR(found.loss, expected.loss, tolerance) << stages << capture;
        EXPECT_LE(gap, tolerance) << stages << capture << name;
        std::printf("gpt2_dropout, %s, %d stage(s), captured %d: gradients differ by %.2g (%s)\n",
                    std::string(job::name_of(precision)).c_str(), stages, capture, gap,
                    name.c_str());
      }
    }
  }
}

class GpuCheckpoint : public GpuTest {};

// Shards written from the card are the bits a CPU run loads; both then go on alike.
TEST_F(GpuCheckpoint, SavedOnTheCardLoadsOnTheCpu) {
  for (const std::string name : {"gpt2", "resnet18"}) {
    const Model model = load(name, true, "cuda");
    RolledFeed feed(model.inputs);
    const auto card = cluster_of(model, {.stages = 2, .device = kCard}, feed);
    for (int64_t step = 0; step < 3; ++step) must(card->step(step));
    std::vector<os::Path> shards;
    for (int32_t stage = 0; stage < card->stages(); ++stage) {
      const ShardInfo info{name, 1, stage, 3};
      shards.emplace_back(std::filesystem::path(::testing::TempDir()) / shard_name(info));
      ASSERT_TRUE(write_shard(shards.back(), card->stage(stage).state(), info).ok());
    }
    const auto cpu = cluster_of(model, {.stages = 3}, feed);
    const Status loaded = cpu->load_state(must(read_shards(shards, name, 3)));
    ASSERT_TRUE(loaded.ok()) << loaded.error().text();
    expect_same_bits(card->state(), cpu->state());
    must(card->step(3));
    must(cpu->step(3));
    std::string worst = "none";
    EXPECT_LE(worst_of(card->state(), cpu->state(), worst), kTrainedTolerance) << name << worst;
  }
}

class GpuDevice : public GpuTest {};

TEST_F(GpuDevice, ACardThatIsNotThereIsNamed) {
  const Model model = load("skips", false, "cuda");
  RolledFeed feed(model.inputs);
  try {
    cluster_of(model, {.precision = Precision::kFp32, .device = "cuda:99"}, feed);
    FAIL() << "cuda:99 was found";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("cuda:99"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace weft::executor::testing
