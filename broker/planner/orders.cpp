#include "broker/planner/orders.h"

#include <algorithm>
#include <numeric>

#include "base/statistics.h"

namespace weft::broker {
namespace {

void add_distinct(std::vector<Order>& orders, Order order) {
  if (std::find(orders.begin(), orders.end(), order) == orders.end()) {
    orders.push_back(std::move(order));
  }
}

double whole_work(const Problem& problem, int32_t peer) {
  return problem.work(peer, 0, problem.chain.units);
}

// Site after site, in a given sequence of sites.
Order concatenated(const std::vector<Order>& sites, const std::vector<size_t>& sequence) {
  Order order;
  for (const size_t site : sequence) {
    order.insert(order.end(), sites[site].begin(), sites[site].end());
  }
  return order;
}

// From a site always on to the nearest that is left.
std::vector<size_t> nearest_sequence(const Problem& problem, const std::vector<Order>& sites,
                                     size_t first, double bytes) {
  std::vector<size_t> sequence{first};
  std::vector<bool> used(sites.size(), false);
  used[first] = true;
  while (sequence.size() < sites.size()) {
    size_t nearest = sites.size();
    double least = 0;
    for (size_t site = 0; site < sites.size(); ++site) {
      if (used[site]) continue;
      const double s =
          round_trip(problem.network, sites[sequence.back()].back(), sites[site].front(), bytes);
      if (nearest == sites.size() || s < least) {
        nearest = site;
        least = s;
      }
    }
    used[nearest] = true;
    sequence.push_back(nearest);
  }
  return sequence;
}

// From a peer always on to the nearest that is left; then pieces are reversed while the way through
// all peers gets shorter.
Order nearest_path(const Network& network, int32_t first, double bytes) {
  Order path{first};
  std::vector<bool> used(network.peers(), false);
  used[static_cast<size_t>(first)] = true;
  const auto count = static_cast<int32_t>(network.peers());
  while (path.size() < network.peers()) {
    int32_t nearest = -1;
    double least = 0;
    for (int32_t peer = 0; peer < count; ++peer) {
      if (used[static_cast<size_t>(peer)]) continue;
      const double s = round_trip(network, path.back(), peer, bytes);
      if (nearest < 0 || s < least) {
        nearest = peer;
        least = s;
      }
    }
    used[static_cast<size_t>(nearest)] = true;
    path.push_back(nearest);
  }
  constexpr int kMostRounds = 4;
  bool shorter = true;
  for (int round = 0; shorter && round < kMostRounds; ++round) {
    shorter = false;
    for (size_t a = 1; a + 1 < path.size(); ++a) {
      for (size_t b = a + 1; b < path.size(); ++b) {
        // Reversing path[a..b] swaps the hops at its ends; the last hop may have no far end.
        double before = round_trip(network, path[a - 1], path[a], bytes);
        double after = round_trip(network, path[a - 1], path[b], bytes);
        if (b + 1 < path.size()) {
          before += round_trip(network, path[b], path[b + 1], bytes);
          after += round_trip(network, path[a], path[b + 1], bytes);
        }
        if (after >= before * (1 - 1e-12)) continue;
        std::reverse(path.begin() + static_cast<std::ptrdiff_t>(a),
                     path.begin() + static_cast<std::ptrdiff_t>(b) + 1);
        shorter = true;
      }
    }
  }
  return path;
}

void sort_fastest_first(const Problem& problem, Order& order) {
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return whole_work(problem, a) < whole_work(problem, b);
  });
}

double speed_of(const Problem& problem, int32_t peer) {
  const double work = whole_work(problem, peer);
  return work > 0 ? 1 / work : 0;
}

}  // namespace

Order all_peers(const Problem& problem) {
  Order order(problem.peers());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Order most_promising(const Problem& problem, Order group, size_t size) {
  std::erase_if(
      group, [&](int32_t peer) { return !(problem.memory_bytes[static_cast<size_t>(peer)] > 0); });
  if (group.size() > size) {
    const size_t roomy = std::max(size / 3, std::min(size, static_cast<size_t>(problem.stages)));
    const auto fast = static_cast<std::ptrdiff_t>(size - roomy);
    sort_fastest_first(problem, group);
    Order rest(group.begin() + fast, group.end());
    sort_by_room(problem, rest);
    std::copy_n(rest.begin(), roomy, group.begin() + fast);
    group.resize(size);
  }
  std::sort(group.begin(), group.end());
  return group;
}

namespace {

bool few_enough(size_t items, size_t most) {
  size_t count = 1;
  for (size_t i = 2; i <= items; ++i) {
    if (count > most / i) return false;
    count *= i;
  }
  return count <= most;
}

}  // namespace

double typical_bytes(const Chain& chain) {
  std::vector<double> bytes;
  for (int32_t cut = 1; cut < chain.units; ++cut) {
    const auto at = static_cast<size_t>(cut);
    bytes.push_back(std::max(chain.forward_bytes[at], chain.backward_bytes[at]));
  }
  return median(std::move(bytes));
}

void sort_by_room(const Problem& problem, Order& order) {
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const double room_a = problem.memory_bytes[static_cast<size_t>(a)];
    const double room_b = problem.memory_bytes[static_cast<size_t>(b)];
    if (room_a != room_b) return room_a > room_b;
    return whole_work(problem, a) < whole_work(problem, b);
  });
}

