// What is inferred of random networks, against the truth.
#include "broker/links/infer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "synthetic_network.h"

namespace weft::broker {
namespace {

std::vector<std::string> ids_of(SyntheticNetwork& network) {
  std::vector<std::string> ids;
  for (const LinkPeer& peer : network.peers()) ids.push_back(peer.id);
  return ids;
}

// Homes and labs that only their access lines limit.
SyntheticNetwork homes(uint64_t seed, size_t sites, size_t most_hosts) {
  SyntheticNetwork network(seed);
  Rng rng(seed * 77 + 5);
  for (size_t i = 0; i < sites; ++i) {
    SyntheticSite site;
    site.x_ms = 60 * rng.uniform();
    site.y_ms = 30 * rng.uniform();
    site.height_ms = 1 + 12 * rng.uniform();
    site.up_mbit_s = std::exp(std::log(8.0) + rng.uniform() * std::log(1000 / 8.0));
    site.down_mbit_s = site.up_mbit_s * (1 + 9 * rng.uniform());
    site.lan_mbit_s = site.down_mbit_s * (2 + 8 * rng.uniform());
    network.add_site(site, 1 + rng.below(most_hosts), rng.below(2) == 0);
  }
  return network;
}

struct Deviation {
  std::vector<double> rate, latency;  // inferred / true
  size_t outside = 0, missing = 0;
};

Deviation compare(SyntheticNetwork& network, const LinkView& view) {
  Deviation result;
  for (const LinkEstimate& link : view.links) {
    const double truth = network.latency_ms(link.from, link.to);
    if (link.bandwidth_mbit_s > 0) {
      result.rate.push_back(link.bandwidth_mbit_s / network.mbit_s(link.from, link.to));
    } else {
      ++result.missing;
    }
    result.latency.push_back(link.latency_ms / truth);
    const double noise = 0.07 * truth + 0.1;
    if (truth < link.latency_low_ms - noise || truth > link.latency_high_ms + noise) {
      ++result.outside;
    }
  }
  std::sort(result.rate.begin(), result.rate.end());
  std::sort(result.latency.begin(), result.latency.end());
  return result;
}

TEST(InferLinks, HomesAreInferredWithinBounds) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SyntheticNetwork network = homes(seed, 24, 3);
    LinkBook book;
    int64_t now = 1000;
    network.measure(book, now);
    const LinkView view = book.view(ids_of(network));
    const size_t n = network.peers().size();
    ASSERT_EQ(view.links.size(), n * (n - 1)) << "no holes, seed " << seed;
    const Deviation off = compare(network, view);
    EXPECT_EQ(off.missing, 0u);
    EXPECT_EQ(off.outside, 0u) << "latency bounds, seed " << seed;
    // Never more than the lines carry; and where the landmarks are fast enough, as much.
    EXPECT_LT(off.rate.back(), 1.1) << seed;
    EXPECT_GT(off.rate[off.rate.size() / 10], 0.75) << seed;
    EXPECT_NEAR(off.rate[off.rate.size() / 2], 1, 0.1) << seed;
    // The middle of its bounds: half of all within a factor of 1.5, nearly all within a factor
    // of 2.3.
    EXPECT_GT(off.latency[off.latency.size() / 20], 0.5) << seed;
    EXPECT_GT(off.latency[off.latency.size() / 4], 0.7) << seed;
    EXPECT_LT(off.latency[off.latency.size() * 3 / 4], 1.5) << seed;
    EXPECT_LT(off.latency[off.latency.size() * 19 / 20], 2.3) << seed;
  }
}

