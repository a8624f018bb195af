// The executor against PyTorch itself, on models exported by plain PyTorch: one stage and several,
// over random legal cuts and all schedules, on micro-batches that all differ.
#include <cmath>

#include "opdag/derive.h"
#include "tests/support/exported_models.h"

namespace weft::executor::testing {
namespace {

class Equality : public ::testing::TestWithParam<std::string> {};

TEST_P(Equality, LossAndGradientsInFloat64) {
  const Model model = load(GetParam(), true);
  const auto truth = reference(GetParam(), "f64");
  const Computed whole = differentiate(model, {});
  expect_equals_f64(whole, truth);
  for (int32_t stages = 2; stages <= 5; ++stages) {
    for (const auto schedule : {kGPipe, k1F1B, kZbH1}) {
      SCOPED_TRACE(stages);
      const Computed parts =
          differentiate(model, {.stages = stages,
                                .schedule = schedule,
                                .cut_seed = 16U + static_cast<uint32_t>(schedule)});
      expect_equals_f64(parts, truth);
      EXPECT_EQ(parts.loss, whole.loss);
      expect_same_bits(whole.gradients, parts.gradients);
    }
  }
}

TEST_P(Equality, ParametersAfterTwentyStepsOfAdamW) {
  const Model model = load(GetParam(), true);
  const Tensors truth = reference(GetParam(), "f64");
  const Tensors parameters = part_of(truth, "param.");
  EXPECT_GT(parameters.size(), 5u);
  for (int32_t stages = 1; stages <= 5; ++stages) {
    SCOPED_TRACE(stages);
    const Tensors state = train(
        model, {.stages = stages, .schedule = stages % 2 == 0 ? kGPipe : k1F1B, .cut_seed = 23});
    for (const auto& [name, tensor] : parameters) {
      ASSERT_TRUE(state.contains(name)) << name;
      EXPECT_LE(difference(tensor, state.at(name)), 1e-8) << name;
    }
    for (const auto& [name, tensor] : part_of(truth, "buffer.")) {
      if (!state.contains(name)) continue;  // it follows from the model and is no state
      EXPECT_LE(difference(tensor, state.at(name)), 1e-8) << name;
    }
  }
}

TEST_P(Equality, Float32IsAsNearToTheTruthAsPyTorch) {
  const Model model = load(GetParam(), false);
  const auto truth = reference(GetParam(), "f64");
  const auto torch32 = reference(GetParam(), "f32");
  for (int32_t stages = 1; stages <= 5; ++stages) {
    SCOPED_TRACE(stages);
    expect_as_near_as_torch(differentiate(model, {.stages = stages,
                                                  .schedule = stages % 2 == 0 ? k1F1B : kGPipe,
                                                  .precision = Precision::kFp32,
                                                  .cut_seed = 29}),
                            truth, torch32);
  }
}

// Twenty steps with torch.autocast and torch.amp.GradScaler, the first of which overflow. PyTorch
// keeps the half copy of a weight for all its uses and adds their gradients in half precision.
TEST_P(Equality, Fp16EqualsAGradScaler) {
  const Model model = load(GetParam(), false);
  const Tensors truth = reference(GetParam(), "fp16");
  const ScaledRun whole = train_fp16(model, {});
  // Of parameters half a unit in the last place of fp16: which kernels a product takes depends on
  // the processor.
  expect_as_grad_scaler(whole, truth, 2e-4, 0x1p-11, GetParam());
  if (GetParam() == "resnet18") return;  // a CPU takes a minute for its convolutions in half
  for (int32_t stages = 2; stages <= 3; ++stages) {
    const ScaledRun parts = train_fp16(model, {.stages = stages, .cut_seed = 41});
    EXPECT_EQ(parts.losses, whole.losses);
    EXPECT_EQ(parts.scales, whole.scales);
    expect_same_bits(whole.state, parts.state);
  }
}

// Ten steps, a checkpoint, ten more in another number of stages: the bits of twenty undisturbed.
TEST_P(Equality, ResumeInAnotherNumberOfStages) {
  const Model model = load(GetParam(), true);
  const auto undisturbed = train(model, {});
  RolledFeed feed(model.inputs);
  auto first = cluster_of(model, {.stages = 4, .schedule = kGPipe, .cut_seed = 31}, feed);
  for (int64_t step = 0; step < kSteps / 2; ++step) must(first->step(step));
  auto second = cluster_of(model, {.stages = 3, .cut_seed = 32}, feed);
  ASSERT_TRUE(second->load_state(first->state()).ok());
  for (int64_t step = kSteps / 2; step < kSteps; ++step) must(second->step(step));
  expect_same_bits(undisturbed, second->state());
}

INSTANTIATE_TEST_SUITE_P(Models, Equality, ::testing::Values("gpt2", "llama", "resnet18", "skips"),
                         [](const auto& info) { return info.param; });

TEST(EqualityDropout, SeveralStagesEqualOneBitForBit) {
  const Model model = load("gpt2_dropout", true);
  const Computed whole = differentiate(model, {});
  EXPECT_NE(whole.loss, differentiate(model, {.seed = 12}).loss) << "dropout draws nothing";
  for (int32_t stages = 2; stages <= 5; ++stages) {
    for (const auto schedule : {kGPipe, k1F1B, kZbH1}) {
      const Computed parts =
          differentiate(model, {.stages = stages, .schedule = schedule, .cut_seed = 37});
      EXPECT_EQ(parts.loss, whole.loss);
      expect_same_bits(whole.gradients, parts.gradients);
    }
  }
}

// The training graph has dropout, the evaluation graph is an export of the same module in eval
// mode: under any cut its loss is the module's own.
TEST(EqualityEvalModel, SeparatelyExported) {
  const Model train = load("gpt2_dropout", true);
  const Model eval = load("gpt2_eval", true);
  const double truth = reference("gpt2_eval", "f64").at("loss_of_first").item<double>();
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
  RolledFeed feed(train.inputs);
  const std::vector<double> even(opdag::cut_units(train.graph).size(), 1.0);
  for (int32_t stages = 1; stages <= 5; ++stages) {
    ClusterOptions options;
    options.runtime.plan =
        local_plan(must(opdag::split_contiguous(train.graph, even, stages)), k1F1B);
    options.runtime.train.steps = kSteps;
    options.runtime.train.precision = Precision::kFp64;
    auto cluster = must(LocalCluster::make(train.graph, eval_graph, options, weights, feed));
    EXPECT_LE(std::abs(must(cluster->evaluate(0, 1)).loss - truth), 1e-10 * truth) << stages;
  }
}

}  // namespace
}  // namespace weft::executor::testing