void sort_slowest_first(const Problem& problem, Order& order) {
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return whole_work(problem, a) > whole_work(problem, b);
  });
}

std::vector<Order> promising_orders(const Problem& problem, const Dendrogram& tree,
                                    const std::vector<Order>& sites, size_t most) {
  std::vector<Order> orders;
  Order given = all_peers(problem);
  if (few_enough(problem.peers(), most)) {
    do {
      orders.push_back(given);
    } while (std::next_permutation(given.begin(), given.end()));
    return orders;
  }
  const double bytes = typical_bytes(problem.chain);
  Order by_speed = given;
  sort_fastest_first(problem, by_speed);
  Order slowest_first = given;
  sort_slowest_first(problem, slowest_first);
  // Where all ways are alike memory counts more than any path.
  if (sites.size() < 2) add_distinct(orders, slowest_first);
  const Order path = path_order(tree, problem.network, bytes);
  if (problem.network.measured()) {
    add_distinct(orders, path);
    add_distinct(orders, Order(path.rbegin(), path.rend()));
  }
  Order by_room = given;
  sort_by_room(problem, by_room);
  add_distinct(orders, by_room);
  if (sites.size() > 1) {
    std::vector<Order> by_size = sites, slow_first = sites;
    for (Order& site : by_size) sort_by_room(problem, site);
    for (Order& site : slow_first) sort_slowest_first(problem, site);
    for (const std::vector<Order>& sorted : {slow_first, by_size}) {
      std::vector<size_t> sequence(sites.size());
      std::iota(sequence.begin(), sequence.end(), size_t{0});
      if (few_enough(sites.size(), 24)) {
        do {
          add_distinct(orders, concatenated(sorted, sequence));
        } while (orders.size() < most && std::next_permutation(sequence.begin(), sequence.end()));
        continue;
      }
      for (size_t first = 0; first < sites.size() && orders.size() < most; ++first) {
        add_distinct(orders, concatenated(sorted, nearest_sequence(problem, sorted, first, bytes)));
      }
    }
  }
  add_distinct(orders, by_speed);
  add_distinct(orders, slowest_first);
  constexpr size_t kMostOfPaths = 64;
  if (problem.network.measured() && problem.peers() <= kMostOfPaths) {
    for (const int32_t first : by_speed) {
      if (orders.size() >= most) break;
      add_distinct(orders, nearest_path(problem.network, first, bytes));
    }
  }
  if (orders.size() > most) orders.resize(std::max<size_t>(most, 1));
  return orders;
}

std::vector<Order> promising_parts(const Problem& problem, const Dendrogram& tree,
                                   const std::vector<Order>& sites, size_t size, size_t most) {
  const size_t least = std::max<size_t>(2, static_cast<size_t>(problem.stages));
  std::vector<std::pair<double, Order>> ranked;
  for (const Order& site : sites) {
    Order part = most_promising(problem, site, size);
    if (part.size() < least) continue;
    double speed = 0;
    for (const int32_t peer : part) speed += speed_of(problem, peer);
    ranked.emplace_back(speed, std::move(part));
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Order> parts;
  Order best = most_promising(problem, all_peers(problem), size);
  if (best.size() >= least) add_distinct(parts, std::move(best));
  const size_t most_sites = sites.size() > 1 ? 2 * most / 3 : most;
  for (auto& [speed, part] : ranked) {
    if (parts.size() <= most_sites) add_distinct(parts, std::move(part));
  }
  // Sites together, those with the fastest ways between them first.
  for (size_t k = 0; k < tree.merges.size() && parts.size() < most; ++k) {
    const Order members = tree.members(tree.peers + static_cast<int32_t>(k));
    const auto inside = [&](const Order& site) {
      return site.size() < members.size() &&
             std::find(members.begin(), members.end(), site.front()) != members.end();
    };
    if (std::count_if(sites.begin(), sites.end(), inside) < 2) continue;
    Order part = most_promising(problem, members, size);
    if (part.size() >= least) add_distinct(parts, std::move(part));
  }
  return parts;
}

}  // namespace weft::broker
