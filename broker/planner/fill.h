// Compute and transfer of a split summed, least under bounds; layered by depth. Private to the
// split (split.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "broker/planner/reach.h"

namespace weft::broker {

// Ends of a stage with what all up to there and on from there takes; asked for the least of those
// up to some end while earlier ones come in.
class LeastEnd {
 public:
  void clear() { ends_.clear(); }
  // Before all that are in.
  void add(int32_t end, double seconds) {
    while (!ends_.empty() && ends_.back().seconds >= seconds) ends_.pop_back();
    ends_.push_back({end, seconds});
  }
  struct Item {
    int32_t end = 0;
    double seconds = 0;
  };
  // The first of the least up to `latest`; nullptr: none is in.
  const Item* least(int32_t latest) const;

 private:
  std::vector<Item> ends_;  // descending; an earlier one takes longer than every later one
};

class Fill {
 public:
  // All must outlive it.
  Fill(const Problem& problem, const std::vector<int32_t>& order, const Reach& reach);

  // Under the bounds of reach's last feasible(), which must have said yes for `stages`.
  std::optional<Layout> best(const Bounds& bounds, int32_t stages);

 private:
  struct Choice {
    int16_t next = -1;  // position of the stage that follows
    int16_t end = 0;
  };

  void find_crossings(double link_s);
  void find_begins(const std::vector<double>& rest);
  bool find_next(size_t position, const std::vector<double>& rest);
  void extend(size_t position, int32_t depth, double* mine);
  void extend_recomputed(size_t position, int32_t depth, double* mine);
  void close(size_t position, double* mine);
  void take(double seconds, int32_t begin, int32_t end, double* mine, Choice* choice) const;
  Choice* choices(int32_t depth, size_t position) {
    return &choice_[(static_cast<size_t>(depth) * n_ + position) * cuts_];
  }
  Layout trace(int32_t depth, size_t position) const;

  const Problem& problem_;
  const std::vector<int32_t>& order_;
  const Reach& reach_;
  size_t n_, cuts_, words_;
  std::vector<Choice> choice_;    // [(depth * n + position) * cuts + begin]
  std::vector<double> crossing_;  // [(from * n + to) * cuts + cut]: seconds, of those in open_
  // Cuts as bits. Few are in both, and only these are looked at.
  std::vector<uint64_t> open_;    // [(from * n + to) * words]: fast enough for the bound
  std::vector<uint64_t> begins_;  // [position * words]: where stages of the last depth may begin
  std::vector<double> tail_;      // [end]: the best way on from a stage that ends there
  std::vector<int16_t> next_of_;  // [end]: the position that way goes on at
  LeastEnd least_;
};

}  // namespace weft::broker
