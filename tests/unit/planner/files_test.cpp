#include "broker/planner/links_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::broker {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr const char* kPeers = R"(
[[peer]]
id = "a"
memory_gib = 8
gflops = 100
memory_gbyte_s = 20
op_us = 5
site = "home"
[[peer]]
id = "b"
site = "home"
up_mbit_s = 20
[[peer]]
id = "c"
site = "lab"
[[site]]
name = "home"
bandwidth_mbit_s = 1000
latency_ms = 0.5
down_mbit_s = 200
)";

std::string error_of(const Status& status) {
  return status.ok() ? "" : status.error().text();
}
std::string peers_error(const std::string& text) {
  const auto world = parse_peers(text, "peers.toml");
  return world.ok() ? "" : world.error().text();
}

TEST(PeersFile, GivesPeersSitesAndLines) {
  const auto world = parse_peers(kPeers, "peers.toml");
  ASSERT_TRUE(world.ok()) << world.error().text();
  ASSERT_EQ(world->peers.size(), 3u);
  EXPECT_EQ(world->peers[0].memory_bytes, uint64_t{8} << 30);
  EXPECT_EQ(world->peers[0].gflops, 100);
  EXPECT_EQ(world->peers[0].memory_gbyte_s, 20);
  EXPECT_EQ(world->peers[0].op_us, 5);
  EXPECT_EQ(world->peers[1].gflops, 0);
  ASSERT_EQ(world->access.size(), 2u);
  EXPECT_EQ(world->access[0].name, "b");
  EXPECT_EQ(world->access[0].up_mbit_s, 20);
  EXPECT_EQ(world->access[1].peers, (std::vector<std::string>{"a", "b"}));
  ASSERT_EQ(world->links.size(), 2u);
  EXPECT_EQ(world->links[0].bandwidth_mbit_s, 1000);
}

TEST(PeersFile, NamesWhatIsWrong) {
  EXPECT_THAT(peers_error(""), HasSubstr("0 [[peer]] tables"));
  EXPECT_THAT(peers_error("[[peer]]\n"), HasSubstr("[[peer]] 1 has no id"));
  EXPECT_THAT(peers_error("[[peer]]\nid='a'\ngflop=3\n"), HasSubstr("unknown key gflop"));
  EXPECT_THAT(peers_error("[[peer]]\nid='a'\ngflops=-3\n"), HasSubstr("gflops must be a number"));
  EXPECT_THAT(peers_error("[[peer]]\nid='a'\ngflops=nan\n"), HasSubstr("gflops must be a number"));
  EXPECT_THAT(peers_error("[[peer]]\nid=3\n"), HasSubstr("id must be a text"));
  EXPECT_THAT(peers_error("[[peer]]\nid='a'\n[[peer]]\nid='a'\n"), HasSubstr("a is there twice"));
  EXPECT_THAT(peers_error("peer = 3\n"), HasSubstr("peer must be tables"));
  EXPECT_THAT(peers_error("[[peer]]\nid='a'\n[[site]]\nname='x'\n"),
              HasSubstr("no peer is in site"));
  EXPECT_THAT(peers_error("[[peer]]\nid='a'\nsite='x'\n[[site]]\nname='x'\nlatency_ms=5\n"
                          "bandwidth_mbit_s=0\n"),
              HasSubstr("bandwidth_mbit_s is 0"));
  EXPECT_THAT(peers_error("links = 1\n"), HasSubstr("unknown key links"));
  EXPECT_THAT(peers_error("[[peer\n"), HasSubstr("line 1"));
}

TEST(LinksFile, ReadsPairsBetweenPeersAndSites) {
  PlannerWorld world = *parse_peers(kPeers, "peers.toml");
  ASSERT_EQ(error_of(add_links("region_a,region_b,delay_ms,bandwidth_gbps\r\n"
                               "# a remark\n\nhome,lab,40,0.5\nhome,moon,1300,1\n",
                               "links.csv", world)),
            "");
  EXPECT_EQ(world.links.size(), 2u + 4u);
  EXPECT_EQ(world.links.back().bandwidth_mbit_s, 500);
  EXPECT_THAT(world.notes, Contains(HasSubstr("1 rows of links.csv name neither")));
  PlannerWorld directed = *parse_peers(kPeers, "peers.toml");
  ASSERT_EQ(error_of(add_links("from,to,latency_ms,bandwidth_mbit_s\na,c,4,50\n", "l", directed)),
            "");
  ASSERT_EQ(directed.links.size(), 3u);
  EXPECT_EQ(directed.links.back().from, "a");
  EXPECT_EQ(directed.links.back().latency_ms, 4);
}

