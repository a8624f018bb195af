#include "opdag/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/graph_builder.h"

namespace weft::opdag {
namespace {

using testing::GraphBuilder;
using ::testing::HasSubstr;

RC_GTEST_PROP(Text, RoundTripsRandomGraphs, (uint64_t seed)) {
  Rng rng(seed);
  const auto graph = testing::random_graph(rng, 4 + static_cast<int>(rng.below(40)));
  RC_ASSERT(graph.ok());
  const auto back = parse_text(to_text(*graph));
  RC_ASSERT(back.ok());
  RC_ASSERT(*back == *graph);
}

TEST(Text, RoundTripsEveryKindOfArgument) {
  GraphBuilder b;
  const ValueId x = b.input("x \"quoted\" \\ name", {4, 8});
  const ValueId table = b.constant("table", {4, 8});
  b.graph.warnings = {"line one\nline two"};
  b.node("aten::relu",
         {{"self", ValueArg{x}},
          {"none", NoneArg{}},
          {"list", ValueListArg{{x, kNone, table}}},
          {"empty", ValueListArg{}},
          {"int", int64_t{-7}},
          {"least", std::numeric_limits<int64_t>::min()},
          {"double", 3.0},
          {"small", 1e-300},
          {"tenth", 0.1},
          {"inf", std::numeric_limits<double>::infinity()},
          {"minus_inf", -std::numeric_limits<double>::infinity()},
          {"true", true},
          {"false", false},
          {"string", std::string("a # \"b\" \\ c\n")},
          {"dtype", DTypeArg{DType::kBFloat16}},
          {"device", DeviceArg{"cuda:0"}},
          {"layout", LayoutArg{"strided"}},
          {"format", MemoryFormatArg{"channels_last"}},
          {"ints", IntListArg{{{1, kNone}, {-1, kNone}, {0, x}}}},
          {"no_ints", IntListArg{}},
          {"floats", FloatListArg{{1.0, -0.5, 2e10}}},
          {"bools", BoolListArg{{true, false}}},
          {"complex", ComplexArg{1.0, -2.0}},
          {"odd name!", int64_t{1}}},
         {b.value({4, 8}, DType::kFloat32), kNone});
  Graph graph = b.graph;
  const std::string text = to_text(graph);
  // The operator table may refuse such a call; the text has to carry it all the same.
  const auto back = parse_text(text);
  if (back.ok()) {
    ASSERT_TRUE(validate(graph).ok());
    EXPECT_EQ(*back, graph);
  } else {
    EXPECT_THAT(back.error().message, ::testing::Not(HasSubstr("cannot read")));
  }
}

TEST(Text, IsStableAndReadable) {
  const auto graph = testing::chain_graph(1);
  const std::string text = to_text(*graph);
  EXPECT_THAT(text, HasSubstr("node 0 %2 = aten::linear(input=%0, weight=%1)  # \"v2\" "
                              "float32[4, 8]\n"));
  EXPECT_EQ(to_text(*parse_text(text)), text);
}

TEST(Text, NamesTheLineItCannotRead) {
  const std::string text = to_text(*testing::chain_graph(1));
  for (const char* bad : {"node x", "value %0", "leaf parameter", "nonsense", "node 3 %9 = a(b=",
                          "output \"open", "loss 99999999999", "node 1 %1 = x(a=[1, 2)"}) {
    const auto result = parse_text(text + bad + "\n");
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_THAT(result.error().message, HasSubstr("line ")) << bad;
  }
  EXPECT_FALSE(parse_text("").ok());
  EXPECT_FALSE(parse_text("weft-graph 2\n").ok());
}

TEST(Text, RefusesWhatIsTooLong) {
  EXPECT_EQ(parse_text(std::string((size_t{64} << 20) + 1, ' ')).error().code, Code::kTooLarge);
}

TEST(Text, SurvivesRandomDamage) {
  Rng rng(3);
  const std::string text = to_text(*testing::random_graph(rng, 20));
  for (int round = 0; round < 1000; ++round) {
    std::string damaged = text;
    for (uint64_t i = 0; i <= rng.below(3); ++i) {
      const size_t at = rng.below(damaged.size());
      switch (rng.below(3)) {
        case 0:
          damaged[at] = static_cast<char>(rng.below(256));
          break;
        case 1:
          damaged.erase(at, rng.below(20));
          break;
        default:
          damaged.insert(at, damaged.substr(rng.below(damaged.size()), rng.below(20)));
      }
    }
    auto graph = parse_text(damaged);
    if (graph.ok()) {
      EXPECT_TRUE(validate(*graph).ok());
    }
  }
}

}  // namespace
}  // namespace weft::opdag
