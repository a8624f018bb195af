// Reachability over cuts under two bounds, in words of bits; private to the split (split.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "broker/planner/cut_costs.h"
#include "broker/planner/problem.h"
#include "broker/planner/split.h"

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
        const SplitOptions& options, int32_t depths, bool recompute);

  // Whether any layout keeps the bounds: of `stages` stages, or of any number for 0.
  bool feasible(const Bounds& bounds, int32_t stages);

  // A layout that keeps the bounds of the last feasible(), which must have said yes for `stages`:
  // the fewest stages, each of them as long as it can be.
  Layout trace(int32_t stages) const;

  // How far a stage reaches from where it begins, within the compute bound of the last feasible()
  // and its peer's memory: the latest cut at which the peer at a position and depth can end if it
  // begins at `begin`; `begin` itself where it cannot. What a run is given grows with its end, but
  // not with its beginning.
  struct Ends {
    bool chosen = false;             // whether stages run so
    std::vector<int32_t> by_time;    // [position * cuts + begin]
    std::vector<int32_t> by_memory;  // [(depth * rooms + room) * cuts + begin]; empty: no limit
  };
  const Ends& keeping() const { return keeping_; }
  const Ends& recomputing() const { return recomputing_; }
  int32_t latest(const Ends& ends, int32_t depth, size_t position, int32_t begin) const {
    if (!ends.chosen) return begin;
    const auto at = static_cast<size_t>(begin);
    const int32_t by_time = ends.by_time[position * cuts_ + at];
    if (ends.by_memory.empty()) return by_time;
    const size_t row = static_cast<size_t>(depth) * rooms_.size() + room_of_[position];
    return std::min(by_time, ends.by_memory[row * cuts_ + at]);
  }

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
  void find_rooms();
  bool memory_limits(const job::ScheduleOptions& schedule) const;
  void find_by_memory(const job::ScheduleOptions& schedule, bool recompute);
  void find_by_time(double compute_s, bool recompute);
  void find_allowed_cuts(double link_s);
  bool find_ends(int32_t depth, size_t position);
  void find_begins(int32_t depth, size_t position);
  void gather(int32_t depth);

  int32_t latest(int32_t depth, size_t position, int32_t begin) const {
    return std::max(latest(keeping_, depth, position, begin),
                    latest(recomputing_, depth, position, begin));
  }
  const uint64_t* begins(int32_t depth, size_t position) const {
    return &begins_[(static_cast<size_t>(depth) * n_ + position) * words_];
  }
  // Cuts that the link bound allows between two positions.
  const uint64_t* allowed_cuts(size_t from, size_t to) const { return allowed_[from * n_ + to]; }

  const Problem& problem_;
  const CutCosts& costs_;
  const std::vector<int32_t>& order_;
  size_t n_ = 0, cuts_ = 0, words_ = 0;
  int32_t depths_ = 0, kept_for_ = 0;
  double most_storing_s_ = 0;
  std::vector<double> coefficient_;       // [from * n + to]: seconds a byte
  std::vector<const uint64_t*> allowed_;  // [from * n + to]
  std::vector<double> rooms_;             // distinct memories of the peers
  std::vector<size_t> room_of_;           // [position]
  Ends keeping_, recomputing_;
  double compute_s_ = -1, link_s_ = -1;  // of the last feasible()
  std::vector<uint64_t> begins_;         // [(depth * n + position) * words]
  std::vector<uint64_t> behind_;  // [position * words]: begins of all that follow, one depth less
  std::vector<uint64_t> ends_;    // [words], of the peer at hand
};

}  // namespace weft::broker
