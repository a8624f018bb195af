#include "simulate/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "opdag/cut.h"
#include "opdag/derive.h"
#include "simulate/transformer.h"
#include "simulate/world.h"
#include "worlds.h"

namespace weft::simulate {
namespace {

using ::testing::HasSubstr;
using testing::one_site;

std::string error_of(const std::string& text) {
  const auto scenario = parse_scenario(text, "s.toml");
  return scenario.ok() ? "none" : scenario.error().text();
}

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = one_site();
  text.replace(text.find(from), from.size(), to);
  return text;
}

TEST(Scenario, ErrorsNameTableAndKey) {
  EXPECT_EQ(error_of(one_site()), "none");
  EXPECT_THAT(error_of(one_site("sed = 3\n")), HasSubstr("s.toml: unknown key sed"));
  EXPECT_THAT(error_of(one_site("seed = \"x\"\n")), HasSubstr("seed must be a whole number"));
  EXPECT_THAT(error_of(one_site("compute_jitter = -1\n")), HasSubstr("from 0 to 2"));
  EXPECT_THAT(error_of(one_site("[compression]\npolicy = \"adatopk\"\n")),
              AllOf(HasSubstr("s.toml, [compression]: there is no policy \"adatopk\""),
                    HasSubstr("one of: none (")));
  EXPECT_THAT(error_of(one_site("compression = \"none\"\n")), HasSubstr("must be a table"));
  EXPECT_THAT(error_of(replaced("gflops = 200", "gflop = 200")),
              HasSubstr("[[peers]] 1: unknown key gflop"));
  EXPECT_THAT(error_of(replaced("gflops = 200\n", "")), HasSubstr("\"peer\" have no gflops"));
  EXPECT_THAT(error_of(replaced("site = \"lan\"", "site = \"wan\"")),
              HasSubstr("peer is at site \"wan\", which is none"));
  EXPECT_THAT(error_of(replaced("steps = 20\n", "")), HasSubstr("no steps or no batch"));
  EXPECT_THAT(error_of(replaced("heads = 4", "heads = 3")),
              HasSubstr("width 256 is no multiple of heads 3"));
  EXPECT_THAT(error_of(replaced("heads = 4", "head = 4")), HasSubstr("unknown key head"));
  EXPECT_THAT(error_of(one_site("", "[[site]]\nname = \"far\"\n")),
              HasSubstr("nothing links far and lan"));
  EXPECT_THAT(error_of(one_site("", "[[site]]\nname = \"lan\"\n")), HasSubstr("there twice"));
  EXPECT_THAT(error_of(one_site("", "[[churn]]\ngroup = \"who\"\nlife_s = 1\n")),
              HasSubstr("[[churn]] of \"who\""));
  EXPECT_THAT(error_of(one_site("", "[[churn]]\n")), HasSubstr("either life_s or a trace"));
  EXPECT_THAT(error_of(one_site("", "[[partition]]\nsite = \"x\"\n")), HasSubstr("a partition"));
  EXPECT_THAT(error_of(one_site("[broker]\nheartbeat_s = 20\n")),
              HasSubstr("heartbeats come before"));
  EXPECT_THAT(error_of(one_site("[broker]\ntick_s = 3\n")), HasSubstr("tick_s 3"));
  EXPECT_THAT(error_of(one_site("", "[[peers]]\nname = \"peer-2\"\nsite = \"lan\"\ngflops = 1\n")),
              HasSubstr("two peers are called peer-2@lan"));
  EXPECT_THAT(error_of(one_site("", "[[job]]\nname = \"gpt\"\nfile = \"x.toml\"\n")),
              HasSubstr("two jobs are called gpt"));
  EXPECT_THAT(error_of(one_site("", "[[link]]\nfrom = \"lan\"\nto = \"lan\"\n")),
              HasSubstr("of one site"));
  EXPECT_THAT(error_of(one_site("",
                                "[[site]]\nname = \"home\"\ncount = 3\n[[link]]\nfrom = "
                                "\"lan\"\nto = \"home\"\n")),
              HasSubstr("stands for home-0 to home-2"));
  EXPECT_THAT(error_of("[[site]]\nname = \"a\"\n"), HasSubstr("0 peers and 0 jobs"));
  EXPECT_THAT(error_of("[site]\nname = \"a\"\n"), HasSubstr("must be tables"));
  EXPECT_THAT(error_of("x = [\n"), HasSubstr("s.toml"));
}

TEST(Scenario, ASiteWithACountStandsForSeveralWithPeersInEach) {
  std::string text = replaced("name = \"lan\"", "name = \"lan\"\ncount = 3");
  text += "[[link]]\nlatency_ms = 10\nbandwidth_mbit_s = 10\n";
  text.replace(text.find("[[site]]"), 0, "[broker]\nsite = \"lan-1\"\n");
  const auto scenario = parse_scenario(text, "s.toml");
  ASSERT_TRUE(scenario.ok()) << scenario.error().text();
  ASSERT_EQ(scenario->sites.size(), 3u);
  EXPECT_EQ(scenario->sites[2].name, "lan-2");
  ASSERT_EQ(scenario->peers.size(), 3u);
  EXPECT_EQ(scenario->peers[1].site, "lan-1");
  EXPECT_EQ(World(*scenario).peers().size(), 18u);
}

TEST(Scenario, TracesAreReadInOrderOfTime) {
  const auto rows = parse_trace("# spot\n2000,remove,a\n0,add,a\r\n", "t.csv");
  ASSERT_TRUE(rows.ok());
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_TRUE((*rows)[0].adds);
  EXPECT_EQ((*rows)[1].at_s, 2);
  for (const char* bad :
       {"", "1,add", "x,add,a\n", "-1,add,a\n", "1,join,a\n", "1.5,add,a\n", "1,add,\n"}) {
    EXPECT_FALSE(parse_trace(bad, "t.csv").ok()) << bad;
  }
}

RC_GTEST_PROP(Scenario, AnyTextIsReadOrRefused, (const std::string& text)) {
  (void)parse_scenario(text, "s.toml").ok();
  (void)parse_trace(text, "t.csv").ok();
}

TEST(Transformer, HasTheWeightsAndWorkOfItsSizes) {
  TransformerSpec spec;
  spec.layers = 3;
  spec.width = 64;
  spec.heads = 4;
  spec.tokens = 32;
  spec.vocabulary = 100;
  spec.micro_batch = 2;
  const auto graph = transformer_graph(spec);
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  int64_t weights = 0;
  for (const opdag::Leaf& leaf : graph->leaves) {
    if (leaf.kind == opdag::LeafKind::kParameter) weights += *element_count(leaf.weight.sizes);
  }
  // 12 h^2 and two norms a layer, embedding and head, positions, the last norm.
  EXPECT_EQ(weights, 3 * (12 * 64 * 64 + 4 * 64) + 2 * 100 * 64 + 32 * 64 + 2 * 64);
  EXPECT_GT(opdag::cut_units(*graph).size(), 10u);
  EXPECT_TRUE(opdag::values_with_gradient(*graph)[static_cast<size_t>(graph->outputs[0].value)]);
}

}  // namespace
}  // namespace weft::simulate
