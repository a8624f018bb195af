#include "opdag/op_table.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/graph_builder.h"

namespace weft::opdag {
namespace {

using testing::GraphBuilder;

TEST(OpTable, FindsEveryRowAndNothingElse) {
  std::set<std::string_view> names;
  for (const OpInfo& row : all_ops()) {
    EXPECT_EQ(find_op(row.name), &row);
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
  }
  EXPECT_GT(names.size(), 500u);
  for (const char* name :
       {"", "aten::", "aten::nonzero", "aten::as_strided", "aten::empty.memory_format", "aten::add",
        "aten::addmm ", "zzz", "aten::from_file", "prim::device"}) {
    EXPECT_EQ(find_op(name), nullptr) << name;
  }
}

TEST(OpTable, KnowsWhatTheSchemaDoesNotSay) {
  const OpInfo* norm = find_op("aten::batch_norm");
  ASSERT_NE(norm, nullptr);
  ASSERT_EQ(norm->writes_buffers.size(), 2u);
  EXPECT_EQ(norm->writes_buffers[0], "running_mean");
  EXPECT_EQ(norm->train_flag, "training");
  const OpInfo* dropout = find_op("aten::dropout");
  ASSERT_NE(dropout, nullptr);
  EXPECT_TRUE(dropout->random);
  EXPECT_TRUE(dropout->view);  // the input itself in evaluation
  EXPECT_EQ(dropout->dropout_p, "p");
  EXPECT_EQ(find_op("aten::add_.Tensor")->functional, "aten::add.Tensor");
  EXPECT_EQ(find_op("aten::add.Tensor")->functional, "");
  EXPECT_FALSE(find_op("aten::detach")->differentiable);
  EXPECT_TRUE(find_op("aten::view")->view);
}

TEST(OpTable, InPlaceRowsHaveAListedFunctionalForm) {
  for (const OpInfo& row : all_ops()) {
    const std::string_view base = row.name.substr(0, row.name.find('.'));
    const bool dunder = base.ends_with("__");
    EXPECT_EQ(base.ends_with("_") && !dunder, !row.functional.empty()) << row.name;
    if (!row.functional.empty()) {
      const OpInfo* pure = find_op(row.functional);
      ASSERT_NE(pure, nullptr) << row.name;
      EXPECT_TRUE(pure->functional.empty()) << row.name;
      EXPECT_EQ(pure->random, row.random) << row.name;
    }
  }
}

TEST(OpTable, RefusalNamesOperatorNodeAndAdvice) {
  Node node;
  node.id = 17;
  node.op = "aten::nonzero";
  Error error = refused_op(node);
  EXPECT_EQ(error.code, Code::kRefused);
  EXPECT_EQ(error.op, "aten::nonzero");
  EXPECT_EQ(error.node, "17");
  EXPECT_NE(error.message.find("aten::nonzero"), std::string::npos);
  EXPECT_NE(error.next.find("depends on the data"), std::string::npos);
  node.op = "mylib::fast_attention";
  EXPECT_NE(refused_op(node).next.find("custom operator"), std::string::npos);
  node.op = "aten::where";
  EXPECT_NE(refused_op(node).next.find("aten::where.self"), std::string::npos);
  node.op = std::string(100000, 'x');
  EXPECT_LT(refused_op(node).text().size(), 1000u);
}

// One node after two inputs x [4, 8] and y [4, 8]; whether the limits accept it.
Status limits(const std::string& op, std::vector<NamedArgument> arguments,
              std::vector<int64_t> sizes, DType dtype = DType::kFloat32) {
  GraphBuilder b;
  b.input("x", {4, 8});
  b.input("y", {4, 8});
  b.op(op, std::move(arguments), std::move(sizes), dtype);
  return check_limits(b.graph, b.graph.nodes.back());
}
IntListArg ints(std::vector<int64_t> items) {
  IntListArg list;
  for (int64_t item : items) list.items.push_back({item, kNone});
  return list;
}

TEST(OpLimits, DeclaredShapesMustBeWhatTheArgumentsAskFor) {
  EXPECT_TRUE(limits("aten::zeros", {{"size", ints({4, 8})}}, {4, 8}).ok());
  EXPECT_FALSE(limits("aten::zeros", {{"size", ints({1 << 20, 1 << 20})}}, {4, 8}).ok());
  EXPECT_TRUE(limits("aten::arange", {{"end", int64_t{7}}}, {7}, DType::kInt64).ok());
  EXPECT_FALSE(limits("aten::arange", {{"end", int64_t{1} << 60}}, {7}, DType::kInt64).ok());
  EXPECT_TRUE(
      limits("aten::repeat", {{"self", ValueArg{0}}, {"repeats", ints({2, 1})}}, {8, 8}).ok());
  EXPECT_FALSE(
      limits("aten::repeat", {{"self", ValueArg{0}}, {"repeats", ints({1 << 30, 1})}}, {8, 8})
          .ok());
  const std::vector<NamedArgument> add = {{"self", ValueArg{0}}, {"other", ValueArg{1}}};
  EXPECT_TRUE(limits("aten::add.Tensor", add, {4, 8}).ok());
  EXPECT_FALSE(limits("aten::add.Tensor", add, {4, 9}).ok());
  const std::vector<NamedArgument> linear = {{"input", ValueArg{0}}, {"weight", ValueArg{1}}};
  EXPECT_TRUE(limits("aten::linear", linear, {4, 4}).ok());
  EXPECT_FALSE(limits("aten::linear", linear, {4, 8}).ok());
}

TEST(OpLimits, AbsurdArgumentsAreRefused) {
  const auto x = NamedArgument{"self", ValueArg{0}};
  EXPECT_FALSE(limits("aten::relu", {x}, {int64_t{1} << 35}).ok());
  EXPECT_FALSE(
      limits("aten::max_pool1d", {x, {"kernel_size", ints({int64_t{1} << 40})}}, {4, 1}).ok());
  EXPECT_FALSE(limits("aten::max_pool1d", {x, {"kernel_size", ints({0})}}, {4, 1}).ok());
  EXPECT_TRUE(limits("aten::max_pool1d", {x, {"kernel_size", ints({2})}}, {4, 4}).ok());
  EXPECT_FALSE(
      limits("aten::dropout", {{"input", ValueArg{0}}, {"p", 1.5}, {"train", true}}, {4, 8}).ok());
  EXPECT_FALSE(limits("aten::one_hot", {x}, {4, 8, 10}, DType::kInt64).ok());
  EXPECT_FALSE(limits("aten::one_hot", {x, {"num_classes", int64_t{-1}}}, {4, 8, 10}).ok());
  EXPECT_FALSE(limits("aten::split.Tensor", {x, {"split_size", int64_t{0}}}, {4, 8}).ok());
  const auto einsum = [](const char* equation) {
    return limits("aten::einsum",
                  {{"equation", std::string(equation)}, {"tensors", ValueListArg{{0, 1}}}}, {4, 4});
  };
  EXPECT_TRUE(einsum("ij,kj->ik").ok());
  EXPECT_TRUE(einsum("...j,kj->...k").ok());
  EXPECT_FALSE(einsum("ij->i").ok());
  EXPECT_FALSE(einsum("ijk,kj->ik").ok());
  EXPECT_FALSE(
      limits("aten::zeros", {{"size", ints({4})}, {"device", DeviceArg{"meta"}}}, {4}).ok());
}

TEST(OpLimits, AnUnknownOperatorIsRefused) {
  const Status status = limits("aten::item", {{"self", ValueArg{0}}}, {});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kRefused);
}

}  // namespace
}  // namespace weft::opdag
