#include "broker/planner/fill.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "broker/planner/cut_bits.h"

namespace weft::broker {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

const LeastEnd::Item* LeastEnd::least(int32_t latest) const {
  const auto found =
      std::lower_bound(ends_.begin(), ends_.end(), latest,
                       [](const Item& item, int32_t most) { return item.end > most; });
  return found == ends_.end() ? nullptr : &*found;
}

Fill::Fill(const Problem& problem, const std::vector<int32_t>& order, const Reach& reach)
    : problem_(problem),
      order_(order),
      reach_(reach),
      n_(order.size()),
      cuts_(static_cast<size_t>(problem.chain.units) + 1),
      words_(words_for(cuts_)) {}

std::optional<Layout> Fill::best(const Bounds& bounds, int32_t stages) {
  const int32_t depths = stages > 0 ? stages : reach_.depths();
  find_crossings(bounds.link_s);
  choice_.assign(static_cast<size_t>(depths) * n_ * cuts_, {});
  std::vector<double> value, rest(n_ * cuts_, kInfinity);
  double least = kInfinity;
  int32_t best_depth = -1;
  size_t best_position = 0;
  for (int32_t depth = 0; depth < depths; ++depth) {
    value.assign(n_ * cuts_, kInfinity);
    for (size_t i = 0; i < n_; ++i) {
      if (depth == 0) {
        close(i, &value[i * cuts_]);
      } else if (find_next(i, rest)) {
        if (reach_.keeping().chosen) extend(i, depth, &value[i * cuts_]);
        if (reach_.recomputing().chosen) extend_recomputed(i, depth, &value[i * cuts_]);
      }
    }
    rest.swap(value);
    find_begins(rest);
    for (size_t i = 0; i < n_; ++i) {
      if (stages > 0 && depth + 1 != stages) continue;
      // Fewer stages where they cost the same.
      if (rest[i * cuts_] < least * (1 - 1e-12)) {
        least = rest[i * cuts_];
        best_depth = depth;
        best_position = i;
      }
    }
  }
  if (best_depth < 0) return std::nullopt;
  return trace(best_depth, best_position);
}

void Fill::find_crossings(double link_s) {
  const Network& network = problem_.network;
  crossing_.resize(n_ * n_ * cuts_);
  open_.assign(n_ * n_ * words_, 0);
  for (size_t i = 0; i < n_; ++i) {
    for (size_t next = i + 1; next < n_; ++next) {
      const auto from = static_cast<size_t>(order_[i]), to = static_cast<size_t>(order_[next]);
      const CutCosts::Kind& kind = reach_.kind_of(i, next);
      const double there = network.seconds_per_byte(from, to);
      const double back = network.seconds_per_byte(to, from);
      const double one_way = network.latency_s(from, to);
      const double both_ways = one_way + network.latency_s(to, from);
      double* row = &crossing_[(i * n_ + next) * cuts_];
      uint64_t* open = &open_[(i * n_ + next) * words_];
      for (int32_t cut = 1; cut < problem_.chain.units; ++cut) {
        if (!(reach_.link_seconds(i, next, cut) <= link_s)) continue;
        const auto at = static_cast<size_t>(cut);
        const double latency = problem_.chain.answered(cut) ? both_ways : one_way;
        row[at] =
            latency + there * kind.there_bytes[at] + back * kind.back_bytes[at] + kind.codec_s[at];
        set_cut(open, cut);
      }
    }
  }
}

// Where the stages of a depth may begin, if others are to stand before them.
void Fill::find_begins(const std::vector<double>& rest) {
  begins_.assign(n_ * words_, 0);
  for (size_t i = 0; i < n_; ++i) {
    for (int32_t cut = 1; cut < problem_.chain.units; ++cut) {
      if (rest[i * cuts_ + static_cast<size_t>(cut)] < kInfinity) {
        set_cut(&begins_[i * words_], cut);
      }
    }
  }
}

// Fills tail_ and next_of_ for a position; false: no way leads on.
bool Fill::find_next(size_t position, const std::vector<double>& rest) {
  tail_.assign(cuts_, kInfinity);
  next_of_.assign(cuts_, -1);
  for (size_t next = position + 1; next < n_; ++next) {
    const double* theirs = &rest[next * cuts_];
    const double* crossing = &crossing_[(position * n_ + next) * cuts_];
    for (size_t w = 0; w < words_; ++w) {
      uint64_t both = begins_[next * words_ + w] & open_[(position * n_ + next) * words_ + w];
      for (; both != 0; both &= both - 1) {
        const size_t cut = w * kWordBits + static_cast<size_t>(std::countr_zero(both));
        const double sum = theirs[cut] + crossing[cut];
        if (sum >= tail_[cut]) continue;
        tail_[cut] = sum;
        next_of_[cut] = static_cast<int16_t>(next);
      }
    }
  }
  return std::any_of(tail_.begin(), tail_.end(), [](double s) { return s < kInfinity; });
}

void Fill::take(double seconds, int32_t begin, int32_t end, double* mine, Choice* choice) const {
  const auto at = static_cast<size_t>(begin);
  if (!(seconds < mine[at])) return;
  mine[at] = seconds;
  choice[at] = {next_of_[static_cast<size_t>(end)], static_cast<int16_t>(end)};
}

// The last stage of a layout.
void Fill::close(size_t position, double* mine) {
  const int32_t peer = order_[position], units = problem_.chain.units;
  next_of_.assign(cuts_, -1);
  for (int32_t begin = 0; begin < units; ++begin) {
    const double work = problem_.work(peer, begin, units);
    if (reach_.latest(reach_.keeping(), 0, position, begin) == units) {
      take(work, begin, units, mine, choices(0, position));
    }
    if (reach_.latest(reach_.recomputing(), 0, position, begin) == units) {
      take(work + problem_.again(peer, begin, units), begin, units, mine, choices(0, position));
    }
  }
}

// What a stage takes is what its end takes less what its beginning takes, so that the best end does
// not hang on the beginning but for how far the stage reaches.
void Fill::extend(size_t position, int32_t depth, double* mine) {
  const auto& forward = problem_.forward_s[static_cast<size_t>(order_[position])];
  const auto& backward = problem_.backward_s[static_cast<size_t>(order_[position])];
  least_.clear();
  for (int32_t begin = problem_.chain.units - 2; begin >= 0; --begin) {
    const auto from = static_cast<size_t>(begin), end = from + 1;
    if (tail_[end] < kInfinity) {
      least_.add(begin + 1, tail_[end] + forward[end] + backward[end]);
    }
    const LeastEnd::Item* best =
        least_.least(reach_.latest(reach_.keeping(), depth, position, begin));
    if (best == nullptr) continue;
    take(best->seconds - forward[from] - backward[from], begin, best->end, mine,
         choices(depth, position));
  }
}

// The same with the forward twice; once where nothing up to the end has a backward.
void Fill::extend_recomputed(size_t position, int32_t depth, double* mine) {
  const int32_t peer = order_[position];
  const auto& forward = problem_.forward_s[static_cast<size_t>(peer)];
  const auto& backward = problem_.backward_s[static_cast<size_t>(peer)];
  least_.clear();
  int32_t added = problem_.chain.units;       // ends from there on are in least_
  int32_t frozen = problem_.chain.units - 1;  // from begin up to there nothing has a backward
  for (int32_t begin = problem_.chain.units - 2; begin >= 0; --begin) {
    const auto from = static_cast<size_t>(begin);
    const int32_t latest = reach_.latest(reach_.recomputing(), depth, position, begin);
    while (frozen > begin && problem_.backward(peer, begin, frozen) > 0) --frozen;
    for (int32_t end = begin + 1; end <= std::min(frozen, latest); ++end) {
      take(tail_[static_cast<size_t>(end)] + problem_.work(peer, begin, end), begin, end, mine,
           choices(depth, position));
    }
    while (added > frozen + 1) {
      const auto end = static_cast<size_t>(--added);
      if (tail_[end] == kInfinity) continue;
      least_.add(added, tail_[end] + 2 * forward[end] + backward[end]);
    }
    const LeastEnd::Item* best = least_.least(latest);
    if (best == nullptr) continue;
    take(best->seconds - 2 * forward[from] - backward[from], begin, best->end, mine,
         choices(depth, position));
  }
}

Layout Fill::trace(int32_t depth, size_t position) const {
  Layout layout;
  int32_t cut = 0;
  for (;; --depth) {
    const Choice& choice =
        choice_[(static_cast<size_t>(depth) * n_ + position) * cuts_ + static_cast<size_t>(cut)];
    layout.peers.push_back(order_[position]);
    layout.ends.push_back(choice.end);
    if (depth == 0) return layout;
    cut = choice.end;
    position = static_cast<size_t>(choice.next);
  }
}

}  // namespace weft::broker
