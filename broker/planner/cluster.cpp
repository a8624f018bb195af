#include "broker/planner/cluster.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace weft::broker {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Link {
  double seconds = 0;
  int32_t a = 0, b = 0;
};

// Prim's minimum spanning tree: its edges, sorted, are the merges of single linkage.
std::vector<Link> spanning_tree(const Network& network, double bytes) {
  const auto peers = static_cast<int32_t>(network.peers());
  std::vector<Link> tree;
  if (peers == 0) return tree;
  std::vector<double> best(static_cast<size_t>(peers), kInfinity);
  std::vector<int32_t> from(static_cast<size_t>(peers), 0);
  std::vector<bool> inside(static_cast<size_t>(peers), false);
  int32_t newest = 0;
  for (int32_t count = 1; count < peers; ++count) {
    inside[static_cast<size_t>(newest)] = true;
    int32_t nearest = -1;
    for (int32_t peer = 0; peer < peers; ++peer) {
      const auto at = static_cast<size_t>(peer);
      if (inside[at]) continue;
      if (const double s = round_trip(network, newest, peer, bytes); s < best[at]) {
        best[at] = s;
        from[at] = newest;
      }
      if (nearest < 0 || best[at] < best[static_cast<size_t>(nearest)]) nearest = peer;
    }
    tree.push_back(
        {best[static_cast<size_t>(nearest)], from[static_cast<size_t>(nearest)], nearest});
    newest = nearest;
  }
  std::stable_sort(tree.begin(), tree.end(),
                   [](const Link& a, const Link& b) { return a.seconds < b.seconds; });
  return tree;
}

}  // namespace

double round_trip(const Network& network, int32_t a, int32_t b, double bytes) {
  const auto from = static_cast<size_t>(a), to = static_cast<size_t>(b);
  return network.latency_s(from, to) + network.latency_s(to, from) +
         bytes * (network.seconds_per_byte(from, to) + network.seconds_per_byte(to, from));
}

std::vector<int32_t> Dendrogram::members(int32_t node) const {
  std::vector<int32_t> found, open{node};
  while (!open.empty()) {
    const int32_t next = open.back();
    open.pop_back();
    if (next < peers) {
      found.push_back(next);
      continue;
    }
    const Merge& merge = merges[static_cast<size_t>(next - peers)];
    open.push_back(merge.right);
    open.push_back(merge.left);
  }
  return found;
}

Dendrogram cluster(const Network& network, double bytes) {
  Dendrogram tree;
  tree.peers = static_cast<int32_t>(network.peers());
  std::vector<int32_t> parent(network.peers()), node(network.peers());
  std::iota(parent.begin(), parent.end(), 0);
  std::iota(node.begin(), node.end(), 0);
  const auto root = [&](int32_t peer) {
    while (parent[static_cast<size_t>(peer)] != peer) {
      auto& up = parent[static_cast<size_t>(peer)];
      up = parent[static_cast<size_t>(up)];
      peer = up;
    }
    return peer;
  };
  for (const Link& link : spanning_tree(network, bytes)) {
    const int32_t a = std::min(root(link.a), root(link.b)),
                  b = std::max(root(link.a), root(link.b));
    tree.merges.push_back(
        {node[static_cast<size_t>(a)], node[static_cast<size_t>(b)], link.seconds});
    parent[static_cast<size_t>(b)] = a;
    node[static_cast<size_t>(a)] = tree.peers + static_cast<int32_t>(tree.merges.size()) - 1;
  }
  return tree;
}

std::vector<int32_t> path_order(const Dendrogram& tree, const Network& network, double bytes) {
  std::vector<std::vector<int32_t>> paths(static_cast<size_t>(tree.peers) + tree.merges.size());
  for (int32_t peer = 0; peer < tree.peers; ++peer) paths[static_cast<size_t>(peer)] = {peer};
  for (size_t k = 0; k < tree.merges.size(); ++k) {
    auto left = std::move(paths[static_cast<size_t>(tree.merges[k].left)]);
    auto right = std::move(paths[static_cast<size_t>(tree.merges[k].right)]);
    // Which ends meet: the tail or head of left with the head or tail of right.
    double least = kInfinity;
    bool turn_left = false, turn_right = false;
    for (const bool a : {false, true}) {
      for (const bool b : {false, true}) {
        const double s = round_trip(network, a ? left.front() : left.back(),
                                    b ? right.back() : right.front(), bytes);
        if (s < least) {
          least = s;
          turn_left = a;
          turn_right = b;
        }
      }
    }
    if (turn_left) std::reverse(left.begin(), left.end());
    if (turn_right) std::reverse(right.begin(), right.end());
    left.insert(left.end(), right.begin(), right.end());
    paths[static_cast<size_t>(tree.peers) + k] = std::move(left);
  }
  return paths.empty() ? std::vector<int32_t>{} : paths.back();
}

std::vector<std::vector<int32_t>> sites(const Dendrogram& tree, double least_gap) {
  const auto leaves = static_cast<size_t>(tree.peers);
  const size_t nodes = leaves + tree.merges.size();
  std::vector<double> apart(nodes, 0.0);  // how far the node's parent is, as a factor
  std::vector<size_t> size(nodes, 1);
  constexpr double kNoTime = 1e-9;  // seconds; ends are never closer than that
  const auto seconds = [&](size_t node) {
    return node < leaves ? kInfinity : std::max(tree.merges[node - leaves].seconds, kNoTime);
  };
  for (size_t k = 0; k < tree.merges.size(); ++k) {
    const auto left = static_cast<size_t>(tree.merges[k].left);
    const auto right = static_cast<size_t>(tree.merges[k].right);
    size[leaves + k] = size[left] + size[right];
    apart[left] = seconds(leaves + k) / seconds(left);
    apart[right] = seconds(leaves + k) / seconds(right);
  }
  // Children come before their parents, so one pass finds the best choice below every node.
  std::vector<double> best(nodes, 0.0);
  std::vector<bool> whole(nodes, false);
  for (size_t node = 0; node < nodes; ++node) {
    const double mine =
        apart[node] >= least_gap ? static_cast<double>(size[node]) * std::log(apart[node]) : 0;
    double below = 0;
    if (node >= leaves) {
      const Merge& merge = tree.merges[node - leaves];
      below = best[static_cast<size_t>(merge.left)] + best[static_cast<size_t>(merge.right)];
    }
    whole[node] = node < leaves || mine > below || (below == 0 && node + 1 == nodes);
    best[node] = std::max(mine, below);
  }
  std::vector<std::vector<int32_t>> found;
  std::vector<size_t> open;
  if (nodes > 0) open.push_back(nodes - 1);
  while (!open.empty()) {
    const size_t node = open.back();
    open.pop_back();
    if (whole[node]) {
      found.push_back(tree.members(static_cast<int32_t>(node)));
      std::sort(found.back().begin(), found.back().end());
      continue;
    }
    open.push_back(static_cast<size_t>(tree.merges[node - leaves].right));
    open.push_back(static_cast<size_t>(tree.merges[node - leaves].left));
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return found;
}

}  // namespace weft::broker
