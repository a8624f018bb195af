#include "broker/planner/split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "broker/planner/reach.h"

namespace weft::broker {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int32_t depths_of(const Problem& problem, size_t peers, const SplitOptions& options) {
  const int32_t most = problem.stages > 0        ? problem.stages
                       : options.most_stages > 0 ? options.most_stages
                                                 : problem.most_stages;
  return std::min({most, static_cast<int32_t>(peers), problem.chain.units});
}

// The least bound of one kind while the other stands, to within a factor.
template <typename Feasible>
double least_bound(double low, double high, double close, const Feasible& feasible) {
  while (high > low * close) {
    const double middle = low > 0 ? std::sqrt(low) * std::sqrt(high) : high / 2;
    (feasible(middle) ? high : low) = middle;
    if (high < 1e-30) break;
  }
  return high;
}

// Compute and transfer of a split summed, least under bounds; layered by depth.
class Fill {
 public:
  Fill(const Problem& problem, const std::vector<int32_t>& order, const Reach& reach)
      : problem_(problem),
        order_(order),
        reach_(reach),
        n_(order.size()),
        cuts_(static_cast<size_t>(problem.chain.units) + 1) {}

  std::optional<Layout> best(const Bounds& bounds, int32_t stages) {
    const int32_t depths = stages > 0 ? stages : reach_.depths();
    choice_.assign(static_cast<size_t>(depths) * n_ * cuts_, {});
    std::vector<double> value, rest(n_ * cuts_, kInfinity);
    double least = kInfinity;
    int32_t best_depth = -1;
    size_t best_position = 0;
    for (int32_t depth = 0; depth < depths; ++depth) {
      value.assign(n_ * cuts_, kInfinity);
      for (size_t i = 0; i < n_; ++i) {
        if (depth > 0) find_next(bounds, i, depth, rest);
        extend(i, depth, value);
      }
      rest.swap(value);
      for (size_t i = 0; i < n_; ++i) {
        if (stages > 0 && depth + 1 != stages) continue;
        // Fewer stages where they cost the same.
        if (rest[i * cuts_] < least * (1 - 1e-12)) {
          least = rest[i * cuts_];
          best_depth = depth;
          best_position = i;
        }
      }
    }
    if (best_depth < 0) return std::nullopt;
    return trace(best_depth, best_position);
  }

 private:
  struct Choice {
    int16_t next = -1;  // position of the stage that follows
    int16_t end = 0;
  };

  // tail_[end], next_of_[end]: the best way on from a stage at position i that ends there.
  void find_next(const Bounds& bounds, size_t i, int32_t, const std::vector<double>& rest) {
    tail_.assign(cuts_, kInfinity);
    next_of_.assign(cuts_, -1);
    const Network& network = problem_.network;
    const auto from = static_cast<size_t>(order_[i]);
    for (size_t next = i + 1; next < n_; ++next) {
      const auto to = static_cast<size_t>(order_[next]);
      const CutCosts::Kind& kind = reach_.kind_of(i, next);
      const double there = network.seconds_per_byte(from, to);
      const double back = network.seconds_per_byte(to, from);
      const double one_way = network.latency_s(from, to);
      const double both_ways = one_way + network.latency_s(to, from);
      const double* theirs = &rest[next * cuts_];
      for (int32_t cut = 1; cut < problem_.chain.units; ++cut) {
        const auto at = static_cast<size_t>(cut);
        if (theirs[at] == kInfinity) continue;
        const double latency = problem_.chain.answered(cut) ? both_ways : one_way;
        const double sum = theirs[at] + latency + there * kind.there_bytes[at] +
                           back * kind.back_bytes[at] + kind.codec_s[at];
        if (sum < tail_[at] && reach_.link_seconds(i, next, cut) <= bounds.link_s) {
          tail_[at] = sum;
          next_of_[at] = static_cast<int16_t>(next);
        }
      }
    }
  }

