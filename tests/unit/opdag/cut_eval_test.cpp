#include "opdag/cut_eval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "opdag/derive.h"
#include "tests/support/graph_builder.h"

namespace weft::opdag {
namespace {

using ::testing::ElementsAre;
using testing::GraphBuilder;
using ::testing::HasSubstr;

Partition cut_of(int32_t stages, std::vector<int32_t> stage_of) {
  Partition cut;
  cut.stages = stages;
  cut.stage_of = std::move(stage_of);
  return cut;
}

// linear, dropout, linear, mean; the exporter of the eval mode has no dropout and other ids.
Graph train_model() {
  GraphBuilder b;
  const ValueId x = b.input("x", {4, 8});
  b.loss(b.mean(b.linear(b.dropout(b.linear(x, "w0", 8)), "w1", 8)));
  return *b.build();
}

Graph eval_model() {
  GraphBuilder b;
  const ValueId w1 = b.parameter("w1", {8, 8}), w0 = b.parameter("w0", {8, 8});
  const ValueId x = b.input("x", {4, 8});
  b.loss(b.mean(b.linear(b.linear(x, w0), w1)));
  return *b.build();
}

TEST(EvalPartition, DerivedKeepsStagesAndWireNumbers) {
  const Graph train = train_model(), eval = *derive_eval(train);
  const auto found = eval_partition(train, cut_of(3, {0, 0, 1, 2}), eval);
  ASSERT_TRUE(found.ok()) << found.error().text();
  EXPECT_TRUE(found->derived);
  EXPECT_THAT(found->train_stage, ElementsAre(0, 1, 2));
  ASSERT_EQ(found->links.size(), 2u);
  EXPECT_TRUE(found->links[0].trained && found->links[1].trained);
}

TEST(EvalPartition, SeparateModelLeavesOutAStage) {
  const auto found = eval_partition(train_model(), cut_of(4, {0, 1, 2, 3}), eval_model());
  ASSERT_TRUE(found.ok()) << found.error().text();
  EXPECT_FALSE(found->derived);
  EXPECT_THAT(found->train_stage, ElementsAre(0, 2, 3));  // the dropout's stage has no node
  EXPECT_EQ(found->stage_of(1), kNone);
  EXPECT_EQ(found->stage_of(2), 1);
  ASSERT_EQ(found->links.size(), 2u);
  EXPECT_EQ(found->links[0].from, 0);
  EXPECT_EQ(found->links[0].to, 2);
  // Three edges of training: own numbers begin behind them.
  EXPECT_EQ(found->links[0].wire, 3u);
  EXPECT_EQ(found->links[1].wire, 4u);
}

TEST(EvalPartition, WireNumbersOfARouteAreDistinct) {
  Rng rng(5);
  for (int i = 0; i < 60; ++i) {
    const Graph train = *testing::random_graph(rng, 20);
    const Graph eval = *derive_eval(train);
    const auto units = static_cast<int32_t>(cut_units(train).size());
    const auto cut = random_partition(train, std::min(4, units), rng);
    const auto found = eval_partition(train, *cut, eval);
    ASSERT_TRUE(found.ok()) << found.error().text();
    std::set<uint32_t> used;
    for (const auto& link : found->links) EXPECT_TRUE(used.insert(link.wire).second);
  }
}

TEST(EvalPartition, RefusesAWeightOutOfReach) {
  // The head is trained in stage 0 and evaluated behind the body of stage 1.
  GraphBuilder t;
  const ValueId x = t.input("x", {4, 8});
  const ValueId head = t.linear(x, "head", 8);
  t.loss(t.mean(t.linear(head, "body", 8)));
  GraphBuilder e;
  const ValueId y = e.input("x", {4, 8});
  e.loss(e.mean(e.linear(e.linear(y, "body", 8), "head", 8)));
  const auto found = eval_partition(*t.build(), cut_of(2, {0, 1, 1}), *e.build());
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(found.error().text(), HasSubstr("head"));
}

TEST(EvalPartition, NoNodesNoStages) {
  const auto found = eval_partition(train_model(), cut_of(1, {0, 0, 0, 0}), Graph{});
  ASSERT_TRUE(found.ok()) << found.error().text();
  EXPECT_EQ(found->stage_of(0), kNone);
  EXPECT_TRUE(found->links.empty());
}

}  // namespace
}  // namespace weft::opdag
