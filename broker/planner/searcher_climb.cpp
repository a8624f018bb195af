// What begins from layouts: exact splits for their orders, local search, and the play that decides.
#include <algorithm>
#include <cmath>
#include <set>

#include "broker/planner/local_search.h"
#include "broker/planner/searcher.h"

namespace weft::broker {

Found Searcher::refine(const std::vector<Layout>& known, std::vector<Order> sites) {
  found_.sites = std::move(sites);
  find_single_peer();
  if (found_.single_peer) take_single_site(*found_.single_peer);
  for (const Layout& layout : known) pool_.add(layout);
  refine_single_site(known);
  split_again();
  try_storing();
  climb();
  wander_on();
  play();
  polish();
  for (const Scored& scored : found_.layouts) {
    if (in_one_site(found_.sites, scored.layout)) take_single_site(scored);
  }
  return std::move(found_);
}

void Searcher::refine_single_site(const std::vector<Layout>& known) {
  if (problem_.stages == 1) return;
  Pool best(problem_, 3);
  for (const Layout& layout : known) {
    if (in_one_site(found_.sites, layout)) best.add(layout);
  }
  for (const Estimated& item : best.items()) {
    const SplitOptions options = like(item.layout);
    take_single_site(score_layout(problem_, item.layout));
    const double cost = split_cost(problem_, item.layout.peers.size(), options);
    if (!budget_.spend(cost)) continue;
    Pool split(problem_, 2);
    split.add(split_order(problem_, costs_, item.layout.peers, options));
    for (const Estimated& better : split.items()) {
      take_single_site(score_layout(problem_, better.layout));
      pool_.add(better.layout);
    }
  }
}

void Searcher::split_again() {
  constexpr size_t kOrders = 8;
  std::set<Order> known;
  std::vector<Layout> best;
  for (const Estimated& item : pool_.items()) {
    if (best.size() < kOrders && known.insert(item.layout.peers).second) {
      best.push_back(item.layout);
    }
  }
  for (const Layout& layout : best) {
    SplitOptions options = like(layout);
    const double cost = split_cost(problem_, layout.peers.size(), options);
    const int32_t wanted = gap_wanted(problem_, layout);
    for (options.gap = std::max(wanted, 1); options.gap > 0; options.gap /= 2) {
      if (!budget_.spend(cost)) return;
      pool_.add(split_order(problem_, costs_, layout.peers, options));
    }
  }
}

void Searcher::climb() {
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

void Searcher::wander_on() {
  constexpr size_t kStarts = 3;
  constexpr double kTrial = 100;  // operations of a stage's share of a judgement
  const std::vector<Layout> starts = one_of_each_count(pool_.items(), kStarts);
  const double share = budget_.left() / 2 / kStarts;
  for (const Layout& start : starts) {
    const double trials = share / (kTrial * (2 + static_cast<double>(start.ends.size())));
    if (trials < 1) return;
    budget_.spend(share);
    const Layout better = wander(problem_, start, static_cast<size_t>(trials), start.ends.size());
    pool_.add(better);
    const SplitOptions options = like(better);
    if (!budget_.spend(split_cost(problem_, better.peers.size(), options))) continue;
    pool_.add(split_order(problem_, costs_, better.peers, options));
  }
}

void Searcher::try_orders() {
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

void Searcher::polish() {
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

void Searcher::sort_found() {
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

void Searcher::play() {
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

}  // namespace weft::broker