  void extend(size_t i, int32_t depth, std::vector<double>& value) {
    const auto& forward = problem_.forward_s[static_cast<size_t>(order_[i])];
    const auto& backward = problem_.backward_s[static_cast<size_t>(order_[i])];
    double* mine = &value[i * cuts_];
    Choice* choice = &choice_[(static_cast<size_t>(depth) * n_ + i) * cuts_];
    const int32_t first = depth == 0 ? problem_.chain.units : 1;
    const int32_t last = depth == 0 ? problem_.chain.units : problem_.chain.units - 1;
    for (int32_t end = first; end <= last; ++end) {
      const auto at = static_cast<size_t>(end);
      const double tail = depth == 0 ? 0 : tail_[at];
      if (tail == kInfinity) continue;
      const double whole = tail + forward[at] + backward[at];
      for (int32_t begin = reach_.earliest(depth, i, end); begin < end; ++begin) {
        const auto from = static_cast<size_t>(begin);
        const double sum = whole - forward[from] - backward[from];
        if (sum < mine[from]) {
          mine[from] = sum;
          choice[from] = {depth == 0 ? int16_t{-1} : next_of_[at], static_cast<int16_t>(end)};
        }
      }
    }
    if (reach_.recomputes()) extend_recomputed(i, depth, mine, choice);
  }

  void extend_recomputed(size_t i, int32_t depth, double* mine, Choice* choice) {
    const auto peer = order_[i];
    const int32_t units = problem_.chain.units;
    for (int32_t begin = 0; begin < units; ++begin) {
      const auto from = static_cast<size_t>(begin);
      const int32_t latest = reach_.latest(depth, i, begin);
      for (int32_t end = depth == 0 ? units : begin + 1; end <= latest; ++end) {
        if (depth > 0 && end == units) break;
        const auto at = static_cast<size_t>(end);
        const double tail = depth == 0 ? 0 : tail_[at];
        const double sum =
            tail + problem_.work(peer, begin, end) + problem_.again(peer, begin, end);
        if (sum < mine[from]) {
          mine[from] = sum;
          choice[from] = {depth == 0 ? int16_t{-1} : next_of_[at], static_cast<int16_t>(end)};
        }
      }
    }
  }

  Layout trace(int32_t depth, size_t position) const {
    Layout layout;
    int32_t cut = 0;
    for (;; --depth) {
      const Choice& choice =
          choice_[(static_cast<size_t>(depth) * n_ + position) * cuts_ + static_cast<size_t>(cut)];
      layout.peers.push_back(order_[position]);
      layout.ends.push_back(choice.end);
      if (depth == 0) return layout;
      cut = choice.end;
      position = static_cast<size_t>(choice.next);
    }
  }

  const Problem& problem_;
  const std::vector<int32_t>& order_;
  const Reach& reach_;
  size_t n_, cuts_;
  std::vector<Choice> choice_;
  std::vector<double> tail_;
  std::vector<int16_t> next_of_;
};

// Above any bound that matters: the whole chain on the slowest peer, the heaviest cut on the
// slowest link.
Bounds widest(const Problem& problem, const std::vector<int32_t>& order, const Reach& reach) {
  Bounds bounds{0, reach.slowest_transfer()};
  for (const int32_t peer : order) {
    double whole = problem.work(peer, 0, problem.chain.units);
    if (reach.recomputes()) whole += problem.again(peer, 0, problem.chain.units);
    bounds.compute_s = std::max(bounds.compute_s, whole);
  }
  return bounds;
}

// No split computes faster than all peers together.
double least_compute(const Problem& problem, const std::vector<int32_t>& order) {
  double speed = 0;
  for (const int32_t peer : order) {
    const double whole = problem.work(peer, 0, problem.chain.units);
    if (whole > 0) speed += 1 / whole;
  }
  return speed > 0 ? 1 / speed : 0;
}

constexpr double kBisections = 20;
// The fill programme takes n^2 L depths steps: of more peers it gets those that the least
// bottleneck uses, and the fastest of the rest.
constexpr size_t kMostPeersOfFill = 48;

std::vector<int32_t> thinned(const Problem& problem, const std::vector<int32_t>& order,
                             const std::vector<Layout>& using_them) {
  std::vector<int32_t> fastest = order;
  std::stable_sort(fastest.begin(), fastest.end(), [&](int32_t a, int32_t b) {
    return problem.work(a, 0, problem.chain.units) < problem.work(b, 0, problem.chain.units);
  });
  std::vector<bool> kept(problem.peers(), false);
  size_t count = 0;
  const auto keep = [&](int32_t peer) {
    if (count == kMostPeersOfFill || kept[static_cast<size_t>(peer)]) return;
    kept[static_cast<size_t>(peer)] = true;
    ++count;
  };
  for (const Layout& layout : using_them) {
    for (const int32_t peer : layout.peers) keep(peer);
  }
  for (const int32_t peer : fastest) keep(peer);
  std::vector<int32_t> result;
  for (const int32_t peer : order) {
    if (kept[static_cast<size_t>(peer)]) result.push_back(peer);
  }
  return result;
}

void add_distinct(std::vector<Layout>& layouts, Layout layout) {
  if (layout.ends.empty()) return;
  if (std::find(layouts.begin(), layouts.end(), layout) == layouts.end()) {
    layouts.push_back(std::move(layout));
  }
}

}  // namespace

