// Peers grouped by bandwidth: the dendrogram of single linkage, which has no resolution parameter
// and no total weight that one fast site could dominate (methods, section 4, finding 1: modularity
// on raw bandwidth merges every slower site). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "broker/planner/network.h"

namespace weft::broker {

// Two groups joined by the fastest link between them; leaves are 0 .. peers - 1, merge k makes node
// peers + k. Merges come fastest first.
struct Merge {
  int32_t left = 0, right = 0;
  double seconds = 0;  // a message of the asked size takes this long, there and back, on that link
};

struct Dendrogram {
  int32_t peers = 0;
  std::vector<Merge> merges;  // peers - 1 of them

  // Peers below a node, in the order of the tree.
  std::vector<int32_t> members(int32_t node) const;
};

// bytes: of the message by which latency and bandwidth are weighed against each other.
Dendrogram cluster(const Network& network, double bytes);

// The peers as a path: at every merge the two paths are joined at the ends that are closest.
std::vector<int32_t> path_order(const Dendrogram& tree, const Network& network, double bytes);

// Sites: the groups that lie farthest from the rest in terms of their own spread, each weighed by
// its size (the persistence of a node of the tree); a group counts where its next merge is at least
// `least_gap` times as slow as its slowest own. Fast and slow sites beside each other keep their
// own scale. One site where nothing stands apart. Each ascending, largest first.
std::vector<std::vector<int32_t>> sites(const Dendrogram& tree, double least_gap = 1.5);

// Seconds of a message there and back.
double round_trip(const Network& network, int32_t a, int32_t b, double bytes);

}  // namespace weft::broker
