// Public model classes and features of PyTorch's exports (tests/models/zoo.py) against PyTorch
// itself: one stage and three, over random legal cuts and both schedules.
#include "executor/check.h"
#include "opdag/derive.h"
#include "opdag/import.h"
#include "tests/support/exported_models.h"

namespace weft::executor::testing {
namespace {

class Zoo : public ::testing::TestWithParam<std::string> {
 protected:
  std::string name() const { return "zoo/" + GetParam(); }
};

// Buffers the step changed are PyTorch's, the others as they were.
void expect_buffers(const Model& model, const Computed& found, const Tensors& truth) {
  const Tensors updated = part_of(truth, "updated.");
  for (const auto& [name, tensor] : updated) {
    const opdag::Leaf* leaf = model.graph.find_leaf(name);
    if (leaf == nullptr || !leaf->persistent) continue;  // no part of the state
    ASSERT_TRUE(found.state.contains(name)) << name;
    EXPECT_LE(difference(tensor, found.state.at(name)), 1e-10) << name;
  }
}

TEST_P(Zoo, LossAndGradientsInFloat64) {
  const Model model = load(name(), true);
  const Tensors truth = reference(name(), "f64");
  const Computed whole = differentiate(model, {});
  expect_equals_f64(whole, truth);
  expect_buffers(model, whole, truth);
  for (const auto schedule : {kGPipe, k1F1B}) {
    const Computed parts = differentiate(
        model, {.stages = 3, .schedule = schedule, .cut_seed = schedule == kGPipe ? 41U : 42U});
    EXPECT_EQ(parts.loss, whole.loss);
    expect_same_bits(whole.gradients, parts.gradients);
    expect_buffers(model, parts, truth);
  }
}

TEST_P(Zoo, Float32IsAsNearToTheTruthAsPyTorch) {
  const Model model = load(name(), false);
  const Tensors truth = reference(name(), "f64"), torch32 = reference(name(), "f32");
  for (const int32_t stages : {1, 3}) {
    SCOPED_TRACE(stages);
    expect_as_near_as_torch(
        differentiate(model, {.stages = stages, .precision = Precision::kFp32, .cut_seed = 43}),
        truth, torch32);
  }
}

INSTANTIATE_TEST_SUITE_P(Language, Zoo,
                         ::testing::Values("gpt_neox", "mistral", "qwen2", "qwen3", "gemma",
                                           "gemma2", "gemma3", "phi", "opt", "bloom", "mixtral",
                                           "qwen3_moe", "t5", "t5_gated", "bart", "whisper", "bert",
                                           "roberta", "distilbert", "albert", "deberta", "clip"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Vision, Zoo,
                         ::testing::Values("vit", "vit_torchvision", "swin", "swin_v2", "convnext",
                                           "resnet101", "densenet", "efficientnet", "mobilenet_v2",
                                           "mobilenet_v3", "regnet", "shufflenet", "maxvit", "fcn",
                                           "video_resnet", "swin3d"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Nets, Zoo,
                         ::testing::Values("unet", "stereo", "dit", "lstm", "gru", "graphsage",
                                           "moe"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Features, Zoo,
                         ::testing::Values("nested", "edges", "buffers", "tied", "frozen", "lists",
                                           "no_grad", "checkpointed", "autocast_off"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace weft::executor::testing
