// What the operator knows of a network, joined with the peers that are there.
#include "broker/coordinator/planner_inputs.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "broker/settings.h"

namespace weft::broker {
namespace {

Peer peer(const std::string& id, const std::string& name, uint64_t memory) {
  Peer made;
  made.id = id;
  made.name = name;
  made.capabilities.cores = 4;
  made.capabilities.memory_bytes = memory;
  return made;
}

constexpr const char* kPeers = R"(
[[peer]]
id = "fast"
gflops = 5000
memory_gib = 1
[[peer]]
id = "slow"
gflops = 100
up_mbit_s = 10
[[peer]]
id = "elsewhere"
)";
constexpr const char* kLinks =
    "from,to,latency_ms,bandwidth_mbit_s\n"
    "fast,slow,5,100\nslow,fast,6,20\nfast,elsewhere,1,1\n";

TEST(PlannerInputs, KnownPeersAndLinksAreJoinedByName) {
  PlannerWorld known = *parse_peers(kPeers, "peers.toml");
  ASSERT_TRUE(add_links(kLinks, "links.csv", known).ok());
  const Peer a = peer("p-1", "fast", uint64_t{8} << 30), b = peer("p-2", "slow", 0),
             c = peer("p-3", "slow", 77), stranger = peer("p-4", "new", 1000);
  const PlannerInputs inputs = planner_inputs({&a, &b, &c, &stranger}, known, {});
  ASSERT_EQ(inputs.peers.size(), 4u);
  EXPECT_EQ(inputs.peers[0].id, "p-1");
  EXPECT_EQ(inputs.peers[0].gflops, 5000);
  EXPECT_EQ(inputs.peers[0].memory_bytes, uint64_t{1} << 30);  // of 8 that it says itself
  EXPECT_EQ(inputs.peers[2].gflops, 100);
  EXPECT_EQ(inputs.peers[3].gflops, 0);
  EXPECT_EQ(inputs.peers[3].memory_bytes, 1000u);
  // Two peers are called slow: links of fast to and from each.
  ASSERT_EQ(inputs.links.size(), 4u);
  int from_fast = 0;
  for (const PlannerLink& link : inputs.links) {
    if (link.from != "p-1") continue;
    ++from_fast;
    EXPECT_EQ(link.latency_ms, 5);
    EXPECT_EQ(link.bandwidth_mbit_s, 100);
  }
  EXPECT_EQ(from_fast, 2);
  ASSERT_EQ(inputs.access.size(), 1u);
  EXPECT_EQ(inputs.access[0].peers, (std::vector<std::string>{"p-2", "p-3"}));
  EXPECT_EQ(inputs.access[0].up_mbit_s, 10);
}

TEST(PlannerInputs, LinksOfWholeGroupsStayWhatTheyAre) {
  PlannerWorld known = *parse_peers(kPeers, "peers.toml");
  known.access.push_back({"site x", {"fast", "slow"}, 0, 0});
  known.links.push_back({"site x", "site x", 3, 30});
  const Peer a = peer("p-1", "fast", 0), b = peer("p-2", "slow", 0);
  const PlannerInputs inputs = planner_inputs({&a, &b}, known, {});
  ASSERT_FALSE(inputs.links.empty());
  EXPECT_EQ(inputs.links.back().from, "site x");
  EXPECT_EQ(inputs.access.back().peers, (std::vector<std::string>{"p-1", "p-2"}));
}

TEST(PlannerInputs, WhatTheOperatorWroteCountsMoreThanWhatWasMeasured) {
  const PlannerWorld known = *parse_peers(kPeers, "peers.toml");
  Peer written = peer("p-1", "fast", 10), measured = peer("p-2", "elsewhere", 10);
  written.profile = measured.profile = std::make_shared<const job::DeviceProfile>();
  written.correction = measured.correction = {1.25, 9};
  const PlannerInputs inputs = planner_inputs({&written, &measured}, known, {});
  EXPECT_EQ(inputs.peers[0].profile, nullptr);
  EXPECT_EQ(inputs.peers[0].gflops, 5000);
  EXPECT_EQ(inputs.peers[0].correction, 1);
  EXPECT_EQ(inputs.peers[1].profile, measured.profile);
  EXPECT_EQ(inputs.peers[1].correction, 1.25);
  EXPECT_TRUE(inputs.peers[1].speed_known());
}

TEST(PlannerInputs, MemoryIsWhatAPeerTellsUnlessTheOperatorWroteIt) {
  const PlannerWorld known = *parse_peers(kPeers, "peers.toml");
  Peer written = peer("p-1", "fast", uint64_t{8} << 30), told = peer("p-2", "slow", 1000);
  written.free_memory_bytes = uint64_t{3} << 20;
  told.free_memory_bytes = 400;
  Peer card = peer("p-3", "new", 1000);
  card.capabilities.device = "cuda:0";
  card.capabilities.device_memory_bytes = 5000;
  // Its daemon sees no memory; what was measured on another device says nothing of it.
  Peer part = card, moved = card;
  part.capabilities.device_memory_bytes = moved.capabilities.device_memory_bytes = 0;
  auto measured = std::make_shared<job::DeviceProfile>();
  measured->device = "cuda:0";
  measured->memory_total_bytes = 700;
  part.profile = moved.profile = measured;
  moved.capabilities.device = "cuda:1";
  const auto peers = planner_peers({&written, &told, &card, &part, &moved}, known, {});
  EXPECT_EQ(peers[0].memory_bytes, uint64_t{1} << 30);
  EXPECT_EQ(peers[0].free_memory_bytes, 0u) << "he knows what the machine is free to give";
  EXPECT_EQ(peers[1].memory_bytes, 1000u);
  EXPECT_EQ(peers[1].free_memory_bytes, 400u);
  EXPECT_EQ(peers[2].memory_bytes, 5000u);
  EXPECT_TRUE(peers[2].card && peers[3].card && !peers[0].card && !peers[1].card);
  EXPECT_EQ(peers[2].free_memory_bytes, 0u) << "unknown";
  EXPECT_EQ(peers[3].memory_bytes, 700u);
  EXPECT_EQ(peers[4].memory_bytes, 1000u) << "the host's";
}

TEST(PlannerInputs, NothingKnownIsNothingAssumedHere) {
  const Peer a = peer("p-1", "x", 10);
  const PlannerInputs inputs = planner_inputs({&a}, {}, {});
  EXPECT_EQ(inputs.peers.size(), 1u);
  EXPECT_TRUE(inputs.links.empty());
  EXPECT_TRUE(inputs.access.empty());
}

TEST(PlannerInputs, SettingsReadTheFilesAndNameWhatIsWrong) {
  const auto folder = std::filesystem::path(::testing::TempDir());
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name) << text;
    return (folder / name).string();
  };
  Config config = make_config();
  ASSERT_TRUE(config.set_flag("peers_file", write("peers.toml", kPeers)).ok());
  ASSERT_TRUE(config.set_flag("links_file", write("links.csv", kLinks)).ok());
  const auto options = service_options(config);
  ASSERT_TRUE(options.ok()) << options.error().text();
  EXPECT_EQ(options->core.known.peers.size(), 3u);
  EXPECT_EQ(options->core.known.links.size(), 3u);
  write("links.csv", "from,to,latency_ms,bandwidth_mbit_s\nfast,slow,5,-1\n");
  const auto wrong = service_options(config);
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().text().find("links.csv"), std::string::npos) << wrong.error().text();
  ASSERT_TRUE(config.set_flag("peers_file", (folder / "nowhere.toml").string()).ok());
  EXPECT_FALSE(service_options(config).ok());
}

}  // namespace
}  // namespace weft::broker
