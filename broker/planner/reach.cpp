#include "broker/planner/reach.h"

#include <algorithm>

namespace weft::broker {
namespace {

constexpr size_t kWordBits = 64;

void set_range(uint64_t* words, int32_t begin, int32_t end) {
  for (int32_t bit = begin; bit < end; ++bit) {
    words[static_cast<size_t>(bit) / kWordBits] |= uint64_t{1} << (bit % 64);
  }
}

bool get(const uint64_t* words, int32_t bit) {
  return (words[static_cast<size_t>(bit) / kWordBits] >> (bit % 64) & 1) != 0;
}

}  // namespace

Reach::Reach(const Problem& problem, const CutCosts& costs, const std::vector<int32_t>& order,
             int32_t gap, int32_t depths, bool recompute)
    : problem_(problem),
      costs_(costs),
      order_(order),
      n_(order.size()),
      cuts_(static_cast<size_t>(problem.chain.units) + 1),
      words_((cuts_ + kWordBits - 1) / kWordBits),
      depths_(depths) {
  coefficient_.assign(n_ * n_, 0.0);
  for (size_t a = 0; a < n_; ++a) {
    for (size_t b = 0; b < n_; ++b) {
      coefficient_[a * n_ + b] = costs.coefficient(order[a], order[b]);
    }
  }
  allowed_.assign(n_ * n_, 0);
  by_time_.assign(n_ * cuts_, 0);
  begins_.assign(static_cast<size_t>(depths) * n_ * words_, 0);
  ends_.assign(words_, 0);
  find_earliest_by_memory(gap);
  if (recompute) find_latest_by_memory(gap);
}

void Reach::find_earliest_by_memory(int32_t gap) {
  job::ScheduleOptions schedule = problem_.schedule;
  schedule.gap = gap;
  const Chain& chain = problem_.chain;
  const auto needs = [&](int32_t begin, int32_t end, int32_t in_flight) {
    return run_bytes(chain, chain.at(begin, end), in_flight);
  };
  double most = 0;
  const int32_t deepest = job::in_flight_of(schedule, depths_ - 1, depths_ - 1);
  for (int32_t begin = 0; begin < chain.units; ++begin) {
    most = std::max(most, needs(begin, chain.units, deepest));
  }
  bool bound = false;
  for (const int32_t peer : order_) {
    bound = bound || problem_.memory_bytes[static_cast<size_t>(peer)] < most;
  }
  if (!bound) return;
  by_memory_.assign(static_cast<size_t>(depths_) * n_ * cuts_, 0);
  for (int32_t depth = 0; depth < depths_; ++depth) {
    // How deep the whole will be is known only where a number of stages was asked for; else a
    // split that turns out too deep for its memory is dropped when it is scored.
    const int32_t whole = std::max(problem_.stages - 1, depth);
    const int32_t in_flight = job::in_flight_of(schedule, depth, whole);
    for (size_t i = 0; i < n_; ++i) {
      const double room = problem_.memory_bytes[static_cast<size_t>(order_[i])];
      int32_t* row = &by_memory_[(static_cast<size_t>(depth) * n_ + i) * cuts_];
      int32_t begin = 0;
      for (int32_t end = 1; end <= chain.units; ++end) {
        while (begin < end && needs(begin, end, in_flight) > room) ++begin;
        row[end] = begin;
      }
    }
  }
}

void Reach::find_latest_by_memory(int32_t gap) {
  job::ScheduleOptions schedule = problem_.schedule;
  schedule.gap = gap;
  const Chain& chain = problem_.chain;
  latest_by_time_.assign(n_ * cuts_, 0);
  latest_by_memory_.assign(static_cast<size_t>(depths_) * n_ * cuts_, 0);
  for (int32_t depth = 0; depth < depths_; ++depth) {
    const int32_t whole = std::max(problem_.stages - 1, depth);
    const int32_t in_flight = job::in_flight_of(schedule, depth, whole);
    const int32_t recorded = job::recorded_of(schedule, depth, whole);
    for (size_t i = 0; i < n_; ++i) {
      const double room = problem_.memory_bytes[static_cast<size_t>(order_[i])];
      int32_t* row = &latest_by_memory_[(static_cast<size_t>(depth) * n_ + i) * cuts_];
      for (int32_t begin = 0; begin < chain.units; ++begin) {
        int32_t fits = begin, over = chain.units + 1;
        while (over - fits > 1) {
          const int32_t end = (fits + over) / 2;
          const size_t run = chain.at(begin, end);
          (run_bytes_recomputed(chain, run, in_flight, recorded) > room ? over : fits) = end;
        }
        row[begin] = fits;
      }
    }
  }
}

void Reach::find_latest_by_time(double compute_s) {
  for (size_t i = 0; i < n_; ++i) {
    const int32_t peer = order_[i];
    int32_t* row = &latest_by_time_[i * cuts_];
    int32_t end = 0;
    for (int32_t begin = 0; begin < problem_.chain.units; ++begin) {
      end = std::max(end, begin);
      while (end < problem_.chain.units &&
             problem_.work(peer, begin, end + 1) + problem_.again(peer, begin, end + 1) <=
                 compute_s) {
        ++end;
      }
      row[begin] = end;
    }
  }
}

void Reach::find_earliest_by_time(double compute_s) {
  for (size_t i = 0; i < n_; ++i) {
    const int32_t peer = order_[i];
    int32_t* row = &by_time_[i * cuts_];
    int32_t begin = 0;
    for (int32_t end = 1; end <= problem_.chain.units; ++end) {
      while (begin < end && problem_.work(peer, begin, end) > compute_s) ++begin;
      row[end] = begin;
    }
  }
}

void Reach::find_allowed_cuts(double link_s) {
  for (size_t a = 0; a < n_; ++a) {
    for (size_t b = a + 1; b < n_; ++b) {
      const size_t at = a * n_ + b;
      allowed_[at] = CutCosts::allowed(kind_of(a, b), coefficient_[at], link_s);
    }
  }
}

double Reach::slowest_transfer() const {
  double slowest = 0;
  for (size_t a = 0; a < n_; ++a) {
    for (size_t b = a + 1; b < n_; ++b) {
      slowest = std::max(slowest, CutCosts::slowest(kind_of(a, b), coefficient_[a * n_ + b]));
    }
  }
  return slowest;
}

int32_t Reach::earliest(int32_t depth, size_t position, int32_t end) const {
  if (problem_.recompute == job::Recompute::kAlways) return end;
  const auto at = static_cast<size_t>(end);
  const int32_t by_time = by_time_[position * cuts_ + at];
  if (by_memory_.empty()) return by_time;
  return std::max(by_time, by_memory_[(static_cast<size_t>(depth) * n_ + position) * cuts_ + at]);
}

int32_t Reach::latest(int32_t depth, size_t position, int32_t begin) const {
  const auto at = static_cast<size_t>(begin);
  const size_t row = static_cast<size_t>(depth) * n_ + position;
  return std::min(latest_by_time_[position * cuts_ + at], latest_by_memory_[row * cuts_ + at]);
}

// Bits left from an earlier call beyond the depth that answers are never read.
bool Reach::feasible(const Bounds& bounds, int32_t stages) {
  find_earliest_by_time(bounds.compute_s);
  if (recomputes()) find_latest_by_time(bounds.compute_s);
  find_allowed_cuts(bounds.link_s);
  const int32_t units = problem_.chain.units;
  const int32_t last = stages > 0 ? stages - 1 : depths_ - 1;
  for (int32_t depth = 0; depth <= last && depth < depths_; ++depth) {
    bool any = false, whole = false;
    for (size_t i = 0; i < n_; ++i) {
      uint64_t* mine = &begins_[(static_cast<size_t>(depth) * n_ + i) * words_];
      std::fill(mine, mine + words_, 0);
      if (depth == 0) {
        set_range(mine, earliest(0, i, units), units);
        for (int32_t begin = 0; recomputes() && begin < units; ++begin) {
          if (latest(0, i, begin) == units) set_range(mine, begin, begin + 1);
        }
      } else {
        uint64_t* ends = ends_.data();
        std::fill(ends, ends + words_, 0);
        for (size_t next = i + 1; next < n_; ++next) {
          const uint64_t* theirs = begins(depth - 1, next);
          const uint64_t* mask = allowed_cuts(i, next);
          for (size_t w = 0; w < words_; ++w) ends[w] |= theirs[w] & mask[w];
        }
        int32_t filled = 0;  // earliest() never falls, so that every bit is set once
        for (int32_t end = 1; end < units; ++end) {
          if (!get(ends, end)) continue;
          set_range(mine, std::max(earliest(depth, i, end), filled), end);
          filled = std::max(filled, end);
        }
        int32_t next_end = units;  // none: no stage but the last ends there
        for (int32_t begin = units - 1; recomputes() && begin-- > 0;) {
          if (get(ends, begin + 1)) next_end = begin + 1;
          if (next_end < units && next_end <= latest(depth, i, begin)) {
            set_range(mine, begin, begin + 1);
          }
        }
      }
      for (size_t w = 0; w < words_ && !any; ++w) any = mine[w] != 0;
      whole = whole || get(mine, 0);
    }
    if (whole && (stages == 0 || depth == last)) return true;
    if (!any) return false;
  }
  return false;
}

Layout Reach::trace(int32_t stages) const {
  Layout layout;
  const int32_t units = problem_.chain.units;
  int32_t depth = std::max(stages - 1, 0);
  size_t position = 0;
  const auto start = [&] {
    for (position = 0; position < n_; ++position) {
      if (get(begins(depth, position), 0)) return true;
    }
    return false;
  };
  while (!start() && stages == 0 && depth + 1 < depths_) ++depth;
  for (int32_t begin = 0; depth >= 0 && position < n_; --depth) {
    layout.peers.push_back(order_[position]);
    if (depth == 0) {
      layout.ends.push_back(units);
      return layout;
    }
    int32_t longest = begin;
    size_t follower = n_;
    for (size_t next = position + 1; next < n_; ++next) {
      const uint64_t* theirs = begins(depth - 1, next);
      const uint64_t* mask = allowed_cuts(position, next);
      for (int32_t end = units - 1; end > longest; --end) {
        if (!get(theirs, end) || !get(mask, end) || !runs(depth, position, begin, end)) continue;
        longest = end;
        follower = next;
      }
    }
    layout.ends.push_back(longest);
    begin = longest;
    position = follower;
  }
  return {};
}

}  // namespace weft::broker
