#include "broker/planner/search.h"

#include <algorithm>
#include <numeric>

#include "broker/planner/part.h"
#include "broker/planner/searcher.h"

namespace weft::broker {
namespace {

// Of many peers: parts of them, and all of them, with fewer places to cut. Then, with all places,
// from the best of these layouts, among their peers and those that may stand in for them.
class ManyPeers {
 public:
  ManyPeers(const Problem& problem, const SearchOptions& options)
      : problem_(problem),
        options_(options),
        cuts_(thin_cuts(problem, std::max(kCuts, 3 * problem.stages))),
        coarse_(among_cuts(problem, cuts_)),
        tree_(cluster(problem.network, typical_bytes(problem.chain))),
        sites_(sites(tree_)) {}

  Found run() {
    const size_t size = std::max(kPart, 2 * static_cast<size_t>(problem_.stages));
    const Order everybody = all_peers(problem_);
    const Order many = most_promising(problem_, everybody, std::max(kMany, size));
    if (many.empty()) return nothing();
    search_parts(size);
    search_other_sites();
    explore(among_peers(coarse_, many), cuts_, many, kWholeShare);
    if (known_.items().empty() && could_fit()) {  // what fits with all places to cut only
      std::vector<int32_t> all(static_cast<size_t>(problem_.chain.units) + 1);
      std::iota(all.begin(), all.end(), 0);
      explore(among_peers(problem_, many), all, many, kWholeShare);
      const Order few = most_promising(problem_, everybody, size);  // leaves work for many orders
      explore(among_peers(problem_, few), all, few, 1);
      for (const Order& part : parts_) {
        if (known_.items().empty()) explore(among_peers(problem_, part), all, part, kWholeShare);
      }
    }
    return refine(std::max(kFocus, size));
  }

 private:
  static constexpr int32_t kCuts = 64;
  static constexpr size_t kPart = 24, kParts = 12, kMany = 96, kFocus = 48;
  static constexpr double kPartsShare = 0.1, kWholeShare = 0.4;

  Found nothing() const {
    Found none;
    none.sites = sites_;
    return none;
  }

  // Whether anything would fit if all peers with room were as roomy as the roomiest: else nothing
  // does, in whatever order.
  bool could_fit() const {
    Problem roomy = problem_;
    const double most = *std::max_element(roomy.memory_bytes.begin(), roomy.memory_bytes.end());
    const Order order = most_promising(problem_, all_peers(problem_), problem_.peers());
    std::fill(roomy.memory_bytes.begin(), roomy.memory_bytes.end(), most);
    SplitOptions options;
    options.recompute = problem_.recompute != job::Recompute::kNever;
    return any_fits(roomy, CutCosts(roomy), order, options);
  }

  // Where most peers are asked for, parts of them are no plan.
  void search_parts(size_t size) {
    if (2 * static_cast<size_t>(problem_.stages) >= problem_.peers()) return;
    parts_ = promising_parts(problem_, tree_, sites_, size, kParts);
    // Some splits are made whatever they take.
    std::erase_if(parts_, [&](const Order& part) {
      return split_cost(coarse_, part.size(), {}) > kPartsShare * options_.operations;
    });
    for (const Order& part : parts_) {
      explore(among_peers(coarse_, part), cuts_, part,
              kPartsShare / static_cast<double>(parts_.size()));
    }
  }

  // So that the best single site is among the sites that are no parts, too, if it is there.
  void search_other_sites() {
    Budget budget(kPartsShare * options_.operations);
    for (const Order& site : sites_) {
      const Order part = most_promising(problem_, site, kPart);
      if (part.size() < 2 || std::find(parts_.begin(), parts_.end(), part) != parts_.end())
        continue;
      if (!budget.spend(2 * split_cost(coarse_, part.size(), {}))) return;
      explore(among_peers(coarse_, part), cuts_, part, 0);
    }
  }

  // part: of these peers, with these cuts.
  void explore(const Problem& part, const std::vector<int32_t>& cuts, const Order& peers,
               double share) {
    SearchOptions alone = options_;
    alone.operations *= share;
    for (Layout& layout : Searcher(part, alone).explore()) {
      for (int32_t& peer : layout.peers) peer = peers[static_cast<size_t>(peer)];
      for (int32_t& end : layout.ends) end = cuts[static_cast<size_t>(end)];
      known_.add(layout);
      if (in_one_site(sites_, layout)) in_one_site_.add(layout);
    }
  }

