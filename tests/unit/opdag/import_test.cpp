// Archives made by hand, each with one thing changed. Real exports: tests/slow/opdag.
#include "opdag/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/pt2_model.h"

namespace weft::opdag {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using weft::testing::ZipWriter;

using Model = testing::Pt2Model;
using testing::argument;
using testing::meta;
using testing::node;
using testing::payload;
using testing::tensor;

void expect_error(const Result<Graph>& graph, Code code, const std::string& message) {
  ASSERT_FALSE(graph.ok()) << message;
  EXPECT_EQ(graph.error().code, code) << graph.error().text();
  EXPECT_THAT(graph.error().text(), HasSubstr(message));
}

TEST(Import, ReadsAModel) {
  const auto graph = Model().import();
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  ASSERT_EQ(graph->nodes.size(), 6u);
  EXPECT_EQ(graph->nodes[0].id, 1);  // the dropped assert keeps its number
  EXPECT_EQ(graph->nodes[0].op, "aten::add.Tensor");
  EXPECT_EQ(graph->nodes[2].op, "aten::relu");
  // The reader of the buffer relu_ wrote to now reads relu's result.
  EXPECT_EQ(std::get<ValueArg>(*graph->nodes[3].find("input")).id, graph->nodes[2].outputs[0]);
  ASSERT_EQ(graph->buffer_updates.size(), 1u);
  EXPECT_EQ(graph->buffer_updates[0].target, "n");
  EXPECT_EQ(graph->buffer_updates[0].value, graph->nodes[0].outputs[0]);
  EXPECT_EQ(graph->outputs[0].name, "logits");
  EXPECT_EQ(graph->loss_output, 1);
  EXPECT_TRUE(graph->train_mode);
  EXPECT_TRUE(graph->warnings.empty());
  const Leaf *w = graph->find_leaf("w"), *v = graph->find_leaf("v");
  EXPECT_TRUE(w->trainable);
  EXPECT_EQ(w->tied_group, v->tied_group);
  EXPECT_NE(w->tied_group, kNone);
  EXPECT_EQ(w->weight.path, "data/weights/weight_0");
  EXPECT_EQ(w->weight.bytes, 36u);
  EXPECT_EQ(graph->find_leaf("n")->tied_group, kNone);
}

TEST(Import, EvalModeExportsWarn) {
  Model model;
  model.nodes()[4]["inputs"][2]["arg"]["as_bool"] = false;
  const auto graph = model.import();
  ASSERT_TRUE(graph.ok());
  EXPECT_FALSE(graph->train_mode);
  EXPECT_THAT(graph->warnings.at(0), HasSubstr("eval mode"));
}

TEST(Import, RefusedOperatorIsNamed) {
  Model model;
  model.nodes()[4]["target"] = "torch.ops.higher_order.wrap_with_autocast";
  const auto graph = model.import();
  expect_error(graph, Code::kRefused, "wrap_with_autocast");
  EXPECT_EQ(graph.error().op, "higher_order::wrap_with_autocast");
  EXPECT_FALSE(graph.error().node.empty());
  const auto kept = model.import({.keep_refused = true});
  ASSERT_TRUE(kept.ok()) << kept.error().text();
  EXPECT_EQ(kept->nodes[3].op, "higher_order::wrap_with_autocast");
}

TEST(Import, DynamicShapesAreRefusedByDimension) {
  Model model;
  model.value("x")["sizes"][0] = {{"as_expr", {{"expr_str", "s77"}, {"hint", nullptr}}}};
  const auto graph = model.import();
  expect_error(graph, Code::kRefused, "dimension 0 of input 'x' (s77)");
  EXPECT_THAT(graph.error().next, HasSubstr("drop dynamic_shapes={\"x\": {0: ...}}"));
  EXPECT_THAT(graph.error().next, HasSubstr("torch.export.Dim"));

  Model sizes;
  sizes.nodes()[2]["inputs"][1] =
      argument("size", {{"as_sym_ints", {{{"as_int", 2}}, {{"as_name", "s0"}}}}});
  expect_error(sizes.import(), Code::kRefused, "is dynamic");
}

// What linear makes goes through a region whose graph takes the relu and the dropout in.
Model with_region(const std::string& op, const Json& options) {
  Model model;
  Json nodes = model.nodes();
  Json body = {{"inputs", Json::array({tensor("inner")})},
               {"outputs", Json::array({tensor("linear")})},
               {"nodes", Json::array()},
               {"tensor_values", {{"inner", meta({2, 3})}, {"linear", meta({2, 3})}}}};
  body["nodes"].push_back(node("torch.ops.aten.sin.default", {argument("self", tensor("inner"))},
                               {tensor("linear")}));  // a name of the outer graph, too
  Json inputs = options;
  inputs.push_back(argument("", {{"as_graph", {{"name", "submod_1"}, {"graph", body}}}}));
  inputs.push_back(argument("", tensor("linear")));
  nodes[4] = node("torch.ops.higher_order." + op, inputs, {tensor("dropout")});
  model.nodes() = nodes;
  return model;
}

std::vector<std::string> ops_of(const Graph& graph) {
  std::vector<std::string> ops;
  for (const Node& node : graph.nodes) ops.push_back(node.op);
  return ops;
}

TEST(Import, RegionsAreFlattened) {
  const Json off = Json::array({argument("", {{"as_bool", false}})}),
             on = Json::array({argument("", {{"as_bool", true}})});
  const auto no_grad = with_region("wrap_with_set_grad_enabled", off).import();
  ASSERT_TRUE(no_grad.ok()) << no_grad.error().text();
  EXPECT_THAT(ops_of(*no_grad), ::testing::IsSupersetOf({"aten::detach", "aten::sin"}));
  const auto grad = with_region("wrap_with_set_grad_enabled", on).import();
  ASSERT_TRUE(grad.ok()) << grad.error().text();
  EXPECT_THAT(ops_of(*grad), ::testing::Not(::testing::Contains("aten::detach")));
  const auto checkpoint = with_region("tag_activation_checkpoint", Json::array()).import();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().text();
  EXPECT_EQ(ops_of(*checkpoint), ops_of(*grad));
  std::set<NodeId> ids;
  for (const Node& node : no_grad->nodes) EXPECT_TRUE(ids.insert(node.id).second);
  const Json autocast = {argument("", {{"as_string", "cpu"}}),
                         argument("", {{"as_scalar_type", 13}}), argument("", {{"as_bool", false}}),
                         argument("", {{"as_bool", false}})};
  const auto without = with_region("wrap_with_autocast", autocast).import();
  ASSERT_TRUE(without.ok()) << without.error().text();
  EXPECT_THAT(without->warnings.at(0), HasSubstr("autocast"));
  Json with = autocast;
  with[2] = on[0];
  expect_error(with_region("wrap_with_autocast", with).import(), Code::kRefused, "autocast");
}

TEST(Import, DamagedRegions) {
  const Json off = Json::array({argument("", {{"as_bool", false}})});
  const auto graph_of = [](Model& model) -> Json& {
    return model.nodes()[4]["inputs"][1]["arg"]["as_graph"]["graph"];
  };
  Model inputs = with_region("wrap_with_set_grad_enabled", off);
  graph_of(inputs)["inputs"] = Json::array();
  expect_error(inputs.import(), Code::kCorrupt, "takes 0 inputs and is given 1");
  Model outputs = with_region("wrap_with_set_grad_enabled", off);
  graph_of(outputs)["outputs"] = Json::array();
  expect_error(outputs.import(), Code::kCorrupt, "makes 0 tensors");
  Model dangling = with_region("wrap_with_set_grad_enabled", off);
  graph_of(dangling)["outputs"][0] = tensor("p_w");  // of the outer graph
  expect_error(dangling.import(), Code::kCorrupt, "'p_w' is made by nothing");
  Model deep = with_region("tag_activation_checkpoint", Json::array());
  for (int depth = 0; depth < 9; ++depth) {
    Json outer = {{"inputs", Json::array({tensor("inner")})},
                  {"outputs", Json::array({tensor("linear")})},
                  {"nodes", Json::array({deep.nodes()[4]})},
                  {"tensor_values", {{"inner", meta({2, 3})}}}};
    outer["nodes"][0]["outputs"] = Json::array({tensor("linear")});
    outer["nodes"][0]["inputs"][1] = argument("", tensor("inner"));
    deep.nodes()[4]["inputs"][0] = argument("", {{"as_graph", {{"name", "s"}, {"graph", outer}}}});
  }
  EXPECT_FALSE(deep.import().ok());  // the JSON's depth, or that of the graphs
}

TEST(Import, LossWithoutGradientWarns) {
  const Json off = Json::array({argument("", {{"as_bool", false}})});
  Model model = with_region("wrap_with_set_grad_enabled", off);
  ASSERT_TRUE(model.import()->warnings.empty());  // the second linear has a gradient
  model.value("p_v") = meta({3, 3});              // frozen
  model.weights["v"] = payload("weight_2", meta({3, 3}));
  model.files["weight_2"] = std::string(36, 'v');
  const auto graph = model.import();
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  EXPECT_THAT(graph->warnings.at(0), HasSubstr("no trainable parameter"));
}

TEST(Import, OperatorsOfLibrariesBecomeNative) {
  const auto with_groups = [](int64_t columns) {
    Model model;
    model.value("p_v") = meta({2, 3, columns}, 7, true);
    model.weights["v"] = payload("weight_2", meta({2, 3, columns}, 7, true));
    model.files["weight_2"] = std::string(static_cast<size_t>(24 * columns), 'v');
    model.value("ends") = meta({2}, 5);
    model.program["graph_module"]["signature"]["input_specs"].push_back(
        {{"user_input", {{"arg", tensor("ends")}}}});
    model.nodes()[5] = node("torch.ops.transformers.grouped_mm_fallback.default",
                            {argument("input", tensor("dropout")),
                             argument("weight", tensor("p_v")), argument("offs", tensor("ends"))},
                            {tensor("linear_1")});
    return model.import();
  };
  const auto graph = with_groups(3);
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  EXPECT_THAT(ops_of(*graph), ::testing::Contains("weft::grouped_mm"));
  expect_error(with_groups(4), Code::kInvalid, "do not fit");
}

TEST(Import, CorruptArchives) {
  Model version;
  version.program["schema_version"]["major"] = 9;
  expect_error(version.import(), Code::kRefused, "version 9.17");
  for (const auto& minor : {Json(1e300), Json("17"), Json(nullptr), Json(uint64_t{1} << 63)}) {
    version.program["schema_version"]["minor"] = minor;
    expect_error(version.import(), Code::kCorrupt, "a whole number is expected");
  }

  Model small;
  small.files["weight_0"].resize(35);
  expect_error(small.import(), Code::kCorrupt, "has 35 bytes, 'w' needs 36");

  Model missing;
  missing.files.erase("weight_1");
  expect_error(missing.import(), Code::kCorrupt, "weight_1");

  Model unnamed;
  unnamed.weights.erase("n");
  expect_error(unnamed.import(), Code::kCorrupt, "no weights for 'n'");

  Model escape;
  escape.weights["n"]["path_name"] = "../../../etc/passwd";
  expect_error(escape.import(), Code::kCorrupt, "missing");

  Model pickled;
  pickled.weights["n"]["use_pickle"] = true;
  expect_error(pickled.import(), Code::kRefused, "pickle");

  Model undefined;
  undefined.nodes()[2]["inputs"][0]["arg"] = tensor("nowhere");
  expect_error(undefined.import(), Code::kCorrupt, "'nowhere' is made by nothing");

  Model shapeless;
  shapeless.program["graph_module"]["graph"]["tensor_values"].erase("linear");
  expect_error(shapeless.import(), Code::kCorrupt, "has no shape");

  Model dtype;
  dtype.value("x")["dtype"] = 29;
  expect_error(dtype.import(), Code::kRefused, "element type 29");

  Model partial;
  partial.weights["v"]["tensor_meta"]["storage_offset"]["as_int"] = 1;
  partial.files["weight_0"].resize(40);
  expect_error(partial.import(), Code::kRefused, "share a part");
}

TEST(Import, MalformedJson) {
  const Model model;
  expect_error(model.import_json("{"), Code::kCorrupt, "not valid JSON");
  expect_error(model.import_json("[1, 2]"), Code::kCorrupt, "malformed");
  expect_error(model.import_json(std::string(100000, '[')), Code::kCorrupt, "nested deeper");
  // A bracket inside a string is no nesting.
  expect_error(model.import_json("{\"a\": \"\\\"" + std::string(100, '[') + "\"}"), Code::kCorrupt,
               "malformed");
}

TEST(Import, EveryMissingPieceIsAnErrorNotACrash) {
  const Model model;
  const Json flat = model.program.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    Json changed = flat;
    changed.erase(pointer);
    (void)model.import_json(changed.unflatten().dump());
    changed = flat;
    changed[pointer] = -1;
    (void)model.import_json(changed.unflatten().dump());
    changed[pointer] = "x";
    (void)model.import_json(changed.unflatten().dump());
  }
}

TEST(Import, OutputNamesFallBackToNumbers) {
  Model model;
  model.program["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = "nonsense";
  const auto graph = model.import();
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(graph->outputs[0].name, "out.0");
  EXPECT_EQ(graph->outputs[1].name, "out.1");
  EXPECT_EQ(graph->loss_output, 1);
}

}  // namespace
}  // namespace weft::opdag