TEST(InferLinks, SitesAreFoundAndTheirLinesToldFromPairs) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SyntheticNetwork network = homes(seed, 10, 4);
    LinkBook book;
    int64_t now = 1000;
    network.measure(book, now);
    const LinkView view = book.view(ids_of(network));
    for (const LinkEstimate& link : view.links) {
      const bool together = network.site_of(link.from) == network.site_of(link.to);
      EXPECT_EQ(link.path == PathClass::kLan, together) << link.from << " " << link.to;
    }
    std::set<size_t> seen;
    for (const PlannerAccess& access : view.access) {
      const size_t site = network.site_of(access.peers.front());
      EXPECT_TRUE(seen.insert(site).second) << "one line a site";
      for (const std::string& peer : access.peers) EXPECT_EQ(network.site_of(peer), site);
      if (access.up_mbit_s > 0) {
        EXPECT_NEAR(access.up_mbit_s / network.site(site).up_mbit_s, 1, 0.12);
      }
      if (access.down_mbit_s > 0) {
        // Seen only where others can fill it.
        EXPECT_LT(access.down_mbit_s / network.site(site).down_mbit_s, 1.12);
      }
    }
    EXPECT_GE(seen.size(), 7u) << "uplinks are slow: nearly all are seen to be shared";
  }
}

// Two peers of one address and this round trip.
PathClass path_with(const std::string& address, double round_trip_s) {
  LinkBook book;
  std::vector<LinkPeer> peers(2);
  for (size_t i = 0; i < 2; ++i) peers[i] = {i == 0 ? "a" : "b", address, true, false, true, ""};
  book.set_peers(peers);
  EXPECT_FALSE(book.add_traffic({"a", "b"}, {1e8, round_trip_s}, 1000).empty());
  return book.view({"a", "b"}).links.front().path;
}

TEST(InferLinks, OneMachineIsToldByItsAddressOrARoundTripWithoutANetwork) {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "::1", "localhost"}) {
    EXPECT_EQ(path_with(address, 0.0012), PathClass::kSameHost) << address << ", a busy machine";
  }
  // Behind one address there may be a local network.
  EXPECT_EQ(path_with("203.0.113.7", 0.0001), PathClass::kSameHost);
  EXPECT_EQ(path_with("203.0.113.7", 0.0012), PathClass::kLan);
}

// No lines: every pair of hosts in different sites has the rate of that pair of sites.
TEST(InferLinks, RatesOfPairsAreNoAccessLines) {
  size_t untested = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SyntheticNetwork network(seed);
    Rng rng(seed);
    for (size_t i = 0; i < 4; ++i) {
      network.add_site({.x_ms = 40 * rng.uniform(), .y_ms = 40 * rng.uniform(), .height_ms = 2}, 4);
    }
    const double wan = 20 + 100 * rng.uniform();
    for (size_t a = 0; a < 4; ++a) {
      for (size_t b = 0; b < 4; ++b) {
        if (a != b) network.set_pair(a, b, wan * (0.8 + 0.4 * rng.uniform()));
      }
    }
    LinkBook book;
    int64_t now = 1000;
    network.measure(book, now);
    const LinkView view = book.view(ids_of(network));
    for (const PlannerAccess& line : view.access) {
      EXPECT_EQ(line.up_assumed, line.up_mbit_s > 0) << "seed " << seed;
      EXPECT_EQ(line.down_assumed, line.down_mbit_s > 0) << "seed " << seed;
      ++untested;
    }
    const Deviation off = compare(network, view);
    EXPECT_LT(off.rate.back(), 1.65) << "pairs of sites differ by half, seed " << seed;
    EXPECT_GT(off.rate.front(), 0.6) << seed;
  }
  EXPECT_LE(untested, 3u) << "a site that holds three of the four landmarks has one to test with";
}

// Each of two far ones carried 1e6 and 2e6 bytes a second from a.
LinkBook book_of_two_ways() {
  LinkBook book;
  std::vector<LinkPeer> peers(3);
  for (size_t i = 0; i < 3; ++i) {
    const std::string id(1, static_cast<char>('a' + i));
    peers[i] = {id, "host-" + id, true, false, true, ""};
  }
  book.set_peers(peers);
  EXPECT_FALSE(book.add_traffic({"a", "b"}, {1e6, 0.03}, 1000).empty());
  EXPECT_FALSE(book.add_traffic({"a", "c"}, {2e6, 0.04}, 1000).empty());
  return book;
}

