// The rules that bench/planner holds OP-Fence against. All give every stage its own peer and are
// judged by the same model; none but the search looks at memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "broker/planner/problem.h"

namespace weft::bench {

using broker::Layout;
using broker::Problem;

using Order = std::vector<int32_t>;

inline Order given_order(const Problem& problem) {
  Order order(problem.peers());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Runs whose weights follow the shares, by the work of peer 0; each has a unit at least.
inline Layout split_by_shares(const Problem& problem, const Order& order,
                              const std::vector<double>& shares) {
  Layout layout{order, {}};
  const auto stages = static_cast<int32_t>(order.size());
  double sum = 0, total = 0;
  for (const double share : shares) total += share;
  const double work = problem.work(0, 0, problem.chain.units);
  int32_t end = 0;
  for (int32_t k = 0; k < stages; ++k) {
    sum += shares[static_cast<size_t>(k)];
    const int32_t last = problem.chain.units - (stages - 1 - k);
    ++end;
    while (end < last && problem.work(0, 0, end) < work * sum / total - 1e-12 * work) ++end;
    layout.ends.push_back(k + 1 == stages ? problem.chain.units : end);
  }
  return layout;
}

inline Layout equal_units(const Problem& problem, Order order) {
  order.resize(std::min(order.size(), static_cast<size_t>(problem.chain.units)));
  const auto stages = static_cast<int32_t>(order.size());
  Layout layout{std::move(order), {}};
  for (int32_t k = 1; k <= stages; ++k) {
    layout.ends.push_back(static_cast<int32_t>(int64_t{problem.chain.units} * k / stages));
  }
  return layout;
}

inline Layout equal_flops(const Problem& problem, Order order) {
  order.resize(std::min(order.size(), static_cast<size_t>(problem.chain.units)));
  const std::vector<double> shares(order.size(), 1.0);
  return split_by_shares(problem, order, shares);
}

// The k fastest, fastest first, units in proportion to speed.
inline Layout greedy_by_speed(const Problem& problem, size_t stages) {
  Order order = given_order(problem);
  const auto speed = [&](int32_t peer) { return 1 / problem.work(peer, 0, problem.chain.units); };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return speed(a) > speed(b); });
  order.resize(stages);
  std::vector<double> shares;
  for (const int32_t peer : order) shares.push_back(speed(peer));
  return split_by_shares(problem, order, shares);
}

// After the published description of DT-FM (Yuan et al. 2022): a genetic search over which device
// serves which stage, stages of equal compute, fitness the communication of the pipeline, children
// improved by local exchanges before they enter the population. One device a stage here, so that
// its data-parallel term falls away and its path over stages is the genome.
class GeneticSearch {
 public:
  GeneticSearch(const Problem& problem, size_t stages, uint64_t seed)
      : problem_(problem), stages_(stages), rng_(seed) {
    const auto middle = static_cast<size_t>(problem.chain.units / 2);
    forward_ = problem.chain.forward_bytes[middle];
    backward_ = problem.chain.backward_bytes[middle];
  }

  Order run() {
    constexpr size_t kPopulation = 48, kGenerations = 120;
    std::vector<Genome> population;
    for (size_t i = 0; i < kPopulation; ++i) {
      Order order = given_order(problem_);
      rng_.shuffle(order);
      population.push_back(improved(std::move(order)));
    }
    for (size_t generation = 0; generation < kGenerations; ++generation) {
      const Genome& a = population[rng_.below(kPopulation)];
      const Genome& b = population[rng_.below(kPopulation)];
      Genome child = improved(crossed(a.order, b.order));
      auto worst = std::max_element(population.begin(), population.end(), by_cost);
      if (child.cost < worst->cost) *worst = std::move(child);
    }
    Order best = std::min_element(population.begin(), population.end(), by_cost)->order;
    best.resize(stages_);
    return best;
  }

 private:
  struct Genome {
    Order order;  // the first `stages` serve, the rest idle
    double cost = 0;
  };
  static bool by_cost(const Genome& a, const Genome& b) { return a.cost < b.cost; }

  double hop(int32_t a, int32_t b) const {
    const auto from = static_cast<size_t>(a), to = static_cast<size_t>(b);
    const broker::Network& network = problem_.network;
    return network.latency_s(from, to) + network.latency_s(to, from) +
           forward_ * network.seconds_per_byte(from, to) +
           backward_ * network.seconds_per_byte(to, from);
  }
  double cost(const Order& order) const {
    double sum = 0;
    for (size_t k = 0; k + 1 < stages_; ++k) sum += hop(order[k], order[k + 1]);
    return sum;
  }

  // Order crossover: a piece of one, the rest in the other's order.
  Order crossed(const Order& a, const Order& b) {
    const size_t begin = rng_.below(a.size()), end = begin + rng_.below(a.size() - begin) + 1;
    std::vector<bool> kept(a.size(), false);
    for (size_t i = begin; i < end; ++i) kept[static_cast<size_t>(a[i])] = true;
    Order child(a.size(), -1);
    std::copy(a.begin() + static_cast<std::ptrdiff_t>(begin),
              a.begin() + static_cast<std::ptrdiff_t>(end),
              child.begin() + static_cast<std::ptrdiff_t>(begin));
    size_t at = 0;
    for (const int32_t peer : b) {
      if (kept[static_cast<size_t>(peer)]) continue;
      while (child[at] >= 0) ++at;
      child[at] = peer;
    }
    return child;
  }

  Genome improved(Order order) {
    double now = cost(order);
    for (int trial = 0; trial < 200; ++trial) {
      Order other = order;
      const size_t a = rng_.below(stages_), b = rng_.below(other.size());
      if (rng_.below(2) == 0) {
        std::swap(other[a], other[b]);
      } else {
        std::reverse(other.begin() + static_cast<std::ptrdiff_t>(std::min(a, b)),
                     other.begin() + static_cast<std::ptrdiff_t>(std::max(a, b)) + 1);
      }
      if (const double value = cost(other); value < now) {
        now = value;
        order = std::move(other);
      }
    }
    return {std::move(order), now};
  }

  const Problem& problem_;
  size_t stages_;
  Rng rng_;
  double forward_ = 0, backward_ = 0;
};

}  // namespace weft::bench
