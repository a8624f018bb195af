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
              HasSubstr("nothing links far to lan"));
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

constexpr const char* kThreeSites = R"(
links_file = "wan.csv"
[[site]]
name = "a"
[[site]]
name = "b"
[[site]]
name = "c"
[[peers]]
name = "x"
site = "a"
gflops = 10
[[peers]]
name = "y"
site = "b"
gflops = 10
[[job]]
name = "gpt"
steps = 2
batch = 2
[job.transformer]
layers = 2
)";

Result<Scenario> with_links(const std::string& csv, const std::string& more = "") {
  return parse_scenario(kThreeSites + more, "s.toml", [&](const std::string& path) {
    EXPECT_EQ(path, "wan.csv");
    return Result<std::string>(csv);
  });
}

TEST(Scenario, AMeasuredTableTellsTheWaysOfEachDirection) {
  const auto scenario = with_links(
      "from,to,latency_ms,bandwidth_mbit_s\na,b,5,10\nb,a,7,80\na,b,5,10\nmoon,a,1300,1\n",
      "[[link]]\nlatency_ms = 1\n");
  ASSERT_TRUE(scenario.ok()) << scenario.error().text();
  EXPECT_THAT(scenario->notes, ::testing::ElementsAre(HasSubstr("1 rows of wan.csv name neither")));
  World world(*scenario);
  const SimRoute up = world.route(0, 1), down = world.route(1, 0);
  EXPECT_DOUBLE_EQ(up.latency_s, 0.005);
  EXPECT_DOUBLE_EQ(down.latency_s, 0.007);
  EXPECT_DOUBLE_EQ(world.send(up, 1e6, 0).arrives_s, 0.8 + 0.005);
  EXPECT_DOUBLE_EQ(world.send(down, 1e6, 0).arrives_s, 0.1 + 0.007);
  // The planner is told both, and between others what the [[link]] for all says.
  size_t both = 0;
  for (const broker::PlannerLink& link : world.known().links) {
    if (link.from == "site a" && link.to == "site b") both += link.bandwidth_mbit_s == 10 ? 1 : 0;
    if (link.from == "site b" && link.to == "site a") both += link.bandwidth_mbit_s == 80 ? 1 : 0;
    if (link.from == "site a" && link.to == "site c") {
      EXPECT_EQ(link.latency_ms, 1);
    }
  }
  EXPECT_EQ(both, 2u);
}

TEST(Scenario, AMeasuredTableMayBeOfPairsOrAMatrix) {
  const auto pairs =
      with_links("region_a,region_b,delay_ms,bandwidth_gbps\na,b,5,0.01\nc,a,6,1\nb,c,7,1\n");
  ASSERT_TRUE(pairs.ok()) << pairs.error().text();
  EXPECT_DOUBLE_EQ(World(*pairs).route(1, 0).latency_s, 0.005);
  const auto matrix = with_links("0,10,20\n30,0,40\n50,60,0\n");
  ASSERT_TRUE(matrix.ok()) << matrix.error().text();
  World world(*matrix);
  EXPECT_DOUBLE_EQ(world.send(world.route(1, 0), 3e6, 0).arrives_s, 0.8);
}

// Rows before a [[link]] of the pair, that before the opposite row, that before the [[link]] of
// all.
TEST(Scenario, WhatATableLeavesOpenComesFromLinksOrTheOtherDirection) {
  const std::string table = "from,to,latency_ms,bandwidth_mbit_s\na,b,5,10\na,c,6,20\n";
  const auto scenario = with_links(
      table,
      "[[link]]\nfrom = \"b\"\nto = \"a\"\nlatency_ms = 9\nloss = 0.1\n[[link]]\nlatency_ms = 1\n");
  ASSERT_TRUE(scenario.ok()) << scenario.error().text();
  World world(*scenario);
  EXPECT_DOUBLE_EQ(world.route(0, 1).latency_s, 0.005);
  EXPECT_DOUBLE_EQ(world.route(1, 0).latency_s, 0.009);
  EXPECT_EQ(world.route(0, 1).loss, 0.1);
  const auto latency = [&](const std::string& from, const std::string& to) {
    for (const broker::PlannerLink& link : world.known().links) {
      if (link.from == "site " + from && link.to == "site " + to) return link.latency_ms;
    }
    return -1.0;
  };
  EXPECT_EQ(latency("c", "a"), 6);
  EXPECT_EQ(latency("b", "c"), 1);
  EXPECT_THAT(scenario->notes, ::testing::ElementsAre(HasSubstr("one direction only of 1 ways")));
}

