// What the search keeps count of: the best layouts met so far, and the work that is left. Private
// to the search. Pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "broker/planner/problem.h"

namespace weft::broker {

struct Estimated {
  Layout layout;
  double step_s = 0;
  double slowest_s = 0;  // tells equal steps apart
};

inline bool before(double step_a, double slow_a, double step_b, double slow_b) {
  constexpr double kSame = 1e-9;
  if (std::abs(step_a - step_b) > kSame * std::max(step_a, step_b)) return step_a < step_b;
  return slow_a < slow_b;
}

// The best layouts met so far, by the closed form; bounded.
class Pool {
 public:
  Pool(const Problem& problem, size_t keep) : problem_(problem), keep_(keep) {}

  bool add(const Layout& layout) {
    for (const Estimated& known : items_) {
      if (known.layout == layout) return false;
    }
    Estimated item{layout, estimate_step(problem_, layout), slowest_stage(problem_, layout)};
    if (!std::isfinite(item.step_s)) return false;
    if (item.step_s < quickest_.step_s) quickest_ = item;
    item.step_s = std::max(item.step_s, storing_seconds(problem_, layout));
    const auto at = std::find_if(items_.begin(), items_.end(), [&](const Estimated& other) {
      return before(item.step_s, item.slowest_s, other.step_s, other.slowest_s);
    });
    const bool first = at == items_.begin();
    items_.insert(at, std::move(item));
    if (items_.size() > keep_) items_.pop_back();
    return first;
  }
  bool add(const std::vector<Layout>& layouts) {
    bool first = false;
    for (const Layout& layout : layouts) first = add(layout) || first;
    return first;
  }
  const std::vector<Estimated>& items() const { return items_; }
  // The best if storing checkpoints took nothing.
  const Estimated& quickest() const { return quickest_; }

 private:
  const Problem& problem_;
  size_t keep_;
  std::vector<Estimated> items_;
  Estimated quickest_{{}, std::numeric_limits<double>::infinity(), 0};
};

// The best of each number of stages, in the order given, at most `most`.
template <typename Items>
std::vector<Layout> one_of_each_count(const Items& items, size_t most) {
  std::vector<Layout> best;
  for (const auto& item : items) {
    const bool known = std::any_of(best.begin(), best.end(), [&](const Layout& other) {
      return other.ends.size() == item.layout.ends.size();
    });
    if (!known && best.size() < most) best.push_back(item.layout);
  }
  return best;
}

// Counts down; a search stops where the next piece of work would go below nothing.
class Budget {
 public:
  explicit Budget(double operations) : left_(operations) {}
  bool spend(double operations) {
    if (operations > left_) return false;
    left_ -= operations;
    return true;
  }
  double left() const { return left_; }

 private:
  double left_;
};

}  // namespace weft::broker
