#include "executor/capture/capturable.h"

#include <gtest/gtest.h>

#include "tests/support/graph_builder.h"
#include "tests/support/must.h"

namespace weft::executor::testing {
namespace {

using opdag::testing::GraphBuilder;

std::string reason(GraphBuilder& b) {
  const opdag::Graph graph = must(b.build());
  std::vector<int32_t> nodes;
  for (size_t i = 0; i < graph.nodes.size(); ++i) nodes.push_back(static_cast<int32_t>(i));
  return why_not_capturable(graph, nodes);
}

TEST(Capturable, WhatRunsOnTheCardAlone) {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  b.loss(b.mean(b.cat(b.split2(b.relu(b.linear(x, "w", 8))))));
  EXPECT_EQ(reason(b), "");
}

TEST(Capturable, OfDrawsThoseOfDropout) {
  for (const double p : {0.0, 0.3}) {
    GraphBuilder b;
    b.loss(b.mean(b.dropout(b.input("x", {4, 8}), p)));
    EXPECT_EQ(reason(b), "");
  }
  GraphBuilder random;
  random.loss(random.mean(random.unary("aten::bernoulli", random.input("x", {4, 8}))));
  EXPECT_NE(reason(random).find("draws random numbers"), std::string::npos);
}

TEST(Capturable, NotWhatIsUnknown) {
  GraphBuilder unknown;  // waits for the card
  unknown.loss(unknown.mean(unknown.unary("aten::linalg_inv", unknown.input("x", {4, 4}))));
  EXPECT_NE(reason(unknown).find("linalg_inv (node 0) is not known"), std::string::npos);
}

TEST(Capturable, IndexingByAMaskCountsOnTheHost) {
  for (const DType type : {DType::kInt64, DType::kBool}) {
    GraphBuilder b;
    const auto x = b.input("x", {4, 8});
    const auto i = b.input("i", {4}, type);
    b.loss(b.mean(b.op("aten::index.Tensor",
                       {{"self", opdag::ValueArg{x}}, {"indices", opdag::ValueListArg{{i}}}},
                       {4, 8})));
    EXPECT_EQ(reason(b).empty(), type == DType::kInt64) << reason(b);
  }
}

}  // namespace
}  // namespace weft::executor::testing