TEST(Scenario, ARowOfASiteWithACountHoldsForEachOfThem) {
  std::string text = kThreeSites;
  text.replace(text.find("name = \"b\""), 10, "name = \"b\"\ncount = 2");
  const auto scenario = parse_scenario(text, "s.toml", [](const std::string&) {
    return Result<std::string>(
        "from,to,latency_ms,bandwidth_mbit_s\na,b,5,10\nb,b,2,10\nc,a,1,1\nc,b-0,3,1\nc,b-1,4,1\n");
  });
  ASSERT_TRUE(scenario.ok()) << scenario.error().text();
  World world(*scenario);  // peers: x of a, y of b-0 and of b-1
  EXPECT_DOUBLE_EQ(world.route(0, 1).latency_s, 0.005);
  EXPECT_DOUBLE_EQ(world.route(0, 2).latency_s, 0.005);
  EXPECT_DOUBLE_EQ(world.route(1, 2).latency_s, 0.002);
}

TEST(Scenario, ATableThatIsWrongOrLeavesAWayOpenIsRefused) {
  const auto error = [](const Result<Scenario>& scenario) {
    return scenario.ok() ? std::string("none") : scenario.error().text();
  };
  const std::string heading = "from,to,latency_ms,bandwidth_mbit_s\n";
  EXPECT_THAT(error(with_links(heading + "a,b,5,10\n")), HasSubstr("nothing links"));
  EXPECT_THAT(error(with_links("0,10,20\n30,0,\n50,,0\n")), HasSubstr("nothing links b to c"));
  EXPECT_THAT(error(with_links(heading + "a,b,5,0\n")), HasSubstr("wan.csv, line 2"));
  EXPECT_THAT(error(with_links(heading + "x,y,5,1\n")),
              AllOf(HasSubstr("names no two"), HasSubstr("are here the [[site]]s")));
  EXPECT_THAT(error(with_links("0,1\n1,0\n")), HasSubstr("matrix of 2 rows for 3"));
  EXPECT_THAT(error(with_links(heading + "a,b,5,10\n",
                               "[[link]]\nlatency_ms = 1\n[[slowdown]]\nfrom = \"a\"\nto = "
                               "\"c\"\nshare = 0.5\n")),
              HasSubstr("has no bandwidth_mbit_s"));
  EXPECT_THAT(error(parse_scenario(kThreeSites, "s.toml")), HasSubstr("cannot be read here"));
  EXPECT_THAT(error(parse_scenario(kThreeSites, "s.toml",
                                   [](const std::string&) -> Result<std::string> {
                                     return make_error(Code::kNotFound, "wan.csv is not there");
                                   })),
              HasSubstr("wan.csv is not there"));
  std::string text = kThreeSites;
  EXPECT_THAT(error(parse_scenario(text.replace(text.find("\"wan.csv\""), 9, "\"\""), "s.toml")),
              HasSubstr("links_file names no file"));
  EXPECT_THAT(error(parse_scenario(text.replace(text.find("\"\""), 2, "5"), "s.toml")),
              HasSubstr("links_file must be"));
  std::string two = kThreeSites;
  two.replace(two.find("name = \"b\""), 10, "name = \"b\"\ncount = 2");
  EXPECT_THAT(error(parse_scenario(two, "s.toml",
                                   [&](const std::string&) {
                                     return Result<std::string>(heading + "a,b,5,1\na,b-0,6,1\n");
                                   })),
              HasSubstr("says two things of the way from a to b-0"));
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