TEST(LinksFile, NamesOfPairsAreEnough) {
  PlannerWorld world;
  ASSERT_EQ(error_of(add_links("a,b,delay_ms,bandwidth_gbps\nOregon,Tokyo,96,0.523\n"
                               "Oregon,Ohio,49,1.1\n",
                               "aws.csv", world)),
            "");
  ASSERT_EQ(world.peers.size(), 3u);
  EXPECT_EQ(world.peers[2].id, "Ohio");
  EXPECT_EQ(world.links.size(), 4u);
}

TEST(LinksFile, ReadsAMatrixWithHoles) {
  PlannerWorld world;
  ASSERT_EQ(error_of(add_links("0,1.3,\n11.0,0,2.5\n0.2,,0\n", "m.csv", world)), "");
  ASSERT_EQ(world.peers.size(), 3u);
  EXPECT_EQ(world.links.size(), 4u);
  EXPECT_EQ(world.links[1].from, "node-1");
  EXPECT_EQ(world.links[1].bandwidth_mbit_s, 11);
  EXPECT_THAT(world.notes, Contains(HasSubstr("2 empty cells")));
}

TEST(LinksFile, AByteOrderMarkIsNoPartOfIt) {
  for (const std::string text : {"from,to,latency_ms,bandwidth_mbit_s\na,b,1,10\n", "0,1\n2,0\n"}) {
    PlannerWorld world;
    ASSERT_EQ(error_of(add_links("\xEF\xBB\xBF" + text, "l.csv", world)), "");
    EXPECT_EQ(world.peers.size(), 2u);
    EXPECT_FALSE(world.links.empty());
  }
}

TEST(LinksFile, RefusesWhatMeansNothing) {
  const auto error = [](const std::string& csv, bool with_peers = false) {
    PlannerWorld world;
    if (with_peers) world = *parse_peers(kPeers, "peers.toml");
    return error_of(add_links(csv, "l.csv", world));
  };
  EXPECT_THAT(error(""), HasSubstr("l.csv is empty"));
  EXPECT_THAT(error("0,-1\n1,0\n"), HasSubstr("line 1: column 2 is \"-1\""));
  EXPECT_THAT(error("0,1\n0,0\n"), HasSubstr("line 2: column 1 is \"0\""));
  EXPECT_THAT(error("0,1\nnan,0\n"), HasSubstr("line 2: column 1 is \"nan\""));
  EXPECT_THAT(error("0,1,2\n1,0\n"), HasSubstr("3 columns, the matrix has 2 rows"));
  EXPECT_THAT(error("0,1\n1,0\n", true), HasSubstr("a matrix of 2 rows for 3 peers"));
  EXPECT_THAT(error("x,y,z\n"), HasSubstr("neither a matrix of numbers nor the header"));
  const std::string head = "from,to,latency_ms,bandwidth_mbit_s\n";
  EXPECT_THAT(error(head + "a,b,1,0\n"), HasSubstr("line 2: it needs two names"));
  EXPECT_THAT(error(head + "a,b,-1,5\n"), HasSubstr("line 2"));
  EXPECT_THAT(error(head + "a,b,1\n"), HasSubstr("3 columns, the header has 4"));
  EXPECT_THAT(error(head + "x,y,1,5\n", true), HasSubstr("names no two peers or sites"));
}

TEST(LinksFile, RowsOfOnePairMustNotDiffer) {
  const auto error = [](const std::string& csv) {
    PlannerWorld world;
    return error_of(add_links(csv, "l.csv", world));
  };
  const std::string directed = "from,to,latency_ms,bandwidth_mbit_s\na,b,1,5\n#\n";
  const std::string both = "a,b,delay_ms,bandwidth_gbps\na,b,1,5\n#\n";
  EXPECT_EQ(error(directed + "a,b,1,5\nb,a,2,7\n"), "");
  EXPECT_EQ(error(both + "a,b,1,5\nb,a,1,5.0\n"), "");
  for (const char* differs : {"a,b,2,5\n", "a,b,1,6\n"}) {
    EXPECT_THAT(error(directed + differs), HasSubstr("line 4: it says something else of a and b "
                                                     "than line 2"));
    EXPECT_THAT(error(both + differs), HasSubstr("line 4")) << differs;
  }
  EXPECT_THAT(error(both + "b,a,1,6\n"), HasSubstr("than line 2"));
}

}  // namespace
}  // namespace weft::broker
