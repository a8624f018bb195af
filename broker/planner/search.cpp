#include "broker/planner/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "broker/planner/cluster.h"
#include "broker/planner/local_search.h"
#include "broker/planner/orders.h"
#include "broker/planner/search_pool.h"
#include "broker/planner/split.h"

namespace weft::broker {
namespace {

class Searcher {
 public:
  Searcher(const Problem& problem, const SearchOptions& options)
      : problem_(problem),
        options_(options),
        budget_(options.operations),
        costs_(problem),
        pool_(problem, 4 * options.keep) {}

  Found run() {
    const Dendrogram tree = cluster(problem_.network, typical_bytes(problem_.chain));
    found_.sites = sites(tree);
    find_single_peer();
    find_single_site();
    search_each_site();
    const SplitOptions plain;
    const double cost = split_cost(problem_, problem_.peers(), plain);
    const auto most = static_cast<size_t>(std::clamp(budget_.left() / 2 / cost, 1.0, 720.0));
    orders_ = with_room(promising_orders(problem_, tree, found_.sites, most));
    for (const Order& order : orders_) {
      if (!budget_.spend(cost) && !pool_.items().empty()) break;
      pool_.add(split_order(problem_, costs_, order, plain));
    }
    try_groups(tree);
    widen_gap();
    try_recompute();
    try_storing();
    climb();
    try_orders();
    play();
    polish();
    return std::move(found_);
  }

 private:
  static constexpr size_t kMany = 48;  // of more, extra splits take those near the best so far

  void find_single_peer() {
    if (problem_.stages > 1) return;
    Pool best(problem_, 1);
    for (size_t peer = 0; peer < problem_.peers(); ++peer) {
      best.add(Layout{{static_cast<int32_t>(peer)}, {problem_.chain.units}});
    }
    if (best.items().empty()) return;
    found_.single_peer = score_layout(problem_, best.items().front().layout);
    pool_.add(best.items().front().layout);
  }

  void find_single_site() {
    Pool best(problem_, options_.keep);
    for (const Order& site : found_.sites) {
      Order order = site;
      sort_by_room(problem_, order);
      const double cost = split_cost(problem_, order.size(), {});
      budget_.spend(std::min(cost, budget_.left()));
      best.add(split_order(problem_, costs_, order, {}));
      if (problem_.recompute == job::Recompute::kAuto && memory_limits() && budget_.spend(cost)) {
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
      if (!found_.single_site || scored.step_s < found_.single_site->step_s) {
        found_.single_site = scored;
      }
      pool_.add(item.layout);
    }
  }

  bool has_room(int32_t peer) const { return problem_.memory_bytes[static_cast<size_t>(peer)] > 0; }

  // Orders without the peers that can hold nothing, each once.
  std::vector<Order> with_room(std::vector<Order> orders) const {
    std::vector<Order> result;
    std::set<Order> known;
    for (Order& order : orders) {
      std::erase_if(order, [this](int32_t peer) { return !has_room(peer); });
      if (!order.empty() && known.insert(order).second) result.push_back(std::move(order));
    }
    return result;
  }

  // A search over everybody may miss what one over a site's own peers finds. The others have no
  // memory then.
  void search_each_site() {
    constexpr size_t kFew = 12;
    if (!options_.each_site || found_.sites.size() < 2 || problem_.peers() > kFew) return;
    SearchOptions alone = options_;
    alone.each_site = false;
    alone.operations /= 4 * static_cast<double>(found_.sites.size());
    for (const Order& site : found_.sites) {
      if (site.size() < 2) continue;
      Problem inside = problem_;
      std::fill(inside.memory_bytes.begin(), inside.memory_bytes.end(), 0.0);
      for (const int32_t peer : site) {
        const auto at = static_cast<size_t>(peer);
        inside.memory_bytes[at] = problem_.memory_bytes[at];
      }
      for (const Scored& scored : Searcher(inside, alone).run().layouts) {
        pool_.add(scored.layout);
        if (!found_.single_site || scored.step_s < found_.single_site->step_s) {
          found_.single_site = scored;
        }
      }
    }
  }

  // Every group of the tree by itself, along the path and against it: what a split of all peers
  // skips one by one, it may as well leave out whole.
  void try_groups(const Dendrogram& tree) {
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
      for (const bool reversed : {false, true}) {
        const double cost = split_cost(problem_, order.size(), {});
        if (budget_.left() - cost < reserve || !budget_.spend(cost)) return;
        pool_.add(split_order(problem_, costs_, order, {}));
        if (!reversed) std::reverse(order.begin(), order.end());
      }
    }
  }

