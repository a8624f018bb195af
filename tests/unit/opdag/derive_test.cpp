#include "opdag/derive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "opdag/cut.h"
#include "tests/support/graph_builder.h"

namespace weft::opdag {
namespace {

using testing::GraphBuilder;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using testing::Sizes;

TEST(DeriveEval, TurnsTrainingOff) {
  GraphBuilder b;
  const ValueId x = b.input("x", {4, 8});
  const ValueId mean = b.buffer("mean", {8}), var = b.buffer("var", {8});
  const ValueId count = b.buffer("count", {}, DType::kInt64);
  const auto norm = [&](Argument running_mean, Argument running_var) {
    return b.op("aten::batch_norm",
                {{"input", ValueArg{x}},
                 {"weight", NoneArg{}},
                 {"bias", NoneArg{}},
                 {"running_mean", running_mean},
                 {"running_var", running_var},
                 {"training", true},
                 {"momentum", 0.1},
                 {"eps", 1e-5},
                 {"cudnn_enabled", true}},
                {4, 8});
  };
  const ValueId owned = norm(ValueArg{mean}, ValueArg{var});
  const ValueId free = norm(NoneArg{}, NoneArg{});
  const ValueId added = b.op("aten::add.Tensor", {{"self", ValueArg{count}}, {"other", int64_t{1}}},
                             {}, DType::kInt64);
  b.graph.buffer_updates = {{"count", added}};
  b.loss(b.mean(b.dropout(b.add(owned, free), 0.3)));
  const auto graph = b.build();
  ASSERT_TRUE(graph.ok()) << graph.error().text();

  const auto eval = derive_eval(*graph);
  ASSERT_TRUE(eval.ok()) << eval.error().text();
  EXPECT_FALSE(eval->train_mode);
  EXPECT_TRUE(eval->buffer_updates.empty());
  EXPECT_EQ(eval->node_index(2), kNone);  // the counter's add
  EXPECT_EQ(*eval->nodes[0].find("training"), Argument(false));
  EXPECT_EQ(*eval->nodes[1].find("training"), Argument(true));  // owns no statistics
  const Node& dropout = eval->nodes[3];
  EXPECT_EQ(*dropout.find("p"), Argument(0.0));
  EXPECT_EQ(*dropout.find("train"), Argument(false));
}

TEST(PruneTo, KeepsWhatOutputsNeed) {
  GraphBuilder b;
  const ValueId x = b.input("x", {4, 8}), y = b.input("y", {4, 8});
  const ValueId count = b.buffer("count", {}, DType::kInt64);
  const ValueId one = b.relu(b.linear(x, "w", 8)), two = b.tanh(b.linear(y, "v", 8));
  const ValueId added = b.op("aten::add.Tensor", {{"self", ValueArg{count}}, {"other", int64_t{1}}},
                             {}, DType::kInt64);
  b.graph.buffer_updates = {{"count", added}};
  b.output("two", two);
  b.loss(b.mean(one));
  const auto graph = b.build();
  ASSERT_TRUE(graph.ok()) << graph.error().text();

  const auto loss = prune_to(*graph, {});
  ASSERT_TRUE(loss.ok());
  EXPECT_EQ(loss->find_leaf("y"), nullptr);
  EXPECT_TRUE(loss->value(loss->find_leaf("v")->value).consumers.empty());  // still in checkpoints
  EXPECT_THAT(loss->nodes, SizeIs(4));
  EXPECT_EQ(loss->loss_output, 0);
  EXPECT_THAT(loss->buffer_updates, SizeIs(1));

  const auto other = prune_to(*graph, {"two"});
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other->loss_output, kNone);
  EXPECT_EQ(other->find_leaf("x"), nullptr);
  EXPECT_EQ(other->nodes[0].id, 2);
  EXPECT_THAT(prune_to(*graph, {"three"}).error().text(), HasSubstr("two, loss"));
}

// A strict load_state_dict asks for heads and counters that nobody reads.
TEST(PruneTo, KeepsUnreadStateInStageZero) {
  GraphBuilder b;
  const ValueId x = b.input("x", {4, 8});
  const ValueId unused_head = b.parameter("aux.weight", {8, 8});
  const ValueId shared = b.parameter("shared", {8, 8});
  b.tied_parameter("shared.alias", shared);
  b.buffer("seen", {}, DType::kInt64);
  b.graph.leaves.back().persistent = true;
  b.buffer("scratch", {8});
  b.graph.leaves.back().persistent = false;
  b.constant("table", {8});
  const ValueId h = b.tanh(b.linear(x, "w0", 8));
  b.output("aux", b.linear(h, unused_head));
  b.loss(b.mean(b.linear(h, shared)));
  const auto graph = b.build();
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const auto loss = prune_to(*graph, {});
  ASSERT_TRUE(loss.ok()) << loss.error().text();
  for (const char* kept : {"aux.weight", "seen", "shared", "shared.alias", "w0"}) {
    EXPECT_NE(loss->find_leaf(kept), nullptr) << kept;
  }
  EXPECT_EQ(loss->find_leaf("scratch"), nullptr);
  EXPECT_EQ(loss->find_leaf("table"), nullptr);
  const auto eval = derive_eval(*loss);
  ASSERT_TRUE(eval.ok());
  EXPECT_EQ(eval->find_leaf("aux.weight"), nullptr);

  Partition cut;
  cut.stages = 2;
  cut.stage_of = {0, 0, 1, 1};
  std::vector<std::vector<std::string>> names;
  for (int32_t index : {0, 1}) {
    const auto stage = extract_stage(*loss, cut, index);
    ASSERT_TRUE(stage.ok()) << stage.error().text();
    names.emplace_back();
    for (int32_t leaf : stage->leaves) {
      names.back().push_back(loss->leaves[static_cast<size_t>(leaf)].target);
    }
  }
  // The alias follows the weight it is: no bytes of it in stage 0.
  EXPECT_THAT(names[0], ::testing::UnorderedElementsAre("x", "aux.weight", "seen", "w0"));
  EXPECT_THAT(names[1], ::testing::UnorderedElementsAre("shared"));
}

TEST(DerivedFrom, EqualNumbersAreNotEnough) {
  const auto train = testing::tied_skip_graph();
  const auto eval = derive_eval(*train);
  EXPECT_TRUE(derived_from(*eval, *train));
  Graph other = *eval;
  other.nodes[1].op = "aten::relu";
  EXPECT_FALSE(derived_from(other, *train));
  Graph renamed = *eval;
  renamed.leaves[0].target = "another";
  EXPECT_FALSE(derived_from(renamed, *train));
  EXPECT_FALSE(derived_from(*testing::chain_graph(9), *train));
}

TEST(PruneTo, RandomGraphsStayValid) {
  Rng rng(8);
  for (int i = 0; i < 60; ++i) {
    const auto graph = testing::random_graph(rng, 5 + i);
    auto pruned = prune_to(*graph, {"hidden"});
    ASSERT_TRUE(pruned.ok()) << pruned.error().text();
    EXPECT_TRUE(validate(*pruned).ok());
    EXPECT_EQ(*prune_to(*pruned, {"hidden"}), *pruned);
  }
}

TEST(AppendLoss, RowsAndTokens) {
  for (const bool tokens : {false, true}) {
    GraphBuilder b;
    const ValueId x = b.input("x", tokens ? Sizes{2, 4, 8} : Sizes{4, 8});
    b.output("logits", b.tanh(x));
    const auto graph = append_loss(*b.build(), LossKind::kCrossEntropy, "logits", "labels");
    ASSERT_TRUE(graph.ok()) << graph.error().text();
    Graph copy = *graph;
    EXPECT_TRUE(validate(copy).ok());
    const Leaf* labels = graph->find_leaf("labels");
    EXPECT_EQ(graph->value(labels->value).meta.sizes, tokens ? (Sizes{2, 4}) : (Sizes{4}));
    EXPECT_EQ(graph->value(labels->value).meta.dtype, DType::kInt64);
    EXPECT_EQ(graph->outputs[static_cast<size_t>(graph->loss_output)].name, "loss");
    EXPECT_THAT(graph->nodes, SizeIs(tokens ? 4 : 2));
  }
}

TEST(AppendLoss, MseAndErrors) {
  GraphBuilder b;
  b.output("out.0", b.tanh(b.input("x", {4})));
  const auto graph = b.build();
  const auto mse = append_loss(*graph, LossKind::kMse, "out.0", "y");
  ASSERT_TRUE(mse.ok());
  EXPECT_EQ(mse->nodes.back().op, "aten::mse_loss");
  EXPECT_EQ(append_loss(*graph, LossKind::kMse, "none", "y").error().code, Code::kNotFound);
  EXPECT_EQ(append_loss(*graph, LossKind::kMse, "out.0", "x").error().code, Code::kExists);
  EXPECT_EQ(append_loss(*graph, LossKind::kCrossEntropy, "out.0", "y").error().code,
            Code::kInvalid);
}

TEST(Freeze, PatternsAndTies) {
  const auto graph = testing::tied_skip_graph();
  const auto frozen = freeze(*graph, {"he?d", "w[0]*", "w1*"});
  ASSERT_FALSE(frozen.ok());
  EXPECT_EQ(frozen.error().code, Code::kNotFound);
  const auto two = freeze(*graph, {"he?d", "*1"});
  ASSERT_TRUE(two.ok());
  EXPECT_FALSE(two->find_leaf("embed")->trainable);
  EXPECT_FALSE(two->find_leaf("w1")->trainable);
  EXPECT_TRUE(two->find_leaf("w0")->trainable);
}

TEST(ValuesWithGradient, FollowTrainableParameters) {
  GraphBuilder b;
  const ValueId x = b.input("x", {4, 8});
  const ValueId plain = b.relu(x);
  const ValueId learned = b.linear(plain, "w", 8);
  const auto parts = b.split2(learned);
  const ValueId cut = b.unary("aten::detach", learned);
  b.loss(b.mean(b.cat(parts)));
  b.output("cut", cut);
  const auto graph = b.build();
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const std::vector<bool> flows = values_with_gradient(*graph);
  const auto at = [&](ValueId id) { return flows[static_cast<size_t>(id)]; };
  EXPECT_FALSE(at(x));
  EXPECT_FALSE(at(plain));
  EXPECT_TRUE(at(learned));
  EXPECT_TRUE(at(parts[1]));
  EXPECT_FALSE(at(cut));
}

TEST(PromoteF64, PromotesValuesAndDtypes) {
  GraphBuilder b;
  const ValueId x = b.input("x", {4, 8});
  const ValueId labels = b.input("labels", {4}, DType::kInt64);
  const ValueId half =
      b.op("aten::div.Tensor", {{"self", ValueArg{labels}}, {"other", int64_t{2}}}, {4});
  const ValueId zeros = b.op("aten::zeros", {{"size", IntListArg{{{4, kNone}}}}}, {4});
  const ValueId cast =
      b.op("aten::to.dtype", {{"self", ValueArg{x}}, {"dtype", DTypeArg{DType::kFloat32}}}, {4, 8});
  b.output("sum", b.add(half, zeros));
  b.loss(b.mean(b.linear(cast, "w", 8)));
  const auto graph = b.build();
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  auto wide = promote_f64(*graph);
  ASSERT_TRUE(wide.ok()) << wide.error().text();
  EXPECT_TRUE(validate(*wide).ok());
  for (const Value& value : wide->values) EXPECT_NE(value.meta.dtype, DType::kFloat32);
  EXPECT_EQ(wide->value(labels).meta.dtype, DType::kInt64);
  EXPECT_EQ(wide->find_leaf("w")->weight.stored_dtype, DType::kFloat32);
  for (const Node& node : wide->nodes) {
    if (node.op == "aten::zeros" || node.op == "aten::to.dtype") {
      EXPECT_EQ(*node.find("dtype"), Argument(DTypeArg{DType::kFloat64})) << node.op;
    }
  }
  EXPECT_EQ(wide->nodes[0].op, "aten::to.dtype");  // 7 / 2 in float64
  EXPECT_EQ(wide->nodes[1].id, 0);
}

}  // namespace
}  // namespace weft::opdag
