// The text form of graphs, which weft-worker reads. What parses is valid and prints as itself.
#include "opdag/text.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/broker/graphs.h"

std::vector<std::string> weft::fuzz::seeds() {
  return {opdag::to_text(broker::testing::chain_graph(1, 2, 3)),
          opdag::to_text(broker::testing::chain_graph(3, 4, 8)),
          "weft-graph 1\nmode train\n"
          "value %0 \"x\" tensor float32 [2, 3] strides=[3, 1] offset=0 device=\"cpu\"\n"
          "value %1 \"y\" tensor float32 [] strides=[] offset=0 device=\"cpu\"\n"
          "leaf input %0 \"x\" persistent=true trainable=false\n"
          "node 0 %1 = aten::mean(self=%0, dtype=none)\n"
          "output \"loss\" %1\nloss 0\n"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const auto graph = opdag::parse_text(fuzz::text_of(data, size));
  if (!graph.ok()) return 0;
  const auto again = opdag::parse_text(opdag::to_text(*graph));
  WEFT_CHECK(again.ok() && *again == *graph);
  return 0;
}
