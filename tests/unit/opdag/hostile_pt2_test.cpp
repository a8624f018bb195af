// Archives whose description is damaged in structure, not only in bytes: whatever stands there, the
// importer answers with an error of bounded length, or with a graph every later step can take.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/rng.h"
#include "opdag/cut.h"
#include "opdag/derive.h"
#include "opdag/inspect.h"
#include "opdag/text.h"
#include "tests/support/pt2_model.h"

namespace weft::opdag {
namespace {

using testing::Json;
using testing::Pt2Model;

void collect(Json& json, std::vector<Json*>& places) {
  places.push_back(&json);
  if (!json.is_structured()) return;
  for (Json& child : json) collect(child, places);
}

Json odd_value(Rng& rng) {
  const Json values[] = {nullptr,
                         Json::object(),
                         Json::array(),
                         -1,
                         0,
                         7,
                         INT64_MAX,
                         INT64_MIN,
                         UINT64_MAX,
                         int64_t{1} << 40,
                         1e300,
                         2.5,
                         true,
                         "",
                         "../../etc/passwd",
                         Json{{"as_int", INT64_MAX}},
                         Json{{"as_sym_int", Json::object()}},
                         Json{{"as_sym_int", {{"as_name", "s0"}}}},
                         Json{{"as_tensor", {{"name", "x"}}}}};
  return values[rng.below(std::size(values))];
}

void damage(Json& json, Rng& rng) {
  std::vector<Json*> places;
  collect(json, places);
  Json& place = *places[rng.below(places.size())];
  switch (rng.below(4)) {
    case 0: {  // a piece of elsewhere
      Json piece = *places[rng.below(places.size())];
      place = std::move(piece);
      break;
    }
    case 1:  // something missing
      if (place.is_structured() && !place.empty()) {
        auto it = place.begin();
        std::advance(it, rng.below(place.size()));
        place.erase(it);
        break;
      }
      [[fallthrough]];
    case 2:  // something twice
      if (place.is_array() && !place.empty()) {
        Json item = place[rng.below(place.size())];
        place.push_back(std::move(item));
        break;
      }
      [[fallthrough]];
    default:
      place = odd_value(rng);
  }
}

void use_everything(const Graph& graph) {
  const auto text = parse_text(to_text(graph));
  RC_ASSERT(text.ok());
  RC_ASSERT(*text == graph);
  for (const auto& derived : {derive_eval(graph), promote_f64(graph), prune_to(graph, {})}) {
    if (!derived.ok()) continue;
    Graph copy = *derived;
    RC_ASSERT(validate(copy).ok());
  }
  Rng rng(1);
  const auto partition = random_partition(graph, 2, rng);
  if (!partition.ok()) return;
  RC_ASSERT(extract_stage(graph, *partition, 0).ok());
  RC_ASSERT(extract_stage(graph, *partition, 1).ok());
}

RC_GTEST_PROP(HostilePt2, DamagedDescriptionsAreErrorsOrGraphs, (uint64_t seed)) {
  Rng rng(seed);
  Pt2Model model;
  for (uint64_t count = 1 + rng.below(3); count > 0; --count) {
    damage(rng.below(4) == 0 ? model.weights : model.program, rng);
  }
  for (const bool keep_refused : {false, true}) {
    const auto graph = model.import(ImportOptions{keep_refused});
    if (!graph.ok()) {
      RC_ASSERT(graph.error().text().size() < 5000u);
      continue;
    }
    RC_ASSERT(!to_text(summarize(*graph)).empty());
    if (!keep_refused) use_everything(*graph);
  }
}

TEST(HostilePt2, NumbersThatAreNoIntegersAreRefused) {
  for (const Json& number : {Json(1e300), Json(2.5), Json(true), Json(UINT64_MAX), Json("3")}) {
    Pt2Model model;
    model.value("x")["sizes"][0] = {{"as_int", number}};
    const auto graph = model.import();
    ASSERT_FALSE(graph.ok()) << number.dump();
    EXPECT_EQ(graph.error().code, Code::kCorrupt);
  }
}

TEST(HostilePt2, DeepNestingIsRefusedBeforeItIsParsed) {
  const std::string deep(1 << 20, '[');
  EXPECT_FALSE(Pt2Model().import_json(deep).ok());
  EXPECT_FALSE(Pt2Model().import_json("{\"a\":" + deep).ok());
}

TEST(HostilePt2, AnEmptySymbolIsNoCrashWhereRefusedOperatorsAreKept) {
  Pt2Model model;
  model.nodes()[2]["outputs"] = {{{"as_sym_int", Json::object()}}};
  EXPECT_FALSE(model.import(ImportOptions{true}).ok());
}

// Uninitialised memory of the worker is not for strangers to read.
TEST(HostilePt2, RawMemoryBecomesZeros) {
  Pt2Model model;
  model.nodes()[2] = testing::node("torch.ops.aten.empty.memory_format",
                                   {testing::argument("size", {{"as_ints", {2, 3}}}),
                                    testing::argument("memory_format", {{"as_memory_format", 1}})},
                                   {testing::tensor("linear")});
  const auto graph = model.import();
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const Node& node = graph->nodes[1];
  EXPECT_EQ(node.op, "aten::zeros");
  EXPECT_EQ(node.find("memory_format"), nullptr);
}

}  // namespace
}  // namespace weft::opdag
