// Archives made by hand, each with one thing changed. Real exports: tests/slow/opdag.
#include "opdag/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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
  expect_error(graph, Code::kRefused, "dimension 0 of input 'x' is dynamic (s77)");
  EXPECT_THAT(graph.error().next, HasSubstr("torch.export.Dim"));

  Model sizes;
  sizes.nodes()[2]["inputs"][1] =
      argument("size", {{"as_sym_ints", {{{"as_int", 2}}, {{"as_name", "s0"}}}}});
  expect_error(sizes.import(), Code::kRefused, "is dynamic");
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
