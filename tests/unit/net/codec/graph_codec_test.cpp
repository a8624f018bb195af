#include "net/codec/graph_codec.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "tests/support/graph_builder.h"

namespace weft::net {
namespace {

using namespace opdag;  // NOLINT: a test about graphs
using opdag::testing::GraphBuilder;

// One node that carries every kind of argument.
Graph graph_of_all_arguments() {
  GraphBuilder b;
  const ValueId x = b.input("x", {4, 8});
  const ValueId w = b.parameter("w\xff\xfe", {8, 8});  // not UTF-8
  const ValueId count = b.buffer("count", {4, 8});
  const ValueId y = b.op("aten::relu",
                         {{"self", ValueArg{x}},
                          {"none", NoneArg{}},
                          {"list", ValueListArg{{x, kNone, w}}},
                          {"int", INT64_MIN},
                          {"float", -0.0},
                          {"bool", true},
                          {"text", std::string("a\0b", 3)},
                          {"dtype", DTypeArg{DType::kBFloat16}},
                          {"where", DeviceArg{"cuda:0"}},
                          {"layout", LayoutArg{"strided"}},
                          {"format", MemoryFormatArg{"channels_last"}},
                          {"ints", IntListArg{{{1, kNone}, {INT64_MAX, kNone}}}},
                          {"mixed", IntListArg{{{0, x}, {7, kNone}}}},
                          {"empty", IntListArg{}},
                          {"floats", FloatListArg{{0.1, 1e308}}},
                          {"bools", BoolListArg{{true, false}}},
                          {"complex", ComplexArg{1.5, -2.5}}},
                         {4, 8});
  b.graph.values[static_cast<size_t>(y)].meta.device = "cuda:1";
  b.graph.values[static_cast<size_t>(y)].meta.strides = {1, 4};
  b.graph.nodes.back().atomic_group = 5;
  b.graph.buffer_updates.push_back({"count", y});
  b.loss(b.mean(b.linear(b.add(y, count), w)));
  b.graph.train_mode = false;
  b.graph.warnings = {"careful"};
  auto graph = b.build();
  EXPECT_TRUE(graph.ok()) << graph.error().text();
  return std::move(graph).value();
}

TEST(GraphCodec, KeepsEveryKindOfArgument) {
  const Graph graph = graph_of_all_arguments();
  const auto back = decode_graph(encode_graph(graph));
  ASSERT_TRUE(back.ok()) << back.error().text();
  EXPECT_EQ(*back, graph);
  const double zero = std::get<double>(*back->nodes[0].find("float"));
  EXPECT_TRUE(std::signbit(zero));
}

RC_GTEST_PROP(GraphCodec, RoundTripIsLossless, (uint64_t seed)) {
  Rng rng(seed);
  auto graph = opdag::testing::random_graph(rng, 5 + static_cast<int>(rng.below(40)));
  RC_ASSERT(graph.ok());
  const std::string bytes = encode_graph(*graph);
  const auto back = decode_graph(bytes);
  RC_ASSERT(back.ok());
  RC_ASSERT(*back == *graph);
  RC_ASSERT(encode_graph(*back) == bytes);
}

RC_GTEST_PROP(GraphCodec, DamagedBytesGiveAnErrorOrAValidGraph, (uint64_t seed)) {
  Rng rng(seed);
  std::string bytes = encode_graph(graph_of_all_arguments());
  for (uint64_t flips = 1 + rng.below(6); flips > 0; --flips) {
    bytes[rng.below(bytes.size())] = static_cast<char>(rng.next());
  }
  if (rng.below(3) == 0) bytes.resize(rng.below(bytes.size()));
  auto graph = decode_graph(bytes);
  if (graph.ok()) RC_ASSERT(validate(*graph).ok());
}

RC_GTEST_PROP(GraphCodec, NoiseIsNoGraph, (const std::string& noise)) {
  RC_ASSERT(!decode_graph(noise).ok());
}

TEST(GraphCodec, EveryTruncationIsRefusedOrValid) {
  const std::string bytes = encode_graph(graph_of_all_arguments());
  for (size_t size = 0; size < bytes.size(); ++size) {
    auto graph = decode_graph(std::string_view(bytes).substr(0, size));
    if (graph.ok()) {
      EXPECT_TRUE(validate(*graph).ok());
    }
  }
}

TEST(GraphCodec, BoundsAreStated) {
  const auto large = decode_graph(std::string(kMaxGraphBytes + 1, 'x'));
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.error().code, Code::kTooLarge);
  const auto empty = decode_graph({});
  ASSERT_FALSE(empty.ok());
  EXPECT_EQ(empty.error().code, Code::kCorrupt);
}

TEST(GraphCodec, ARefusedOperatorDoesNotPass) {
  Graph graph = graph_of_all_arguments();
  graph.nodes[0].op = "aten::from_file";
  const auto back = decode_graph(encode_graph(graph));
  ASSERT_FALSE(back.ok());
  EXPECT_EQ(back.error().code, Code::kRefused);
}

}  // namespace
}  // namespace weft::net
