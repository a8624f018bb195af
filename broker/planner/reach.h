// Reachability over cuts under two bounds, in words of bits; private to the split (split.h).
#pragma once

#include <cstdint>
#include <vector>

#include "broker/planner/cut_costs.h"
#include "broker/planner/problem.h"

namespace weft::broker {

struct Bounds {
  double compute_s = 0;  // of a stage, one micro-batch
  double link_s = 0;     // of a transfer, one micro-batch
};

class Reach {
 public:
  // problem, its costs and order must outlive it. depths: most stages of a layout.
  // recompute: stages may run forwards again (where the problem says always, they must).
  Reach(const Problem& problem, const CutCosts& costs, const std::vector<int32_t>& order,
        int32_t gap, int32_t depths, bool recompute);

  // Whether any layout keeps the bounds: of `stages` stages, or of any number for 0.
  bool feasible(const Bounds& bounds, int32_t stages);

  // A layout that keeps the bounds of the last feasible(), which must have said yes for `stages`:
  // the fewest stages, each of them as long as it can be.
  Layout trace(int32_t stages) const;

  // The earliest cut from which the peer at a position can run up to `end` at a depth and keep
  // everything, within the compute bound of the last feasible() and its memory; `end` itself where
  // it cannot.
  int32_t earliest(int32_t depth, size_t position, int32_t end) const;
  // The latest cut up to which it can run from `begin` and recompute; `begin` itself where it
  // cannot. What a run is given grows with its end, but not with its beginning.
  int32_t latest(int32_t depth, size_t position, int32_t begin) const;
  bool recomputes() const { return !latest_by_memory_.empty(); }
  // Seconds a micro-batch's transfer over a cut counts in the bound.
  double link_seconds(size_t from, size_t to, int32_t cut) const {
    return CutCosts::seconds(kind_of(from, to), coefficient_[from * n_ + to], cut);
  }
  const CutCosts::Kind& kind_of(size_t from, size_t to) const {
    return costs_.kind(costs_.kind_of(order_[from], order_[to]));
  }
  double slowest_transfer() const;
  int32_t depths() const { return depths_; }

 private:
  void find_earliest_by_memory(int32_t gap);
  void find_latest_by_memory(int32_t gap);
  void find_earliest_by_time(double compute_s);
  void find_latest_by_time(double compute_s);
  bool runs(int32_t depth, size_t position, int32_t begin, int32_t end) const {
    return earliest(depth, position, end) <= begin ||
           (recomputes() && end <= latest(depth, position, begin));
  }
  void find_allowed_cuts(double link_s);
  const uint64_t* begins(int32_t depth, size_t position) const {
    return &begins_[(static_cast<size_t>(depth) * n_ + position) * words_];
  }

  // Cuts that the link bound allows between two positions.
  const uint64_t* allowed_cuts(size_t from, size_t to) const {
    return &kind_of(from, to).lightest[allowed_[from * n_ + to] * words_];
  }

  const Problem& problem_;
  const CutCosts& costs_;
  const std::vector<int32_t>& order_;
  size_t n_ = 0, cuts_ = 0, words_ = 0;
  int32_t depths_ = 0;
  std::vector<double> coefficient_;  // [from * n + to]: seconds a byte
  std::vector<size_t> allowed_;      // [from * n + to]: how many of the lightest cuts
  std::vector<int32_t> by_time_;     // [position * cuts + end]
  std::vector<int32_t> by_memory_;   // [(depth * n + position) * cuts + end]; empty: no limit
  // As these two, by begin; empty where no stage recomputes.
  std::vector<int32_t> latest_by_time_, latest_by_memory_;
  std::vector<uint64_t> begins_;  // [(depth * n + position) * words]
  std::vector<uint64_t> ends_;    // [words], of the peer at hand
};

}  // namespace weft::broker