TEST(InferLinks, FlowsThatWereNotTestedCountAsOnesThatShareALine) {
  const LinkBook book = book_of_two_ways();
  const LinkView view = book.view({"a", "b", "c"});
  ASSERT_EQ(view.access.size(), 3u);
  EXPECT_EQ(view.access[0].peers, std::vector<std::string>{"a"});
  EXPECT_TRUE(view.access[0].up_assumed);
  EXPECT_FALSE(view.access[0].down_assumed);
  EXPECT_NEAR(view.access[0].up_mbit_s, 16, 1e-9) << "the best that was seen";
  EXPECT_EQ(view.access[0].down_mbit_s, 0) << "nothing was";
  EXPECT_EQ(book.line("a")->shared_up_mbit_s, 0) << "nobody has seen it";
  // A single flow shares with nobody.
  EXPECT_TRUE(book.view({"a", "b"}).access.empty());
}

TEST(InferLinks, OnlyWhatATestLeavesOpenIsAssumed) {
  for (const double share : {0.5, 0.75, 1.0}) {
    std::map<std::string, LinkPeer> peers;
    std::map<LinkKey, LinkEntry> records;
    for (const std::string id : {"a", "b", "c"}) {
      peers[id] = {id, "host-" + id, true, false, true, ""};
      if (id == "a") continue;
      LinkFit fit;
      fit.latency_s = 0.02;
      fit.seconds_per_byte = 1e-6;
      records[{"a", id}].fit = fit;
    }
    const LineTest test{1000, share, share * 2e6};
    const Structure structure(peers, records, {{{"a", false}, test}}, {});
    const size_t site = structure.site_of(*structure.find("a"));
    EXPECT_EQ(structure.shared_line(site, false).has_value(), share < 0.7) << share;
    const auto assumed = structure.assumed_line(site, false);
    EXPECT_EQ(assumed.has_value(), share == 0.75) << "nothing was concluded";
    EXPECT_NEAR(assumed.value_or(1.5e6), 1.5e6, 1) << "both at once";
  }
}

// An order of peers is made of short ways: which these are is measured, where bounds do not say it.
TEST(InferLinks, WhoIsNearestIsKnown) {
  size_t right = 0, by_landmarks = 0, all = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto known = [&](size_t probes) {
      SyntheticNetwork network = homes(seed, 12, 1);
      LinkOptions options;
      options.neighbours = probes == 0 ? 0 : options.neighbours;
      options.nearest = probes;
      LinkBook book(options);
      int64_t now = 1000;
      network.measure(book, now);
      std::map<std::string, LinkEstimate> nearest;
      for (const LinkEstimate& link : book.view(ids_of(network)).links) {
        const auto [at, first] = nearest.try_emplace(link.from, link);
        if (!first && link.latency_ms < at->second.latency_ms) at->second = link;
      }
      size_t count = 0;
      for (const auto& [id, taken] : nearest) {
        double least = 1e9;
        for (const LinkPeer& other : network.peers()) {
          if (other.id != id) least = std::min(least, network.latency_ms(id, other.id));
        }
        if (network.latency_ms(id, taken.to) < 1.1 * least) ++count;
      }
      all += nearest.size();
      return count;
    };
    right += known(LinkOptions{}.nearest);
    by_landmarks += known(0);
  }
  all /= 2;
  EXPECT_GT(right, all * 95 / 100);
  EXPECT_LT(by_landmarks, all * 85 / 100) << "this network is no test of it";
}

