// weft::grouped_mm against its definition, and what it refuses.
#include "executor/own_operators.h"

#include <gtest/gtest.h>

#include "executor/convert.h"

namespace weft::executor {
namespace {

at::Tensor grouped_mm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& offs) {
  opdag::Node node;
  node.op = "weft::grouped_mm";
  auto handle = find_operator(node);
  EXPECT_TRUE(handle.ok());
  torch::jit::Stack stack{input, weight, offs};
  handle.value().callBoxed(stack);
  return stack.at(0).toTensor();
}

at::Tensor offsets(std::vector<int64_t> ends, at::ScalarType type = at::kInt) {
  return at::tensor(ends, at::kLong).to(type);
}

TEST(OwnOperators, GroupedMmEqualsItsDefinition) {
  const at::Tensor input = at::randn({7, 3}, at::kDouble).requires_grad_(true);
  const at::Tensor weight = at::randn({4, 3, 5}, at::kDouble).requires_grad_(true);
  // An empty group, and two rows that belong to none.
  const at::Tensor found = grouped_mm(input, weight, offsets({2, 2, 4, 5}));
  const at::Tensor wanted =
      at::cat({input.slice(0, 0, 2).mm(weight[0]), input.slice(0, 2, 4).mm(weight[2]),
               input.slice(0, 4, 5).mm(weight[3]), at::zeros({2, 5}, at::kDouble)});
  EXPECT_TRUE(at::allclose(found, wanted, 0, 1e-14));
  const at::Tensor gradient = at::randn({7, 5}, at::kDouble);
  const auto ours = torch::autograd::grad({found}, {input, weight}, {gradient});
  const auto theirs = torch::autograd::grad({wanted}, {input, weight}, {gradient});
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::allclose(ours[i], theirs[i], 0, 1e-14)) << i;
}

TEST(OwnOperators, GroupedMmOfConstantsNeedsNoGradient) {
  const at::Tensor input = at::randn({4, 3}).requires_grad_(true), weight = at::randn({1, 3, 2});
  const auto of_input =
      torch::autograd::grad({grouped_mm(input, weight, offsets({4}, at::kLong)).sum()}, {input});
  EXPECT_TRUE(at::allclose(of_input[0], weight[0].sum(1).expand({4, 3})));
  EXPECT_FALSE(grouped_mm(input.detach(), weight, offsets({4})).requires_grad());
}

TEST(OwnOperators, GroupedMmChecksOffsetsAndShapes) {
  const at::Tensor input = at::randn({4, 3}), weight = at::randn({2, 3, 2});
  EXPECT_ANY_THROW(grouped_mm(input, weight, offsets({3, 5})));  // behind the rows
  EXPECT_ANY_THROW(grouped_mm(input, weight, offsets({3, 1})));  // falling
  EXPECT_ANY_THROW(grouped_mm(input, weight, offsets({-1, 2})));
  EXPECT_ANY_THROW(grouped_mm(input, weight, offsets({4})));  // one of two
  EXPECT_ANY_THROW(grouped_mm(at::randn({4, 2}), weight, offsets({2, 4})));
}

}  // namespace
}  // namespace weft::executor