  // Where memory keeps the gap below what links ask for: splits that leave room for a wider one.
  void widen_gap() {
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

  // Whether some peer could not keep what the deepest stage may have to keep of the whole chain.
  bool memory_limits() const {
    const int32_t deepest = problem_.most_stages - 1;
    const size_t whole = problem_.chain.at(0, problem_.chain.units);
    job::ScheduleOptions schedule = problem_.schedule;
    schedule.gap = schedule.micro_batches;
    const double most =
        run_bytes(problem_.chain, whole, job::in_flight_of(schedule, deepest, deepest));
    return std::any_of(problem_.memory_bytes.begin(), problem_.memory_bytes.end(),
                       [&](double room) { return room < most; });
  }

  // The splits so far keep everything. Where memory may be what limits them: the same orders, with
  // stages that may recompute, at gap 1 and at the one that links ask for. The work comes on top,
  // so that what memory does not limit is found as if there were no such choice.
  void try_recompute() {
    if (problem_.recompute != job::Recompute::kAuto || !memory_limits()) return;
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

  // The splits so far do not look at what checkpoints take. Where that is what limits the best of
  // them: splits whose stages store within the step that it would be without; where there are none,
  // bisection between that and the best. On top, too.
  void try_storing() {
    if (pool_.items().empty()) return;
    const Estimated quickest = pool_.quickest();
    if (storing_seconds(problem_, quickest.layout) <= quickest.step_s) return;
    std::vector<Order> orders = orders_;
    if (problem_.peers() > kMany) {
      orders = {near(quickest.layout), near(pool_.items().front().layout)};
    }
    Budget budget(options_.operations / 4);
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

  // Of splits from here on: as the best so far; nothing that stores longer is better than it.
  SplitOptions like_the_best() const {
    SplitOptions options;
    if (pool_.items().empty()) return options;
    const Estimated& best = pool_.items().front();
    options.recompute = recomputes(problem_, best.layout);
    options.most_storing_s = best.step_s / problem_.schedule.micro_batches;
    return options;
  }

  // The peers of a layout, and idle ones up to what may be split again and again.
  Order near(const Layout& layout) const {
    Order order = with_idle(layout.peers);
    order.resize(std::min(order.size(), std::max(kMany, layout.peers.size())));
    return order;
  }

  // Local search from the best, and the best of other numbers of stages (what climbs from there
  // ends elsewhere), each followed by the exact split for the order it found.
  void climb() {
    constexpr size_t kStarts = 6;
    const std::vector<Layout> starts = one_of_each_count(pool_.items(), kStarts);
    const SplitOptions options = like_the_best();
    for (const Layout& start : starts) {
      const double trials = budget_.left() / (4 * kStarts * 30.0 * (2 + double(start.ends.size())));
      if (trials < 1) return;
      const Layout better = improve(problem_, start, static_cast<size_t>(trials));
      budget_.spend(std::min(budget_.left(), trials));
      pool_.add(better);
      if (budget_.spend(split_cost(problem_, better.peers.size(), options))) {
        pool_.add(split_order(problem_, costs_, better.peers, options));
      }
    }
  }

  // Exact splits for orders near the best one, idle peers behind it, as long as that helps.
  void try_orders() {
    if (pool_.items().empty()) return;
    const SplitOptions options = like_the_best();
    const double cost = split_cost(problem_, problem_.peers(), options);
    for (bool better = true; better;) {
      better = false;
      const Order order = with_idle(pool_.items().front().layout.peers);
      for (size_t a = 0; a < order.size() && !better; ++a) {
        for (size_t b = a + 1; b < order.size() && !better; ++b) {
          for (const bool reverse : {false, true}) {
            if (reverse && b == a + 1) continue;
            if (!budget_.spend(cost)) return;
            Order changed = order;
            const auto first = changed.begin() + static_cast<std::ptrdiff_t>(a);
            const auto last = changed.begin() + static_cast<std::ptrdiff_t>(b);
            reverse ? std::reverse(first, last + 1) : std::iter_swap(first, last);
            better = pool_.add(split_order(problem_, costs_, changed, options)) || better;
          }
        }
      }
    }
  }

  // The closed form has done its part: what is left is moved by what the play says, from the best
  // layouts of a few numbers of stages.
  void polish() {
    constexpr size_t kStarts = 4;
    constexpr double kAction = 20;  // operations to play one, about
    for (const Layout& start : one_of_each_count(found_.layouts, kStarts)) {
      const auto actions =
          7 * start.ends.size() * static_cast<size_t>(problem_.schedule.micro_batches);
      const double each = kAction * static_cast<double>(std::min(kPlayedActions, actions));
      const double trials = std::min(2000.0, options_.operations / (8 * kStarts) / each);
      const Layout better = improve(problem_, start, static_cast<size_t>(trials),
                                    [](const Problem& problem, const Layout& layout) {
                                      return score_layout(problem, layout).step_s;
                                    });
      if (better != start) found_.layouts.push_back(score_layout(problem_, better));
    }
    sort_found();
  }

  void sort_found() {
    auto& layouts = found_.layouts;
    std::stable_sort(layouts.begin(), layouts.end(), [&](const Scored& a, const Scored& b) {
      return before(a.step_s, slowest_stage(problem_, a.layout), b.step_s,
                    slowest_stage(problem_, b.layout));
    });
    std::vector<Scored> distinct;
    for (Scored& scored : layouts) {
      const bool known = std::any_of(distinct.begin(), distinct.end(), [&](const Scored& other) {
        return other.layout == scored.layout;
      });
      if (!known && distinct.size() < options_.keep) distinct.push_back(std::move(scored));
    }
    layouts = std::move(distinct);
  }

  Order with_idle(Order order) const {
    std::vector<bool> used(problem_.peers(), false);
    for (const int32_t peer : order) used[static_cast<size_t>(peer)] = true;
    for (size_t peer = 0; peer < used.size(); ++peer) {
      const auto at = static_cast<int32_t>(peer);
      if (!used[peer] && has_room(at)) order.push_back(at);
    }
    return order;
  }

  void play() {
    std::vector<Layout> played = one_of_each_count(pool_.items(), options_.keep);
    for (size_t i = 0; i < std::min(options_.keep, pool_.items().size()); ++i) {
      played.push_back(pool_.items()[i].layout);
    }
    for (const Layout& layout : played) {
      const Scored scored = score_layout(problem_, layout);
      if (std::isfinite(scored.step_s)) found_.layouts.push_back(scored);
    }
    for (const auto& single : {found_.single_peer, found_.single_site}) {
      if (single) found_.layouts.push_back(*single);
    }
    sort_found();
  }

  const Problem& problem_;
  const SearchOptions& options_;
  Budget budget_;
  CutCosts costs_;
  Pool pool_;
  std::vector<Order> orders_;
  Found found_;
};

}  // namespace

Found search(const Problem& problem, const SearchOptions& options) {
  if (problem.peers() == 0 || problem.chain.units == 0) return {};
  return Searcher(problem, options).run();
}

}  // namespace weft::broker
