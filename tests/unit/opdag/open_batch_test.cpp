// Exports that leave the batch open: the numbers of their expressions, and that a closed one is
// what an export with that batch would have been.
#include "opdag/open_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "opdag/sympy.h"
#include "opdag/text.h"
#include "tests/support/open_model.h"

namespace weft::opdag {
namespace {

using testing::add_assertion, testing::add_region, testing::fixed_model, testing::literal,
    testing::open_model, testing::Pt2Model, testing::symbolic, testing::with_symbol;
using ::testing::HasSubstr;

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

TEST(OpenBatch, AClosedOneIsTheExportOfThatBatch) {
  for (const int64_t batch : {2, 3, 8, 17, 64}) {
    const auto closed = open_model().import({.micro_batch = batch});
    const auto truth = fixed_model(batch).import();
    ASSERT_TRUE(closed.ok()) << closed.error().text();
    ASSERT_TRUE(truth.ok()) << truth.error().text();
    EXPECT_EQ(to_text(*closed), to_text(*truth)) << batch;
  }
}

TEST(OpenBatch, WithoutAWishItIsThatOfTheExampleInputs) {
  const auto graph = open_model(4).import();
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  EXPECT_EQ(graph->value(graph->find_leaf("x")->value).meta.sizes[0], 4);
  EXPECT_THAT(graph->warnings.back(), HasSubstr("micro-batches of 4"));
  Pt2Model silent = open_model();
  silent.value("x")["sizes"][0]["as_expr"]["hint"] = nullptr;
  const auto unknown = silent.import();
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.error().next, HasSubstr("train.micro_batch"));
}

TEST(OpenBatch, BoundsOfTheExportHold) {
  for (const int64_t batch : {1, 65}) {
    const auto graph = open_model().import({.micro_batch = batch});
    ASSERT_FALSE(graph.ok());
    EXPECT_EQ(graph.error().code, Code::kInvalid);
    EXPECT_THAT(graph.error().text(), HasSubstr("2 to 64"));
  }
}

TEST(OpenBatch, AssertionsOfTheModelHold) {
  Pt2Model model = open_model();
  add_assertion(model);
  EXPECT_TRUE(model.import({.micro_batch = 50}).ok());
  const auto graph = model.import({.micro_batch = 51});
  ASSERT_FALSE(graph.ok());
  EXPECT_THAT(graph.error().text(), HasSubstr("asserts"));
}

TEST(OpenBatch, OtherOpenDimensionsAreRefused) {
  Pt2Model columns = open_model();
  columns.value("x")["sizes"][1] = symbolic("Symbol('s5', integer=True)");
  Pt2Model derived = open_model();
  derived.value("x")["sizes"][0] = symbolic("Mul(Integer(2), $)");
  for (const Pt2Model& model : {columns, derived}) {
    const auto graph = model.import({.micro_batch = 4});
    ASSERT_FALSE(graph.ok());
    EXPECT_EQ(graph.error().code, Code::kRefused);
    EXPECT_THAT(graph.error().text(), HasSubstr("only the batch may be open"));
  }
  Pt2Model data = open_model();  // as nonzero makes them
  data.value("view")["sizes"][0] = symbolic("Symbol('u0', integer=True)");
  const auto graph = data.import({.micro_batch = 4});
  ASSERT_FALSE(graph.ok());
  EXPECT_THAT(graph.error().text(), HasSubstr("depends on the data"));
}

TEST(OpenBatch, GraphsWithinNodesAreClosedToo) {
  Pt2Model model = open_model(), truth = fixed_model(5);
  add_region(model, symbolic("$"), true);
  add_region(truth, literal("as_int", 5), false);
  const auto closed = model.import({.micro_batch = 5});
  const auto other = truth.import();
  ASSERT_TRUE(closed.ok()) << closed.error().text();
  ASSERT_TRUE(other.ok()) << other.error().text();
  EXPECT_EQ(to_text(*closed), to_text(*other));
}

}  // namespace
}  // namespace weft::opdag
