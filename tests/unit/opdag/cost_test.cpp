// Costs against numbers worked out by hand.
#include <gtest/gtest.h>

#include "opdag/op_table.h"
#include "tests/support/graph_builder.h"

namespace weft::opdag {
namespace {

using testing::GraphBuilder;

Cost last_cost(const GraphBuilder& b) {
  return node_cost(b.graph, b.graph.nodes.back());
}

IntListArg ints(std::vector<int64_t> items) {
  IntListArg list;
  for (int64_t item : items) list.items.push_back({item, kNone});
  return list;
}

TEST(Cost, Products) {
  GraphBuilder b;
  const ValueId x = b.input("x", {2, 16, 32}), w = b.parameter("w", {64, 32});
  const ValueId bias = b.parameter("b", {64});
  b.op("aten::linear", {{"input", ValueArg{x}}, {"weight", ValueArg{w}}}, {2, 16, 64});
  EXPECT_DOUBLE_EQ(last_cost(b).flops_forward, 2.0 * 2 * 16 * 64 * 32);
  EXPECT_DOUBLE_EQ(last_cost(b).flops_backward, 2 * last_cost(b).flops_forward);
  EXPECT_DOUBLE_EQ(last_cost(b).bytes_forward, 4.0 * (2 * 16 * 32 + 64 * 32 + 2 * 16 * 64));
  b.op("aten::linear", {{"input", ValueArg{x}}, {"weight", ValueArg{w}}, {"bias", ValueArg{bias}}},
       {2, 16, 64});
  EXPECT_DOUBLE_EQ(last_cost(b).flops_forward, 2.0 * 2 * 16 * 64 * 32 + 2 * 16 * 64);
  const ValueId a = b.input("a", {3, 5, 7}), c = b.input("c", {3, 7, 11});
  b.op("aten::bmm", {{"self", ValueArg{a}}, {"mat2", ValueArg{c}}}, {3, 5, 11});
  EXPECT_DOUBLE_EQ(last_cost(b).flops_forward, 2.0 * 3 * 5 * 7 * 11);
  b.op("aten::einsum",
       {{"equation", std::string("bij,bjk->bik")}, {"tensors", ValueListArg{{a, c}}}}, {3, 5, 11});
  EXPECT_DOUBLE_EQ(last_cost(b).flops_forward, 2.0 * 3 * 5 * 7 * 11);
}

TEST(Cost, Convolutions) {
  GraphBuilder b;
  const ValueId x = b.input("x", {2, 8, 10, 10});
  const ValueId w = b.parameter("w", {16, 4, 3, 3});  // two groups
  b.op("aten::conv2d",
       {{"input", ValueArg{x}},
        {"weight", ValueArg{w}},
        {"padding", ints({1, 1})},
        {"groups", int64_t{2}}},
       {2, 16, 10, 10});
  EXPECT_DOUBLE_EQ(last_cost(b).flops_forward, 2.0 * 2 * 16 * 100 * 4 * 9);
  const ValueId t = b.parameter("t", {8, 4, 2, 2});
  b.op("aten::conv_transpose2d.input",
       {{"input", ValueArg{x}}, {"weight", ValueArg{t}}, {"stride", ints({2, 2})}}, {2, 4, 20, 20});
  EXPECT_DOUBLE_EQ(last_cost(b).flops_forward, 2.0 * 2 * 8 * 100 * 4 * 4);
}

TEST(Cost, AttentionIsFourBSSH) {
  GraphBuilder b;
  const std::vector<int64_t> shape{2, 4, 128, 16};
  const ValueId q = b.input("q", shape), k = b.input("k", shape), v = b.input("v", shape);
  b.op("aten::scaled_dot_product_attention",
       {{"query", ValueArg{q}}, {"key", ValueArg{k}}, {"value", ValueArg{v}}}, shape);
  EXPECT_DOUBLE_EQ(last_cost(b).flops_forward, 4.0 * 2 * 128 * 128 * 64);
}

TEST(Cost, WhatOnlyMovesOrMakesHasNoFlops) {
  GraphBuilder b;
  const ValueId x = b.input("x", {4, 8});
  b.op("aten::view", {{"self", ValueArg{x}}, {"size", ints({32})}}, {32});
  EXPECT_EQ(last_cost(b).flops_forward, 0);
  EXPECT_EQ(last_cost(b).bytes_forward, 0);
  b.op("aten::zeros", {{"size", ints({4, 8})}}, {4, 8});
  EXPECT_EQ(last_cost(b).bytes_forward, 128);
  EXPECT_EQ(last_cost(b).flops_backward, 0);
  // An embedding reads its rows, not its table.
  const ValueId table = b.parameter("table", {50000, 8}), ids = b.input("ids", {4}, DType::kInt64);
  b.op("aten::embedding", {{"weight", ValueArg{table}}, {"indices", ValueArg{ids}}}, {4, 8});
  EXPECT_EQ(last_cost(b).bytes_forward, 4 * 8 + 2 * 4 * 8 * 4);
}

TEST(Cost, PoolsNormsAndLstm) {
  GraphBuilder b;
  const ValueId x = b.input("x", {2, 8, 10, 10});
  b.op("aten::max_pool2d", {{"self", ValueArg{x}}, {"kernel_size", ints({2, 5})}}, {2, 8, 5, 2});
  EXPECT_DOUBLE_EQ(last_cost(b).flops_forward, 2.0 * 8 * 10 * 10);
  b.op("aten::softmax.int", {{"self", ValueArg{x}}, {"dim", int64_t{1}}}, {2, 8, 10, 10});
  EXPECT_DOUBLE_EQ(last_cost(b).flops_forward, 5.0 * 1600);
  const ValueId s = b.input("s", {7, 3, 8}), h = b.input("h", {1, 3, 16});
  const ValueId w = b.parameter("w", {64, 8}), u = b.parameter("u", {64, 16});
  b.op("aten::lstm.input",
       {{"input", ValueArg{s}}, {"hx", ValueListArg{{h, h}}}, {"params", ValueListArg{{w, u}}}},
       {7, 3, 16});
  EXPECT_DOUBLE_EQ(last_cost(b).flops_forward, 2.0 * 21 * (64 * 8 + 64 * 16));
}

}  // namespace
}  // namespace weft::opdag
