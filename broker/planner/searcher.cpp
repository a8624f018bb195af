#include "broker/planner/searcher.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "broker/planner/part.h"

namespace weft::broker {

std::optional<int32_t> best_single_peer(const Problem& problem) {
  Pool best(problem, 1);
  for (size_t peer = 0; peer < problem.peers(); ++peer) {
    best.add(Layout{{static_cast<int32_t>(peer)}, {problem.chain.units}});
  }
  if (best.items().empty()) return std::nullopt;
  return best.items().front().layout.peers.front();
}

Found Searcher::run() {
  const Dendrogram tree = clusters();
  find_single_peer();
  find_single_site();
  search_each_site();
  explore(tree);
  play();
  polish();
  return std::move(found_);
}

std::vector<Layout> Searcher::explore() {
  explore(clusters());
  std::vector<Layout> layouts = one_of_each_count(pool_.items(), options_.keep / 2);
  if (!pool_.items().empty()) layouts.push_back(pool_.quickest().layout);
  for (size_t i = 0; i < std::min(options_.keep / 2, pool_.items().size()); ++i) {
    const Layout& layout = pool_.items()[i].layout;
    if (std::find(layouts.begin(), layouts.end(), layout) == layouts.end()) {
      layouts.push_back(layout);
    }
  }
  return layouts;
}

Dendrogram Searcher::clusters() {
  Dendrogram tree = cluster(problem_.network, typical_bytes(problem_.chain));
  found_.sites = sites(tree);
  return tree;
}

void Searcher::explore(const Dendrogram& tree) {
  SplitOptions options;
  const double cost = split_cost(problem_, problem_.peers(), options);
  const auto most = static_cast<size_t>(std::clamp(budget_.left() / 2 / cost, 1.0, 720.0));
  orders_ = with_room(promising_orders(problem_, tree, found_.sites, most));
  if (orders_.empty()) return;
  // With little work to do, what the first order needs the others need, too.
  const bool few = most < kFewOrders;
  if (few && may_recompute()) {
    options.recompute = true;
    pool_.add(split_order(problem_, costs_, orders_.front(), options));
    options.recompute = false;
  }
  for (const Order& order : orders_) {
    if (!budget_.spend(cost) && &order != &orders_.front()) break;
    pool_.add(split_order(problem_, costs_, order, options));
    if (few) options = like_the_best();
  }
  try_groups(tree);
  widen_gap();
  try_recompute();
  try_storing();
  climb();
  try_orders();
}

void Searcher::find_single_peer() {
  if (problem_.stages > 1) return;
  const auto peer = best_single_peer(problem_);
  if (!peer) return;
  const Layout layout{{*peer}, {problem_.chain.units}};
  found_.single_peer = score_layout(problem_, layout);
  pool_.add(layout);
}

void Searcher::find_single_site() {
  Pool best(problem_, options_.keep);
  for (const Order& site : found_.sites) {
    Order order = site;
    sort_by_room(problem_, order);
    const double cost = split_cost(problem_, order.size(), {});
    budget_.spend(std::min(cost, budget_.left()));
    best.add(split_order(problem_, costs_, order, {}));
    if (may_recompute() && budget_.spend(cost)) {
      SplitOptions again;
      again.recompute = true;
      best.add(split_order(problem_, costs_, order, again));
    }
    // Some memory suits early stages, some late ones; of large sites one order is enough.
    if (cost > options_.operations / 50 || !budget_.spend(cost)) continue;
    best.add(split_order(problem_, costs_, Order(order.rbegin(), order.rend()), {}));
  }
  // Climbing may leave the site; what it finds there is a candidate all the same.
  for (const Estimated& item : best.items()) {
    const Scored scored = score_layout(problem_, item.layout);
    if (!std::isfinite(scored.step_s)) continue;
    take_single_site(scored);
    pool_.add(item.layout);
  }
}

bool in_one_site(const std::vector<Order>& sites, const Layout& layout) {
  return std::any_of(sites.begin(), sites.end(), [&](const Order& site) {
    return std::all_of(layout.peers.begin(), layout.peers.end(), [&](int32_t peer) {
      return std::binary_search(site.begin(), site.end(), peer);
    });
  });
}

void Searcher::take_single_site(const Scored& scored) {
  if (!std::isfinite(scored.step_s)) return;
  if (!found_.single_site || scored.step_s < found_.single_site->step_s) {
    found_.single_site = scored;
  }
}

std::vector<Order> Searcher::with_room(std::vector<Order> orders) const {
  std::vector<Order> result;
  std::set<Order> known;
  for (Order& order : orders) {
    std::erase_if(order, [this](int32_t peer) { return !has_room(peer); });
    if (!order.empty() && known.insert(order).second) result.push_back(std::move(order));
  }
  return result;
}

void Searcher::search_each_site() {
  if (!options_.each_site || found_.sites.size() < 2) return;
  SearchOptions alone = options_;
  alone.each_site = false;
  alone.operations /= 4 * static_cast<double>(found_.sites.size());
  for (const Order& site : found_.sites) {
    if (site.size() < 2) continue;
    const Problem inside = among_peers(problem_, site);
    for (Scored& scored : Searcher(inside, alone).run().layouts) {
      for (int32_t& peer : scored.layout.peers) peer = site[static_cast<size_t>(peer)];
      pool_.add(scored.layout);
      take_single_site(scored);
    }
  }
}

void Searcher::try_groups(const Dendrogram& tree) {
  if (!problem_.network.measured()) return;
  const Order path = path_order(tree, problem_.network, typical_bytes(problem_.chain));
  const double reserve = budget_.left() / 2;
  for (size_t k = tree.merges.size(); k-- > 0;) {
    std::vector<bool> inside(problem_.peers(), false);
    for (const int32_t peer : tree.members(tree.peers + static_cast<int32_t>(k))) {
      inside[static_cast<size_t>(peer)] = true;
    }
    Order order;
    for (const int32_t peer : path) {
      if (inside[static_cast<size_t>(peer)] && has_room(peer)) order.push_back(peer);
    }
    if (order.empty()) continue;
    Order slowest_first = order;
    sort_slowest_first(problem_, slowest_first);
    const double cost = split_cost(problem_, order.size(), {});
    for (const Order& each : {slowest_first, order, Order(order.rbegin(), order.rend())}) {
      if (budget_.left() - cost < reserve || !budget_.spend(cost)) return;
      pool_.add(split_order(problem_, costs_, each, {}));
    }
  }
}

void Searcher::widen_gap() {
  if (pool_.items().empty()) return;
  const Layout best = pool_.items().front().layout;
  const int32_t wanted = gap_wanted(problem_, best);
  const MemoryPlan plan = memory_plans(problem_, best, wanted).back();  // recomputes least
  const int32_t given = plan.gap;
  SplitOptions wider;
  wider.slacks = {1.0, 1.3};
  for (wider.gap = wanted; wider.gap > given; wider.gap /= 2) {
    for (size_t i = 0; i < std::min<size_t>(orders_.size(), 3); ++i) {
      if (!budget_.spend(split_cost(problem_, problem_.peers(), wider))) return;
      pool_.add(split_order(problem_, costs_, orders_[i], wider));
    }
  }
}

bool Searcher::may_recompute() const {
  return problem_.recompute == job::Recompute::kAuto && memory_limits(problem_);
}

void Searcher::try_recompute() {
  if (!may_recompute()) return;
  Budget budget(options_.operations / 4);
  SplitOptions again;
  again.recompute = true;
  std::vector<int32_t> gaps{1};
  if (!pool_.items().empty()) {
    const int32_t wanted = gap_wanted(problem_, pool_.items().front().layout);
    if (wanted > 1) gaps.push_back(wanted);
  }
  std::vector<Order> orders = orders_;
  if (problem_.peers() > kMany && !pool_.items().empty()) {
    orders = {near(pool_.items().front().layout)};
  }
  for (const Order& order : orders) {
    const double cost = split_cost(problem_, order.size(), again);
    for (const int32_t gap : gaps) {
      if (!budget.spend(cost) && !pool_.items().empty()) return;
      again.gap = gap;
      pool_.add(split_order(problem_, costs_, order, again));
    }
  }
}

void Searcher::try_storing() {
  if (pool_.items().empty()) return;
  const Estimated quickest = pool_.quickest();
  if (storing_seconds(problem_, quickest.layout) <= quickest.step_s) return;
  std::vector<Order> orders = orders_;
  if (problem_.peers() > kMany || orders.empty()) {
    orders = {near(quickest.layout), near(pool_.items().front().layout)};
  }
  Budget budget(options_.operations / 2);
  SplitOptions limited = like_the_best();
  bool first = true;
  for (const Order& order : orders) {
    constexpr double kClose = 1.05;
    double low = quickest.step_s, high = pool_.items().front().step_s;
    for (double most = low; high > kClose * low; most = std::sqrt(low * high)) {
      if (!budget.spend(split_cost(problem_, order.size(), limited)) && !first) return;
      first = false;
      limited.most_storing_s = most / problem_.schedule.micro_batches;
      const std::vector<Layout> layouts = split_order(problem_, costs_, order, limited);
      pool_.add(layouts);
      (layouts.empty() ? low : high) = most;
    }
  }
}

SplitOptions Searcher::like_the_best() const {
  return pool_.items().empty() ? SplitOptions{} : like(pool_.items().front().layout);
}

SplitOptions Searcher::like(const Layout& layout) const {
  SplitOptions options;
  const MemoryPlan plan = estimate(problem_, layout).plan;
  options.gap = std::max(plan.gap, 1);
  options.recompute =
      std::find(plan.recompute.begin(), plan.recompute.end(), true) != plan.recompute.end();
  if (!pool_.items().empty()) {
    options.most_storing_s = pool_.items().front().step_s / problem_.schedule.micro_batches;
  }
  return options;
}

Order Searcher::near(const Layout& layout) const {
  Order order = with_idle(layout.peers);
  order.resize(std::min(order.size(), std::max(kMany, layout.peers.size())));
  return order;
}

Order Searcher::with_idle(Order order) const {
  std::vector<bool> used(problem_.peers(), false);
  for (const int32_t peer : order) used[static_cast<size_t>(peer)] = true;
  for (size_t peer = 0; peer < used.size(); ++peer) {
    const auto at = static_cast<int32_t>(peer);
    if (!used[peer] && has_room(at)) order.push_back(at);
  }
  return order;
}

}  // namespace weft::broker
