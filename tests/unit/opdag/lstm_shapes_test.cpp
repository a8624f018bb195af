// Shapes after an LSTM's last state, from text graphs that say what PyTorch's export says.
#include "opdag/lstm_shapes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "opdag/text.h"

namespace weft::opdag {
namespace {

// A state of two directions, batch 3, width 4; `rest` is values, nodes and output after it.
Result<Graph> graph_of(const std::string& values, const std::string& nodes) {
  const auto value = [](int id, const char* name, const char* sizes, const char* strides) {
    return fmt::format("value %{} \"{}\" tensor float32 {} strides={} offset=0 device=\"cpu\"\n",
                       id, name, sizes, strides);
  };
  std::string text = "weft-graph 1\nmode train\n";
  text += value(0, "x", "[5, 3, 6]", "[18, 6, 1]") + value(1, "h", "[2, 3, 4]", "[12, 4, 1]") +
          value(2, "c", "[2, 3, 4]", "[12, 4, 1]") + value(3, "y", "[5, 3, 8]", "[24, 8, 1]") +
          value(4, "hn", "[2, 1, 3, 4]", "[12, 12, 4, 1]") +
          value(5, "cn", "[2, 1, 3, 4]", "[12, 12, 4, 1]") + values;
  for (int id = 0; id < 3; ++id) {
    text += fmt::format("leaf input %{} \"in{}\" persistent=true trainable=false\n", id, id);
  }
  text += "node 0 %3, %4, %5 = aten::lstm.input(input=%0, hx=tensors[%1, %2], params=tensors[])\n";
  auto graph = parse_text(text + nodes);
  if (!graph.ok()) return graph;
  WEFT_TRY_STATUS(correct_lstm_shapes(*graph));
  return graph;
}

TEST(LstmShapes, LastStatesAreLikeTheFirstOnesAndWhatFollowsIsWorkedOut) {
  const auto graph = graph_of(
      "value %6 \"last\" tensor float32 [1, 3, 4] strides=[12, 4, 1] offset=0 device=\"cpu\"\n"
      "value %7 \"twice\" tensor float32 [1, 3, 4] strides=[12, 4, 1] offset=0 device=\"cpu\"\n"
      "value %8 \"flat\" tensor float32 [12] strides=[1] offset=0 device=\"cpu\"\n",
      "node 1 %6 = aten::select.int(self=%4, dim=0, index=-1)\n"
      "node 2 %7 = aten::add.Tensor(self=%6, other=%6)\n"
      "node 3 %8 = aten::flatten.using_ints(self=%7)\n"
      "output \"out\" %8\n");
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  EXPECT_EQ(graph->value(4).meta.sizes, (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(graph->value(4).meta.strides, (std::vector<int64_t>{12, 4, 1}));
  EXPECT_EQ(graph->value(5).meta.sizes, (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(graph->value(6).meta.sizes, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(graph->value(7).meta.sizes, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(graph->value(8).meta.sizes, (std::vector<int64_t>{12}));
  EXPECT_EQ(graph->value(3).meta.sizes, (std::vector<int64_t>{5, 3, 8}));
}

TEST(LstmShapes, WhatCannotBeWorkedOutIsRefusedByName) {
  const auto graph = graph_of(
      "value %6 \"mean\" tensor float32 [1, 3, 4] strides=[12, 4, 1] offset=0 device=\"cpu\"\n",
      "node 1 %6 = aten::mean.dim(self=%4, dim=[0])\noutput \"out\" %6\n");
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().code, Code::kRefused);
  EXPECT_EQ(graph.error().op, "aten::mean.dim");
}

}  // namespace
}  // namespace weft::opdag
