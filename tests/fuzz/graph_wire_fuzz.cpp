// Graphs in protobuf form: what decodes is valid and encodes as itself.
#include "net/codec/graph_codec.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/broker/graphs.h"

std::vector<std::string> weft::fuzz::seeds() {
  return {net::encode_graph(broker::testing::chain_graph(1, 2, 3)),
          net::encode_graph(broker::testing::chain_graph(3, 4, 8))};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const auto graph = net::decode_graph(fuzz::text_of(data, size));
  if (!graph.ok()) return 0;
  const auto again = net::decode_graph(net::encode_graph(*graph));
  WEFT_CHECK(again.ok() && *again == *graph);
  return 0;
}
