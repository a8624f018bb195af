// Every model of tests/models/zoo.py on a CUDA card against PyTorch on the same card: float64, one
// stage and three. Tolerances as in equality_test.cpp; the worst of each model is printed.

#include <cmath>
#include <cstdio>

#include "tests/gpu/executor/card.h"
#include "tests/support/exported_models.h"
#include "tests/support/zoo_names.h"

namespace weft::executor::testing {
namespace {

constexpr double kTolerance = 1e-9;
constexpr const char* kCard = "cuda:0";

class GpuZoo : public OnCard<::testing::TestWithParam<std::string>> {
 protected:
  std::string name() const { return "zoo/" + GetParam(); }
};

TEST_P(GpuZoo, LossAndGradientsOfPyTorchOnTheCard) {
  const Model model = load(name(), true, "cuda");
  const Tensors truth = reference(name(), "f64.cuda");
  const double loss = truth.at("loss").item<double>();
  const Tensors gradients = part_of(truth, "grad.");
  // The gradient of a key's bias is zero but for rounding: nothing to be compared with itself.
  double largest = 0;
  for (const auto& [key, tensor] : gradients) {
    if (tensor.numel() > 0) largest = std::max(largest, tensor.abs().max().item<double>());
  }
  for (const int32_t stages : {1, 3}) {
    SCOPED_TRACE(stages);
    const Computed found =
        differentiate(model, {.stages = stages, .device = kCard, .cut_seed = 41});
    const double off = std::abs(found.loss - loss) / std::abs(loss);
    EXPECT_LE(off, kTolerance);
    ASSERT_EQ(found.gradients.size(), gradients.size());
    double worst = 0;
    for (const auto& [key, tensor] : gradients) {
      ASSERT_TRUE(found.gradients.contains(key)) << key;
      const double gap = difference(tensor, found.gradients.at(key), 1e-6 * largest);
      EXPECT_LE(gap, kTolerance) << key;
      worst = std::max(worst, gap);
    }
    std::printf("%s, %d stage(s): loss differs by %.2g, gradients by %.2g\n", GetParam().c_str(),
                stages, off, worst);
  }
}

TEST_P(GpuZoo, Bf16AutocastTrains) {
  if (GetParam() == "edges") {
    GTEST_SKIP() << "it makes complex numbers of an autocast result: PyTorch has none of bfloat16";
  }
  const Model model = load(name(), false, "cuda");
  const double loss = differentiate(model, {.precision = Precision::kFp32, .device = kCard}).loss;
  const Computed found = differentiate(
      model, {.stages = 3, .precision = Precision::kBf16, .device = kCard, .cut_seed = 42});
  EXPECT_LE(std::abs(found.loss - loss), 5e-2 * std::abs(loss));
  for (const auto& [key, gradient] : found.gradients) {
    EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << key;
  }
}

constexpr auto kName = [](const auto& info) { return info.param; };
INSTANTIATE_TEST_SUITE_P(Language, GpuZoo, ::testing::ValuesIn(kZooLanguage), kName);
INSTANTIATE_TEST_SUITE_P(Vision, GpuZoo, ::testing::ValuesIn(kZooVision), kName);
INSTANTIATE_TEST_SUITE_P(Nets, GpuZoo, ::testing::ValuesIn(kZooNets), kName);
INSTANTIATE_TEST_SUITE_P(Features, GpuZoo, ::testing::ValuesIn(kZooFeatures), kName);

}  // namespace
}  // namespace weft::executor::testing