// Peers that cannot reach each other take nobody's turn: the nearest that can be probed are.
TEST(InferLinks, TheNearestAreThoseThatCanBeProbed) {
  constexpr size_t kSites = 24;
  SyntheticNetwork names(1);
  for (size_t i = 0; i < kSites; ++i) names.add_site({}, 1);
  std::vector<std::string> sorted = ids_of(names);
  std::sort(sorted.begin(), sorted.end());
  SyntheticNetwork network(1);
  std::vector<bool> behind_nat(kSites);
  for (size_t i = 0; i < kSites; ++i) {
    const auto rank = static_cast<size_t>(
        std::find(sorted.begin(), sorted.end(), names.peers()[i].id) - sorted.begin());
    // In the middle, and slow, so that none of them becomes a landmark.
    behind_nat[i] = rank >= kSites - 9;
    const auto x = static_cast<double>(rank);
    const double rate = behind_nat[i] ? 10 : 500;
    network.add_site({.x_ms = behind_nat[i]   ? 35 + x
                              : rank % 2 == 0 ? 2 * x
                                              : 100 - 2 * x,
                      .height_ms = 4,
                      .up_mbit_s = rate,
                      .down_mbit_s = 2 * rate},
                     1);
    network.peers().back().dialable = !behind_nat[i];
  }
  LinkBook book;
  int64_t now = 1000;
  network.measure(book, now);
  for (size_t i = 0; i < kSites; ++i) {
    if (!behind_nat[i]) continue;
    size_t others = 0;
    for (const LinkPeer& other : network.peers()) {
      if (book.find({network.peers()[i].id, other.id}) != nullptr) ++others;
    }
    EXPECT_GE(others, LinkOptions{}.landmarks + 2) << network.peers()[i].id;
  }
}

TEST(InferLinks, ProbesGrowWithPeersNotWithPairs) {
  for (const size_t sites : {10u, 40u, 160u}) {
    SyntheticNetwork network = homes(3, sites, 3);
    LinkBook book;
    int64_t now = 1000;
    const size_t probes = network.measure(book, now);
    const size_t n = network.peers().size();
    // Landmarks, neighbours and the nearest both ways, two tests of a line; joining sites.
    EXPECT_LE(probes, n * (2 * (4 + 2 + 3) + 2)) << n;
    EXPECT_EQ(probes, book.probes());
  }
}

TEST(InferLinks, TheSameSeedGivesTheSameNetwork) {
  std::vector<std::string> texts;
  for (int run = 0; run < 2; ++run) {
    SyntheticNetwork network = homes(9, 12, 3);
    LinkBook book;
    int64_t now = 1000;
    network.measure(book, now);
    std::string text;
    for (const LinkEstimate& link : book.view(ids_of(network)).links) {
      text += link.from + link.to + std::to_string(link.latency_ms) + " " +
              std::to_string(link.bandwidth_mbit_s) + "\n";
    }
    texts.push_back(text);
  }
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(InferLinks, WhatNobodyCouldMeasureIsAHole) {
  SyntheticNetwork network = homes(4, 6, 1);
  auto& peers = network.peers();
  for (LinkPeer& peer : peers) peer.dialable = &peer != &peers[0] && &peer != &peers[1];
  LinkBook book;
  int64_t now = 1000;
  network.measure(book, now);
  const auto find = [&](size_t a, size_t b) {
    const LinkView view = book.view({peers[a].id, peers[b].id});
    const auto found = std::find_if(view.links.begin(), view.links.end(), [&](const auto& link) {
      return link.from == peers[a].id && link.to == peers[b].id;
    });
    return found == view.links.end() ? LinkEstimate{} : *found;
  };
  EXPECT_FALSE(find(0, 1).measured) << "neither can be dialled";
  EXPECT_GT(find(0, 1).latency_ms, 0) << "but both were measured against others";
  EXPECT_TRUE(find(0, 5).measured && find(5, 0).measured) << "the one that can dial asks for both";

  peers[2].idle = false;  // came just now, or works: nothing was measured of a seventh
  LinkPeer stranger{"stranger", "far", false, false, true, ""};
  peers.push_back(stranger);
  book.set_peers(peers);
  EXPECT_TRUE(book.view({"stranger", peers[0].id}).links.empty());
  EXPECT_TRUE(book.view({"stranger", "nobody"}).links.empty());
  EXPECT_TRUE(book.view({}).links.empty());
}

}  // namespace
}  // namespace weft::broker
