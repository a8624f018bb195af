#include "opdag/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/graph_builder.h"

namespace weft::opdag {
namespace {

using testing::GraphBuilder;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Inspect, CountsATiedWeightOnce) {
  auto graph = testing::tied_skip_graph();
  ASSERT_TRUE(graph.ok());
  const ModelSummary summary = summarize(*graph);
  EXPECT_EQ(summary.parameters.tensors, 5);
  EXPECT_EQ(summary.parameters.elements, 5 * 64);
  EXPECT_EQ(summary.parameters.bytes, 5 * 64 * 4);
  EXPECT_EQ(summary.tied, (std::vector<std::string>{"embed = head"}));
  EXPECT_EQ(summary.loss, "loss");
  EXPECT_EQ(summary.units, static_cast<int64_t>(graph->nodes.size()));
  EXPECT_EQ(summary.cut_tensors.size(), graph->nodes.size() - 1);
  EXPECT_EQ(summary.operators.front().op, "aten::linear");
  EXPECT_EQ(summary.operators.front().count, 6);
  EXPECT_DOUBLE_EQ(summary.operators.front().flops_forward, 6 * 2.0 * 4 * 8 * 8);
  EXPECT_TRUE(summary.refused.empty());
}

TEST(Inspect, ListsRefusedOperatorsWithAdvice) {
  auto graph = testing::chain_graph(2);
  ASSERT_TRUE(graph.ok());
  graph->nodes[1].op = graph->nodes[3].op = "aten::nonzero";
  const ModelSummary summary = summarize(*graph);
  ASSERT_EQ(summary.refused.size(), 1u);
  EXPECT_EQ(summary.refused[0].count, 2);
  EXPECT_EQ(summary.refused[0].node, 1);
  EXPECT_THAT(to_text(summary), HasSubstr("refused: aten::nonzero (2 times, first node 1)"));
}

// labels [2, 8] -> pad -> slice [1:] -> view -> loss, as Hugging Face's causal models do.
Graph causal(bool shifts) {
  GraphBuilder b;
  const ValueId logits = b.input("logits", {16, 10});
  const ValueId labels = b.input("labels", {2, 8}, DType::kInt64);
  ValueId y = labels;
  if (shifts) {
    y = b.op("aten::pad", {{"self", ValueArg{y}}, {"pad", IntListArg{{{0, kNone}, {1, kNone}}}}},
             {2, 9}, DType::kInt64);
    y = b.op(
        "aten::slice.Tensor",
        {{"self", ValueArg{y}}, {"dim", int64_t{1}}, {"start", int64_t{1}}, {"end", INT64_MAX}},
        {2, 8}, DType::kInt64);
  }
  y = b.op("aten::view", {{"self", ValueArg{y}}, {"size", IntListArg{{{-1, kNone}}}}}, {16},
           DType::kInt64);
  b.loss(
      b.op("aten::cross_entropy_loss", {{"self", ValueArg{logits}}, {"target", ValueArg{y}}}, {}));
  auto graph = b.build();
  EXPECT_TRUE(graph.ok()) << graph.error().text();
  return std::move(graph).value();
}

TEST(Inspect, SeesLabelsThatTheModelShiftsItself) {
  const ModelSummary shifted = summarize(causal(true));
  EXPECT_TRUE(shifted.labels_shifted_inside);
  EXPECT_EQ(shifted.shifted_input, "labels");
  EXPECT_THAT(to_text(shifted), HasSubstr("would shift twice"));
  const ModelSummary plain = summarize(causal(false));
  EXPECT_FALSE(plain.labels_shifted_inside);
  EXPECT_THAT(to_text(plain), Not(HasSubstr("would shift twice")));
}

TEST(Inspect, JsonHasWhatTheTextHas) {
  auto graph = testing::chain_graph(60);
  ASSERT_TRUE(graph.ok());
  graph->warnings.push_back("look \x1b[31mhere");
  const ModelSummary summary = summarize(*graph);
  const nlohmann::json json = to_json(summary);
  EXPECT_EQ(json["nodes"], 121);
  EXPECT_EQ(json["cut_tensors"].size(), 120u);
  EXPECT_EQ(json["inputs"][0]["name"], "x");
  EXPECT_EQ(json["loss"], "loss");
  EXPECT_EQ(json["cost_classes"]["matmul"]["nodes"], 60);
  EXPECT_GT(json["total"]["flops_backward"], json["total"]["flops_forward"]);
  const std::string text = to_text(summary, 10);
  EXPECT_THAT(text, HasSubstr("... and 110 more"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace weft::opdag
