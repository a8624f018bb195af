// What the targets that import descriptions of models share: the archive around a description, and
// all that happens to an imported graph before it runs.
#pragma once

#include "base/rng.h"
#include "opdag/cut.h"
#include "opdag/derive.h"
#include "opdag/import.h"
#include "opdag/inspect.h"
#include "opdag/op_table.h"
#include "opdag/text.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/pt2_model.h"

namespace weft::fuzz {

inline std::string zipped(std::string_view program, std::string_view weights) {
  weft::testing::ZipWriter zip;
  zip.add("m/data/weights/weight_0", std::string(36, 'w'));
  zip.add("m/data/weights/weight_1", std::string(8, 'n'));
  zip.add("m/data/weights/model_weights_config.json", std::string(weights));
  zip.add("m/models/model.json", std::string(program));
  zip.add("m/byteorder", "little");
  return zip.finish();
}

// Derived graphs, cuts, text.
inline void use(const opdag::Graph& graph) {
  auto text = opdag::to_text(graph);
  auto again = opdag::parse_text(text);
  WEFT_CHECK(again.ok() && *again == graph);
  (void)opdag::derive_eval(graph);
  (void)opdag::promote_f64(graph);
  const auto pruned = opdag::prune_to(graph, {});
  if (!pruned.ok()) return;
  for (const opdag::Node& node : pruned->nodes) (void)opdag::node_cost(*pruned, node);
  Rng rng(1);
  const auto cut = opdag::random_partition(*pruned, 2, rng);
  if (!cut.ok()) return;
  WEFT_CHECK(opdag::check_partition(*pruned, *cut).ok());
  for (int32_t stage = 0; stage < 2; ++stage) (void)opdag::extract_stage(*pruned, *cut, stage);
}

}  // namespace weft::fuzz
