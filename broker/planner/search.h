// OP-Fence: the search for the best layout of a problem. Pure: the same problem gives the same
// answer everywhere.
//
// 1. Peers are clustered by bandwidth; the tree gives sites and a path through all peers.
// 2. Orders: the path and orders by memory and speed, sites permuted, each group of the tree
//    alone; of few peers all orders, and each site as a problem of its own. For each the exact
//    split (split.h), which may skip any peer.
// 3. Local search on the best: swap, replace, reverse, move a boundary or a stage, drop or add one,
//    again from a few moves away (of a fixed seed), and the exact split for the order found.
// 4. The best by the closed form are played (pipeline.h), with the best single peer and the best
//    single site always among them; no answer is worse than either.
//
// Of many peers 1 to 3 run over parts of them (sites, sites close together, the most promising of
// all), with fewer places to cut; what they found is refined with all places among the peers it
// uses and those like them. Where nothing was found, all places are tried at once, unless memory
// rules that out. A site's peers are in its part with the slowest first, too: with little
// memory the order of unequal peers decides what fits.
//
// The work is bounded by counted operations, not by a clock: half a second to one for 512 peers and
// 200 units. "auto" takes two searches, at the same time (planner.cpp).
#pragma once

#include <optional>
#include <vector>

#include "broker/planner/problem.h"

namespace weft::broker {

// Of so many peers all orders, and each site by itself, can be looked at.
inline constexpr size_t kFewPeers = 12;

struct Found {
  std::vector<Scored> layouts;  // best first, distinct; empty where memory allows none
  std::optional<Scored> single_peer, single_site;  // where any fits (and as many stages as asked)
  std::vector<std::vector<int32_t>> sites;         // peers that stand close together
};

struct SearchOptions {
  size_t keep = 12;         // layouts that are played and given back
  double operations = 3e8;  // about as many basic operations
  bool each_site = true;    // of few peers each site is searched alone, too
};

Found search(const Problem& problem, const SearchOptions& options = {});

}  // namespace weft::broker
