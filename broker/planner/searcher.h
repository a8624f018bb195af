// The search over one problem (search.h), step by step: exact splits of promising orders, groups of
// the tree, wider gaps, recompute; then local search (searcher_climb.cpp). Private to the search.
// Pure.
#pragma once

#include <optional>
#include <vector>

#include "broker/planner/cluster.h"
#include "broker/planner/orders.h"
#include "broker/planner/search.h"
#include "broker/planner/search_pool.h"
#include "broker/planner/split.h"

namespace weft::broker {

// The peer that takes least for everything; none: no peer can hold it.
std::optional<int32_t> best_single_peer(const Problem& problem);

// Whether one of the sites, each ascending, has all of its peers.
bool in_one_site(const std::vector<Order>& sites, const Layout& layout);

// Problem and options must outlive it.
class Searcher {
 public:
  Searcher(const Problem& problem, const SearchOptions& options)
      : problem_(problem),
        options_(options),
        budget_(options.operations),
        costs_(problem),
        pool_(problem, 4 * options.keep) {}

  Found run();
  // The most promising layouts by the closed form, of different numbers of stages.
  std::vector<Layout> explore();
  // From layouts that were found with fewer places to cut.
  Found refine(const std::vector<Layout>& known, std::vector<Order> sites);

 private:
  static constexpr size_t kFewOrders = 8;
  static constexpr size_t kMany = 48;  // of more, extra splits take those near the best so far

  Dendrogram clusters();
  void explore(const Dendrogram& tree);

  void find_single_peer();
  void find_single_site();
  void take_single_site(const Scored& scored);
  void refine_single_site(const std::vector<Layout>& known);

  // Exact splits for the orders of the best so far.
  void split_again();

  bool has_room(int32_t peer) const { return problem_.memory_bytes[static_cast<size_t>(peer)] > 0; }
  // Orders without the peers that can hold nothing, each once.
  std::vector<Order> with_room(std::vector<Order> orders) const;
  // A search over everybody may miss what one over a site's own peers finds.
  void search_each_site();

  // Every group of the tree by itself, the slowest first, along the path and against it: what a
  // split of all peers skips one by one, it may as well leave out whole.
  void try_groups(const Dendrogram& tree);
  // Where memory keeps the gap below what links ask for: splits that leave room for a wider one.
  void widen_gap();
  bool may_recompute() const;
  // The splits so far keep everything. Where memory may be what limits them: the same orders, with
  // stages that may recompute, at gap 1 and at the one that links ask for. The work comes on top,
  // so that what memory does not limit is found as if there were no such choice.
  void try_recompute();
  // The splits so far do not look at what checkpoints take. Where that is what limits the best of
  // them: splits whose stages store within the step that it would be without; where there are none,
  // bisection between that and the best. On top, too.
  void try_storing();

  // Of splits from here on: as the best so far; nothing that stores longer is better than it.
  SplitOptions like_the_best() const;
  SplitOptions like(const Layout& layout) const;
  // The peers of a layout, and idle ones up to what may be split again and again.
  Order near(const Layout& layout) const;

  // Local search from the best, and the best of other numbers of stages (what climbs from there
  // ends elsewhere), each followed by the exact split for the order it found.
  void climb();
  // From the best of a few numbers of stages, with what is left; the exact split has the last word.
  void wander_on();
  // Exact splits for orders near the best one, idle peers behind it, as long as that helps.
  void try_orders();
  // The closed form has done its part: what is left is moved by what the play says, from the best
  // layouts of a few numbers of stages.
  void polish();
  void sort_found();
  Order with_idle(Order order) const;
  void play();

  const Problem& problem_;
  const SearchOptions& options_;
  Budget budget_;
  CutCosts costs_;
  Pool pool_;
  std::vector<Order> orders_;
  Found found_;
};

}  // namespace weft::broker
