// Exports that leave the batch open: the numbers of their expressions, and that a closed one is
// what an export with that batch would have been.
#include "opdag/open_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "opdag/sympy.h"
#include "opdag/text.h"
#include "tests/support/pt2_model.h"

namespace weft::opdag {
namespace {

using testing::argument, testing::node, testing::Pt2Model, testing::tensor;
using ::testing::HasSubstr;

constexpr const char* kSymbol = "Symbol('s77', positive=True, integer=True)";

std::string with_symbol(std::string expression) {
  for (size_t at = 0; (at = expression.find('$')) != expression.npos;) {
    expression.replace(at, 1, kSymbol);
  }
  return expression;
}

TEST(Sympy, WholeNumbers) {
  const std::vector<std::pair<std::string, int64_t>> cases = {
      {"$", 6},
      {"Integer(-7)", -7},
      {"Add($, Integer(1))", 7},
      {"Mul(Integer(2), $, $)", 72},
      {"Mul(Rational(1, 2), $)", 3},
      {"Pow($, Integer(3))", 216},
      {"PowByNatural($, Integer(0))", 1},
      {"FloorDiv(Add($, Integer(1)), Integer(2))", 3},
      {"FloorDiv(Mul(Integer(-1), $), Integer(4))", -2},
      {"CleanDiv($, Integer(3))", 2},
      {"CeilDiv($, Integer(4))", 2},
      {"Mod($, Integer(4))", 2},
      {"PythonMod(Mul(Integer(-1), $), Integer(4))", 2},
      {"ModularIndexing($, Integer(2), Integer(2))", 1},
      {"Max(Integer(1), $, Integer(4))", 6},
      {"Min(Integer(16), Mul(Integer(16), $))", 16},
      {"TruncToInt(IntTrueDiv($, Integer(4)))", 1},
      {"CeilToInt(FloatTrueDiv(ToFloat($), Float('4.0', precision=53)))", 2},
      {"Where(StrictGreaterThan($, Integer(5)), Integer(1), Integer(2))", 1},
      {"OpaqueUnaryFn_sqrt(Pow($, Integer(2)))", 6},
  };
  for (const auto& [expression, number] : cases) {
    EXPECT_EQ(evaluate_integer(with_symbol(expression), "s77", 6), number) << expression;
  }
}

TEST(Sympy, OtherNumbers) {
  EXPECT_EQ(evaluate(with_symbol("IntTrueDiv($, Add($, Integer(2)))"), "s77", 6),
            SymbolicNumber(0.75));
  EXPECT_EQ(evaluate(with_symbol("And(Equality($, Integer(6)), Not(Unequality($, $)))"), "s77", 6),
            SymbolicNumber(true));
  EXPECT_EQ(evaluate(with_symbol("Or(LessThan($, Integer(5)), false)"), "s77", 6),
            SymbolicNumber(false));
}

TEST(Sympy, WhatIsNoNumberIsNothing) {
  std::string deep = "$";
  for (int i = 0; i < 100; ++i) deep = "Add(" + deep + ", Integer(1))";
  for (const std::string expression : {"",
                                       "$ ",
                                       "$)",
                                       "Symbol('s7', positive=True)",
                                       "Symbol('s77'",
                                       "Symbol(s77)",
                                       "s77",
                                       "Add()",
                                       "Add($",
                                       "Add($,)",
                                       "Unknown($)",
                                       "Integer(99999999999999999999)",
                                       "Mul(Integer(9223372036854775807), $)",
                                       "Pow($, Integer(62))",
                                       "Pow($, Integer(1000))",
                                       "FloorDiv($, Integer(0))",
                                       "Mod($, Integer(0))",
                                       "IntTrueDiv($, Integer(0))",
                                       "FloorDiv(Integer(-9223372036854775808), Integer(-1))",
                                       "ModularIndexing($, $)",
                                       "And($, true)",
                                       "Not($)",
                                       "Float('1e999', precision=53)",
                                       "Where($, $, $)"}) {
    EXPECT_EQ(evaluate(with_symbol(expression), "s77", 6), std::nullopt) << expression;
  }
  EXPECT_EQ(evaluate(with_symbol(deep), "s77", 6), std::nullopt);
  EXPECT_EQ(evaluate_integer(with_symbol("IntTrueDiv($, Integer(4))"), "s77", 6), std::nullopt);
  EXPECT_EQ(evaluate_integer("true", "s77", 6), std::nullopt);
}

Json symbolic(const std::string& expression, const Json& hint = nullptr) {
  Json out = Json::object();
  out["as_expr"] = {{"expr_str", with_symbol(expression)}, {"hint", hint}};
  return out;
}

Json of_name(const char* kind, const std::string& name) {
  Json out = Json::object();
  out[kind] = {{"as_name", name}};
  return out;
}

// The hand-made model for batches of that many samples, with operators that know the batch behind
// its last linear: x.view(2 b / 2, -1) * (b / 8).
Pt2Model fixed(int64_t batch) {
  Pt2Model model;
  Json& graph = model.program["graph_module"]["graph"];
  for (auto& [name, meta] : graph["tensor_values"].items()) {
    if (meta["sizes"].size() == 2 && meta["sizes"][0]["as_int"] == 2) {
      meta["sizes"][0]["as_int"] = batch;
    }
  }
  graph["tensor_values"]["view"] = graph["tensor_values"]["mul_1"] =
      graph["tensor_values"]["linear_1"];
  Json& mean = model.nodes()[6];
  mean["inputs"][0] = argument("self", tensor("mul_1"));
  Json size = Json::object(), factor = Json::object();
  size["as_sym_ints"] = {{{"as_int", batch}}, {{"as_int", -1}}};
  factor["as_float"] = static_cast<double>(batch) / 8;
  Json nodes = model.nodes();
  nodes.insert(nodes.begin() + 6,
               {node("torch.ops.aten.view.default",
                     Json::array({argument("self", tensor("linear_1")), argument("size", size)}),
                     Json::array({tensor("view")})),
                node("torch.ops.aten.mul.Tensor",
                     Json::array({argument("self", tensor("view")), argument("other", factor)}),
                     Json::array({tensor("mul_1")}))});
  model.nodes() = nodes;
  return model;
}

Pt2Model open(int64_t sample = 4) {
  Pt2Model model = fixed(sample);
  Json& graph = model.program["graph_module"]["graph"];
  for (auto& [name, meta] : graph["tensor_values"].items()) {
    if (meta["sizes"].size() == 2 && meta["sizes"][0]["as_int"] == sample) {
      Json hint = Json::object();
      hint["as_int"] = sample;
      meta["sizes"][0] = symbolic("$", hint);
    }
  }
  graph["sym_int_values"] = Json::object();
  graph["sym_int_values"]["sym_size_int"] = symbolic("$");
  graph["sym_int_values"]["mul"] = symbolic("Mul(Integer(2), $)");
  graph["sym_int_values"]["floordiv"] = symbolic("Mul(Rational(1, 2), Mul(Integer(2), $))");
  graph["sym_float_values"] = Json::object();
  graph["sym_float_values"]["truediv"] = symbolic("IntTrueDiv($, Integer(8))");
  graph["sym_bool_values"] = Json::object();
  graph["sym_bool_values"]["le"] = symbolic("LessThan($, Integer(50))");
  Json nodes = model.nodes(), two = Json::object(), eight = Json::object(), axis = Json::object();
  two["as_int"] = 2;
  eight["as_int"] = 8;
  axis["as_int"] = 0;
  nodes[6]["inputs"][1]["arg"]["as_sym_ints"][0] = Json::object({{"as_name", "floordiv"}});
  nodes[7]["inputs"][1]["arg"] = of_name("as_sym_float", "truediv");
  const auto number = [](const char* target, const Json& a, const Json& b, const Json& made) {
    return node(target, Json::array({argument("a", a), argument("b", b)}), Json::array({made}));
  };
  const Json size = of_name("as_sym_int", "sym_size_int");
  nodes.insert(nodes.begin(),
               {number("torch.ops.aten.sym_size.int", tensor("x"), axis, size),
                number("_operator.mul", size, two, of_name("as_sym_int", "mul")),
                number("_operator.floordiv", of_name("as_sym_int", "mul"), two,
                       of_name("as_sym_int", "floordiv")),
                number("_operator.truediv", size, eight, of_name("as_sym_float", "truediv"))});
  model.nodes() = nodes;
  model.program["range_constraints"] = {{"s77", {{"min_val", 2}, {"max_val", 64}}}};
  return model;
}

TEST(OpenBatch, AClosedOneIsTheExportOfThatBatch) {
  for (const int64_t batch : {2, 3, 8, 17, 64}) {
    const auto closed = open().import({.micro_batch = batch});
    const auto truth = fixed(batch).import();
    ASSERT_TRUE(closed.ok()) << closed.error().text();
    ASSERT_TRUE(truth.ok()) << truth.error().text();
    EXPECT_EQ(to_text(*closed), to_text(*truth)) << batch;
  }
}

TEST(OpenBatch, WithoutAWishItIsThatOfTheExampleInputs) {
  const auto graph = open(4).import();
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  EXPECT_EQ(graph->value(graph->find_leaf("x")->value).meta.sizes[0], 4);
  EXPECT_THAT(graph->warnings.back(), HasSubstr("micro-batches of 4"));
  Pt2Model silent = open();
  silent.value("x")["sizes"][0]["as_expr"]["hint"] = nullptr;
  const auto unknown = silent.import();
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.error().next, HasSubstr("train.micro_batch"));
}

TEST(OpenBatch, BoundsOfTheExportHold) {
  for (const int64_t batch : {1, 65}) {
    const auto graph = open().import({.micro_batch = batch});
    ASSERT_FALSE(graph.ok());
    EXPECT_EQ(graph.error().code, Code::kInvalid);
    EXPECT_THAT(graph.error().text(), HasSubstr("2 to 64"));
  }
}

TEST(OpenBatch, AssertionsOfTheModelHold) {
  Pt2Model model = open();
  Json nodes = model.nodes();
  Json text = Json::object();
  text["as_string"] = "at most 50";
  nodes.push_back(node(
      "torch.ops.aten._assert_scalar.default",
      Json::array({argument("self", of_name("as_sym_bool", "le")), argument("assert_msg", text)}),
      Json::array()));
  model.nodes() = nodes;
  EXPECT_TRUE(model.import({.micro_batch = 50}).ok());
  const auto graph = model.import({.micro_batch = 51});
  ASSERT_FALSE(graph.ok());
  EXPECT_THAT(graph.error().text(), HasSubstr("asserts"));
}

TEST(OpenBatch, OtherOpenDimensionsAreRefused) {
  Pt2Model columns = open();
  columns.value("x")["sizes"][1] = symbolic("Symbol('s5', integer=True)");
  Pt2Model derived = open();
  derived.value("x")["sizes"][0] = symbolic("Mul(Integer(2), $)");
  for (const Pt2Model& model : {columns, derived}) {
    const auto graph = model.import({.micro_batch = 4});
    ASSERT_FALSE(graph.ok());
    EXPECT_EQ(graph.error().code, Code::kRefused);
    EXPECT_THAT(graph.error().text(), HasSubstr("only the batch may be open"));
  }
  Pt2Model data = open();  // as nonzero makes them
  data.value("view")["sizes"][0] = symbolic("Symbol('u0', integer=True)");
  const auto graph = data.import({.micro_batch = 4});
  ASSERT_FALSE(graph.ok());
  EXPECT_THAT(graph.error().text(), HasSubstr("depends on the data"));
}

TEST(OpenBatch, GraphsWithinNodesAreClosedToo) {
  Pt2Model model = open(), truth = fixed(5);
  const auto put_region = [](Pt2Model& to, const Json& rows, bool number) {
    Json inner = Json::object();
    inner = to.value("linear_1");
    inner["sizes"][0] = rows;
    Json body = {{"inputs", Json::array({tensor("inner")})},
                 {"outputs", Json::array({tensor("inner_1")})},
                 {"nodes", Json::array({node("torch.ops.aten.sin.default",
                                             Json::array({argument("self", tensor("inner"))}),
                                             Json::array({tensor("inner_1")}))})},
                 {"tensor_values", {{"inner", inner}, {"inner_1", inner}}}};
    Json flag = Json::object(), graph = Json::object();
    flag["as_bool"] = true;
    graph["as_graph"] = {{"name", "submod_1"}, {"graph", body}};
    Json inputs = Json::array({argument("", flag), argument("", graph)});
    if (number) {
      inputs.push_back(argument("", of_name("as_sym_int", "mul")));
      Json& taken = inputs[1]["arg"]["as_graph"]["graph"]["inputs"];
      taken.insert(taken.begin(), of_name("as_sym_int", "taken"));
    }
    inputs.push_back(argument("", tensor("linear_1")));
    Json nodes = to.nodes();
    const auto at = nodes.begin() + (number ? 10 : 6);
    nodes.insert(at, node("torch.ops.higher_order.wrap_with_set_grad_enabled", inputs,
                          Json::array({tensor("region")})));
    to.nodes() = nodes;
    to.value("region") = inner;
  };
  Json five = Json::object();
  five["as_int"] = 5;
  put_region(model, symbolic("$"), true);
  put_region(truth, five, false);
  const auto closed = model.import({.micro_batch = 5});
  const auto other = truth.import();
  ASSERT_TRUE(closed.ok()) << closed.error().text();
  ASSERT_TRUE(other.ok()) << other.error().text();
  EXPECT_EQ(to_text(*closed), to_text(*other));
}

}  // namespace
}  // namespace weft::opdag
