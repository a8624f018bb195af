// Orders of peers along the pipeline that are worth an exact split. Private to the search. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "broker/planner/cluster.h"
#include "broker/planner/problem.h"

namespace weft::broker {

using Order = std::vector<int32_t>;

// Bytes of a message by which links are compared: the middle one of all cuts.
double typical_bytes(const Chain& chain);

// Ascending.
Order all_peers(const Problem& problem);

// Peers with the most memory first (early stages keep the most activations), then the fastest.
void sort_by_room(const Problem& problem, Order& order);

// Early stages keep the most micro-batches, so have the least room for units: as many as slow peers
// can do in the time.
void sort_slowest_first(const Problem& problem, Order& order);

// Distinct orders over all peers, the most promising first, at most `most`: all of them if that is
// enough, else in one site the slowest first, the tree's path and its reverse, by room, the sites
// permuted, by speed, the slowest first, and the shortest paths found from every peer.
std::vector<Order> promising_orders(const Problem& problem, const Dendrogram& tree,
                                    const std::vector<Order>& sites, size_t most);

// At most `size` of a group, those with room: two thirds of them the fastest (less where more
// stages are asked for), the rest those with the most memory. Ascending.
Order most_promising(const Problem& problem, Order group, size_t size);

// Groups of peers worth a search of their own, at most `most`: everybody, the fastest sites, sites
// that lie close together. Of each at most `size` peers, distinct.
std::vector<Order> promising_parts(const Problem& problem, const Dendrogram& tree,
                                   const std::vector<Order>& sites, size_t size, size_t most);

}  // namespace weft::broker
