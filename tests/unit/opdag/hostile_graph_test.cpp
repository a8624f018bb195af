// Graphs too large for any machine or for this one, and texts that nest: told before anything runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "opdag/memory_check.h"
#include "opdag/op_table.h"
#include "opdag/text.h"
#include "tests/support/graph_builder.h"

namespace weft::opdag {
namespace {

using ::testing::AllOf;
using testing::GraphBuilder;
using ::testing::HasSubstr;

IntListArg ints(const std::vector<int64_t>& values) {
  IntListArg list;
  for (int64_t value : values) list.items.push_back({value, kNone});
  return list;
}

// x [n, 1] times its transpose: n^2 elements from n.
Graph outer_product(int64_t n) {
  GraphBuilder builder;
  const ValueId x = builder.input("x", {n, 1});
  const ValueId y = builder.input("y", {1, n});
  builder.op("aten::mm", {{"self", ValueArg{x}}, {"mat2", ValueArg{y}}}, {n, n});
  return builder.graph;
}

TEST(HostileGraph, AResultNoMachineHoldsIsRefusedByValidate) {
  Graph fits = outer_product(1000);
  EXPECT_TRUE(validate(fits).ok());
  Graph absurd = outer_product(int64_t{1} << 20);
  const Status status = validate(absurd);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kTooLarge);
  EXPECT_EQ(status.error().op, "aten::mm");
}

TEST(HostileGraph, AResultThisMachineCannotHoldIsRefusedBeforeItRuns) {
  Graph graph = outer_product(1 << 15);  // 4 GiB from 128 KiB
  ASSERT_TRUE(validate(graph).ok());
  EXPECT_TRUE(check_memory(graph, uint64_t{8} << 30).ok());
  const Status status = check_memory(graph, uint64_t{2} << 30);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kTooLarge);
  EXPECT_THAT(status.error().message, AllOf(HasSubstr("aten::mm"), HasSubstr("[32768, 32768]"),
                                            HasSubstr("4 GiB"), HasSubstr("2 GiB")));
  EXPECT_EQ(status.error().node, "0");
}

TEST(HostileGraph, OnlyTheStagesOwnTensorsCount) {
  GraphBuilder builder;
  const ValueId x = builder.input("x", {1 << 15, 1});
  const ValueId y = builder.input("y", {1, 1 << 15});
  builder.op("aten::mm", {{"self", ValueArg{x}}, {"mat2", ValueArg{y}}}, {1 << 15, 1 << 15});
  builder.op("aten::relu", {{"self", ValueArg{x}}}, {1 << 15, 1});
  ASSERT_TRUE(validate(builder.graph).ok());
  Stage first, second;
  first.nodes = {0};
  second.nodes = {1};
  EXPECT_FALSE(check_memory(builder.graph, first, 1 << 20).ok());
  EXPECT_TRUE(check_memory(builder.graph, second, 1 << 20).ok());
}

TEST(HostileGraph, ExpandedTensorsCountOnce) {
  GraphBuilder builder;
  const ValueId x = builder.input("x", {1, 8});
  const ValueId wide = builder.op(
      "aten::expand", {{"self", ValueArg{x}}, {"size", ints({1 << 20, 8})}}, {1 << 20, 8});
  builder.graph.values[static_cast<size_t>(wide)].meta.strides = {0, 1};
  ASSERT_TRUE(validate(builder.graph).ok());
  EXPECT_TRUE(check_memory(builder.graph, 1 << 10).ok());
}

TEST(HostileGraph, WeightsTogetherAreHeldAgainstTheMemory) {
  GraphBuilder builder;
  builder.parameter("a", {1 << 10, 1 << 10});
  builder.parameter("b", {1 << 10, 1 << 10});
  EXPECT_TRUE(check_memory(builder.graph, 8 << 20).ok());
  const Status status = check_memory(builder.graph, (8 << 20) - 1);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("weights"));
}

TEST(HostileGraph, ArgumentsThatWouldMakeMoreThanIsDeclaredAreRefused) {
  GraphBuilder builder;
  const ValueId x = builder.input("x", {4, 8});
  builder.op("aten::repeat", {{"self", ValueArg{x}}, {"repeats", ints({1 << 20, 1 << 20})}},
             {4, 8});
  EXPECT_FALSE(validate(builder.graph).ok());
}

TEST(HostileGraph, TextThatNestsIsRefusedQuickly) {
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& open : {std::string("["), std::string("tensors["), std::string("(")}) {
    std::string text = "weft-graph 1\nmode train\nnode 0 () = aten::relu(self=";
    for (int i = 0; i < 1'000'000; ++i) text += open;
    EXPECT_FALSE(parse_text(text).ok());
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace weft::opdag