double split_cost(const Problem& problem, size_t peers, const SplitOptions& options) {
  const auto n = static_cast<double>(peers);
  const auto filled = static_cast<double>(std::min(peers, kMostPeersOfFill));
  const double depths = std::max(depths_of(problem, peers, options), 1);
  const double cuts = problem.chain.units + 1;
  const double reach = kBisections * (n * n / 2 * (cuts / 64 + 1) + 2 * n * cuts) * depths;
  const double fill = static_cast<double>(options.slacks.size() + 2) *
                      (filled * filled / 2 * cuts * depths + filled * cuts * cuts);
  return reach + fill;
}

std::vector<Layout> split_order(const Problem& problem, const CutCosts& costs,
                                const std::vector<int32_t>& order, const SplitOptions& options) {
  std::vector<Layout> layouts;
  const int32_t depths = depths_of(problem, order.size(), options);
  if (depths < 1 || (problem.stages > 0 && depths < problem.stages)) return layouts;
  const bool recompute = problem.recompute == job::Recompute::kAlways ||
                         (options.recompute && problem.recompute == job::Recompute::kAuto);
  Reach reach(problem, costs, order, options.gap, depths, recompute);
  const Bounds most = widest(problem, order, reach);
  if (!reach.feasible(most, problem.stages)) return layouts;
  // The least T for both, then the least compute while links keep T.
  const double high = std::max(most.compute_s, most.link_s);
  const double low = least_compute(problem, order);
  const bool many = order.size() > kMostPeersOfFill;
  const double close = many ? 1.01 : 1.001;
  const double both = least_bound(low, high, close, [&](double bound) {
    return reach.feasible({bound, bound}, problem.stages);
  });
  if (many) {
    for (const double slack : {1.0, 1.3}) {
      if (!reach.feasible({slack * both, slack * both}, problem.stages)) continue;
      add_distinct(layouts, reach.trace(problem.stages));
    }
    for (Layout& layout : split_order(problem, costs, thinned(problem, order, layouts), options)) {
      add_distinct(layouts, std::move(layout));
    }
    return layouts;
  }
  const double compute = least_bound(low, both, close, [&](double bound) {
    return reach.feasible({bound, both}, problem.stages);
  });
  Fill fill(problem, order, reach);
  const auto add = [&](const Bounds& bounds) {
    if (!reach.feasible(bounds, problem.stages)) return;
    if (auto layout = fill.best(bounds, problem.stages)) add_distinct(layouts, std::move(*layout));
  };
  add({compute, both});
  for (const double slack : options.slacks) add({slack * both, slack * both});
  add(most);  // no bottleneck asked for: the least fill
  return layouts;
}

}  // namespace weft::broker
