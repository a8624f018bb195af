#include "broker/planner/split.h"

#include <algorithm>
#include <cmath>

#include "broker/planner/fill.h"
#include "broker/planner/reach.h"

namespace weft::broker {
namespace {

int32_t depths_of(const Problem& problem, size_t peers, const SplitOptions& options) {
  const int32_t most = problem.stages > 0        ? problem.stages
                       : options.most_stages > 0 ? options.most_stages
                                                 : problem.most_stages;
  return std::min({most, static_cast<int32_t>(peers), problem.chain.units});
}

bool recomputes(const Problem& problem, const SplitOptions& options) {
  return problem.recompute == job::Recompute::kAlways ||
         (options.recompute && problem.recompute == job::Recompute::kAuto);
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

// Above any bound that matters: the whole chain on the slowest peer, the heaviest cut on the
// slowest link.
Bounds widest(const Problem& problem, const std::vector<int32_t>& order, const Reach& reach) {
  Bounds bounds{0, reach.slowest_transfer()};
  for (const int32_t peer : order) {
    double whole = problem.work(peer, 0, problem.chain.units);
    if (reach.recomputing().chosen) whole += problem.again(peer, 0, problem.chain.units);
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

// Where memory counts as SplitOptions::kept_for says.
std::vector<Layout> split_as_kept(const Problem& problem, const CutCosts& costs,
                                  const std::vector<int32_t>& order, const SplitOptions& options) {
  std::vector<Layout> layouts;
  const int32_t depths = depths_of(problem, order.size(), options);
  if (depths < std::max(problem.stages, 1)) return layouts;
  Reach reach(problem, costs, order, options, depths, recomputes(problem, options));
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
    const std::vector<int32_t> fewer = thinned(problem, order, layouts);
    for (Layout& layout : split_as_kept(problem, costs, fewer, options)) {
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

// Whether what a stage keeps depends on how many there will be, and that is open.
bool keeps_by_count(const Problem& problem) {
  return problem.schedule.kind == job::PipelineSchedule::kZbH1 && problem.stages == 0;
}

// The fewest stages that fit when each keeps as many micro-batches as in a pipeline of them all;
// 0: none do. More stages keep more, so it is found from below.
int32_t fewest_stages(const Problem& problem, const CutCosts& costs,
                      const std::vector<int32_t>& order, SplitOptions options) {
  const int32_t depths = depths_of(problem, order.size(), options);
  for (options.kept_for = 1; options.kept_for <= depths;) {
    Reach reach(problem, costs, order, options, depths, recomputes(problem, options));
    if (!reach.feasible(widest(problem, order, reach), 0)) return 0;
    const auto stages = static_cast<int32_t>(reach.trace(0).ends.size());
    if (stages <= options.kept_for) return options.kept_for;
    options.kept_for = stages;
  }
  return 0;
}

}  // namespace

// Whether the deepest stage could have to keep more of the whole chain than some peer holds.
bool memory_limits(const Problem& problem) {
  const int32_t deepest = problem.most_stages - 1;
  job::ScheduleOptions schedule = problem.schedule;
  schedule.gap = schedule.micro_batches;
  const double most = run_bytes(problem.chain, problem.chain.at(0, problem.chain.units),
                                job::in_flight_of(schedule, deepest, deepest));
  return std::any_of(problem.memory_bytes.begin(), problem.memory_bytes.end(),
                     [&](double room) { return room < most; });
}

std::vector<Layout> split_order(const Problem& problem, const CutCosts& costs,
                                const std::vector<int32_t>& order, const SplitOptions& options) {
  std::vector<Layout> layouts = split_as_kept(problem, costs, order, options);
  if (!keeps_by_count(problem) || layouts.empty() ||
      gap_within_memory(problem, layouts.front(), options.gap) >= options.gap) {
    return layouts;
  }
  SplitOptions fewest = options;
  fewest.most_stages = fewest.kept_for = fewest_stages(problem, costs, order, options);
  if (fewest.kept_for == 0) return layouts;
  std::vector<Layout> fitting = split_as_kept(problem, costs, order, fewest);
  for (Layout& layout : layouts) add_distinct(fitting, std::move(layout));
  return fitting;
}

bool any_fits(const Problem& problem, const CutCosts& costs, const std::vector<int32_t>& order,
              const SplitOptions& options) {
  if (keeps_by_count(problem)) return fewest_stages(problem, costs, order, options) > 0;
  const int32_t depths = depths_of(problem, order.size(), options);
  if (depths < std::max(problem.stages, 1)) return false;
  Reach reach(problem, costs, order, options, depths, recomputes(problem, options));
  return reach.feasible(widest(problem, order, reach), problem.stages);
}

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

}  // namespace weft::broker
