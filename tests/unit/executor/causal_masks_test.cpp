#include "executor/causal_masks.h"

#include "executor/program.h"
#include "tests/unit/executor/runtime_support.h"

namespace weft::executor::testing {
namespace {

using opdag::ValueArg;
using opdag::ValueId;
using opdag::testing::GraphBuilder;

constexpr int64_t kLength = 6;

ValueId positions(GraphBuilder& b, int64_t dim, int64_t start = 0) {
  const ValueId all = b.op("aten::arange.start", {{"start", start}, {"end", start + kLength}},
                           {kLength}, DType::kInt64);
  return b.op("aten::unsqueeze", {{"self", ValueArg{all}}, {"dim", dim}},
              dim == 0 ? opdag::testing::Sizes{1, kLength} : opdag::testing::Sizes{kLength, 1},
              DType::kInt64);
}

// columns <= rows + offset
ValueId mask(GraphBuilder& b, int64_t offset = 0) {
  const ValueId rows = positions(b, 1, offset), columns = positions(b, 0);
  return b.op("aten::le.Tensor", {{"self", ValueArg{columns}}, {"other", ValueArg{rows}}},
              {kLength, kLength}, DType::kBool);
}

ValueId attention(GraphBuilder& b, ValueId x, ValueId mask) {
  return b.op("aten::scaled_dot_product_attention",
              {{"query", ValueArg{x}},
               {"key", ValueArg{x}},
               {"value", ValueArg{x}},
               {"attn_mask", ValueArg{mask}}},
              {2, 2, kLength, 8});
}

std::set<int32_t> found(GraphBuilder& b, ValueId y) {
  b.loss(b.mean(y));
  return causal_attention(must(b.build()));
}

TEST(CausalMasks, AConstantMaskOfThePastIsFound) {
  GraphBuilder b;
  const auto x = b.input("x", {2, 2, kLength, 8});
  const auto first = mask(b), second = mask(b);  // in this order, whatever the compiler
  const auto y = attention(b, x, first);
  EXPECT_EQ(found(b, attention(b, y, second)), (std::set<int32_t>{10, 11}));
}

TEST(CausalMasks, OtherMasksAndGivenOnesAreNot) {
  for (int64_t offset : {-1, 1, 9}) {
    GraphBuilder b;
    const auto x = b.input("x", {2, 2, kLength, 8});
    EXPECT_TRUE(found(b, attention(b, x, mask(b, offset))).empty()) << offset;
  }
  GraphBuilder given;
  const auto x = given.input("x", {2, 2, kLength, 8});
  const auto m = given.input("m", {kLength, kLength}, DType::kBool);
  EXPECT_TRUE(found(given, attention(given, x, m)).empty());
  GraphBuilder buffer;
  const auto y = buffer.input("x", {2, 2, kLength, 8});
  const auto n = buffer.buffer("m", {kLength, kLength}, DType::kBool);
  EXPECT_TRUE(found(buffer, attention(buffer, y, n)).empty());
}

TEST(CausalMasks, OneElementForAnyLengthIsNoMaskOfThePast) {
  GraphBuilder b;
  const auto x = b.input("x", {2, 2, kLength, 8});
  const auto all =
      b.op("aten::ones",
           {{"size", opdag::IntListArg{{{1}, {1}}}}, {"dtype", opdag::DTypeArg{DType::kBool}}},
           {1, 1}, DType::kBool);
  EXPECT_TRUE(found(b, attention(b, x, all)).empty());
}

TEST(CausalMasks, TheProgramGivesTheSameNumbersWithoutTheMask) {
  GraphBuilder b;
  const auto x = b.input("x", {2, 2, kLength, 8});
  const auto y = attention(b, x, mask(b));
  b.loss(b.mean(y));
  const opdag::Graph graph = must(opdag::promote_f64(must(b.build())));
  ProgramSpec spec;
  for (size_t i = 0; i < graph.nodes.size(); ++i) spec.nodes.push_back(static_cast<int32_t>(i));
  spec.inputs = {{x, opdag::kNone}};
  spec.outputs = {y};
  const at::Tensor input = at::randn({2, 2, kLength, 8}, at::kDouble);
  const auto masked = must(must(Program::compile(graph, spec)).run({input}, {}));
  spec.causal = causal_attention(graph);
  ASSERT_EQ(spec.causal.size(), 1U);
  const auto causal = must(must(Program::compile(graph, spec)).run({input}, {}));
  EXPECT_TRUE(
      at::allclose(masked.outputs[0].toTensor(), causal.outputs[0].toTensor(), 1e-13, 1e-13));
}

}  // namespace
}  // namespace weft::executor::testing