  Found refine(size_t size) {
    if (known_.items().empty()) return nothing();
    const Order focus = focus_of(size);
    std::vector<int32_t> at(problem_.peers(), -1);
    for (size_t i = 0; i < focus.size(); ++i) {
      at[static_cast<size_t>(focus[i])] = static_cast<int32_t>(i);
    }
    const auto inside = [&](int32_t peer) { return at[static_cast<size_t>(peer)]; };
    std::vector<Layout> known;
    std::vector<Estimated> items = known_.items();
    items.insert(items.end(), in_one_site_.items().begin(), in_one_site_.items().end());
    items.push_back(known_.quickest());
    for (const Estimated& item : items) {
      Layout layout = item.layout;
      std::transform(layout.peers.begin(), layout.peers.end(), layout.peers.begin(), inside);
      if (std::find(layout.peers.begin(), layout.peers.end(), -1) == layout.peers.end()) {
        known.push_back(std::move(layout));
      }
    }
    std::vector<Order> parts_of_sites;
    for (const Order& site : sites_) {
      Order part;
      for (const int32_t peer : site) {
        if (inside(peer) >= 0) part.push_back(inside(peer));
      }
      if (!part.empty()) parts_of_sites.push_back(std::move(part));
    }
    SearchOptions rest = options_;
    rest.operations *= 1 - kPartsShare - kWholeShare;
    const Problem among = among_peers(problem_, focus);
    Found found = Searcher(among, rest).refine(known, std::move(parts_of_sites));
    const auto outside = [&](Scored& scored) {
      for (int32_t& peer : scored.layout.peers) peer = focus[static_cast<size_t>(peer)];
    };
    for (Scored& scored : found.layouts) outside(scored);
    for (auto* single : {&found.single_peer, &found.single_site}) {
      if (*single) outside(**single);
    }
    found.sites = sites_;
    return found;
  }

  // The peers of the best layouts, then of their sites, then of all the most promising ones;
  // ascending.
  Order focus_of(size_t size) const {
    Order focus;
    std::vector<bool> taken(problem_.peers(), false);
    const auto take = [&](int32_t peer) {
      if (focus.size() >= size || taken[static_cast<size_t>(peer)]) return;
      taken[static_cast<size_t>(peer)] = true;
      focus.push_back(peer);
    };
    const auto take_all = [&](const Layout& layout) {
      if (focus.size() + layout.peers.size() > size) return;
      for (const int32_t peer : layout.peers) take(peer);
    };
    take_all(known_.items().front().layout);
    take_all(known_.quickest().layout);
    if (!in_one_site_.items().empty()) take_all(in_one_site_.items().front().layout);
    if (problem_.stages <= 1) {
      if (const auto peer = best_single_peer(problem_)) take(*peer);
    }
    for (const Estimated& item : known_.items()) {
      if (focus.size() < size * 3 / 4) take_all(item.layout);
    }
    const Order chosen = focus;
    for (const Order& site : sites_) {
      const auto inside = [&](int32_t peer) {
        return std::binary_search(site.begin(), site.end(), peer);
      };
      if (std::none_of(chosen.begin(), chosen.end(), inside)) continue;
      for (const int32_t peer : most_promising(problem_, site, size / 4)) take(peer);
    }
    for (const int32_t peer : most_promising(problem_, all_peers(problem_), size)) take(peer);
    std::sort(focus.begin(), focus.end());
    return focus;
  }

  const Problem& problem_;
  const SearchOptions& options_;
  std::vector<int32_t> cuts_;
  Problem coarse_;
  Dendrogram tree_;
  std::vector<Order> sites_, parts_;
  Pool known_{problem_, 4 * options_.keep};
  Pool in_one_site_{problem_, 4};  // of these, which others may crowd out
};

}  // namespace

Found search(const Problem& problem, const SearchOptions& options) {
  if (problem.peers() == 0 || problem.chain.units == 0) return {};
  if (problem.peers() <= kFewPeers) return Searcher(problem, options).run();
  return ManyPeers(problem, options).run();
}

}  // namespace weft::broker
