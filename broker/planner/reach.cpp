#include "broker/planner/reach.h"

#include <algorithm>

#include "broker/planner/cut_bits.h"

namespace weft::broker {
namespace {

// By begin, the latest end that fits; what fits up to an end fits up to any earlier one.
template <typename Fits>
void find_latest(int32_t units, int32_t* row, const Fits& fits) {
  int32_t end = 0;
  for (int32_t begin = 0; begin < units; ++begin) {
    end = std::max(end, begin);
    while (end < units && fits(begin, end + 1)) ++end;
    while (end > begin && !fits(begin, end)) --end;
    row[begin] = end;
  }
}

}  // namespace

Reach::Reach(const Problem& problem, const CutCosts& costs, const std::vector<int32_t>& order,
             const SplitOptions& options, int32_t depths, bool recompute)
    : problem_(problem),
      costs_(costs),
      order_(order),
      n_(order.size()),
      cuts_(static_cast<size_t>(problem.chain.units) + 1),
      words_(words_for(cuts_)),
      depths_(depths),
      kept_for_(std::max(problem.stages, options.kept_for)),
      most_storing_s_(options.most_storing_s) {
  coefficient_.assign(n_ * n_, 0.0);
  for (size_t a = 0; a < n_; ++a) {
    for (size_t b = 0; b < n_; ++b) {
      coefficient_[a * n_ + b] = costs.coefficient(order[a], order[b]);
    }
  }
  allowed_.assign(n_ * n_, nullptr);
  begins_.assign(static_cast<size_t>(depths) * n_ * words_, 0);
  behind_.assign(n_ * words_, 0);
  ends_.assign(words_, 0);
  keeping_.chosen = problem.recompute != job::Recompute::kAlways;
  recomputing_.chosen = recompute;
  job::ScheduleOptions schedule = problem.schedule;
  schedule.gap = options.gap;
  find_rooms();
  if (keeping_.chosen && memory_limits(schedule)) find_by_memory(schedule, false);
  if (recomputing_.chosen) find_by_memory(schedule, true);
}

void Reach::find_rooms() {
  for (const int32_t peer : order_)
    rooms_.push_back(problem_.memory_bytes[static_cast<size_t>(peer)]);
  std::sort(rooms_.begin(), rooms_.end());
  rooms_.erase(std::unique(rooms_.begin(), rooms_.end()), rooms_.end());
  for (const int32_t peer : order_) {
    const double room = problem_.memory_bytes[static_cast<size_t>(peer)];
    const auto at = std::lower_bound(rooms_.begin(), rooms_.end(), room);
    room_of_.push_back(static_cast<size_t>(at - rooms_.begin()));
  }
}

bool Reach::memory_limits(const job::ScheduleOptions& schedule) const {
  const Chain& chain = problem_.chain;
  const int32_t whole = std::max(depths_, kept_for_) - 1;
  const int32_t deepest = job::in_flight_of(schedule, depths_ - 1, whole);
  for (int32_t begin = 0; begin < chain.units; ++begin) {
    if (run_bytes(chain, chain.at(begin, chain.units), deepest) > rooms_.front()) return true;
  }
  return false;
}

void Reach::find_by_memory(const job::ScheduleOptions& schedule, bool recompute) {
  const Chain& chain = problem_.chain;
  auto& rows = (recompute ? recomputing_ : keeping_).by_memory;
  rows.assign(static_cast<size_t>(depths_) * rooms_.size() * cuts_, 0);
  for (int32_t depth = 0; depth < depths_; ++depth) {
    const int32_t whole = std::max(kept_for_ - 1, depth);
    const int32_t in_flight = job::in_flight_of(schedule, depth, whole);
    const int32_t recorded = job::recorded_of(schedule, depth, whole);
    for (size_t room = 0; room < rooms_.size(); ++room) {
      find_latest(chain.units, &rows[(static_cast<size_t>(depth) * rooms_.size() + room) * cuts_],
                  [&](int32_t begin, int32_t end) {
                    const size_t run = chain.at(begin, end);
                    return (recompute ? run_bytes_recomputed(chain, run, in_flight, recorded)
                                      : run_bytes(chain, run, in_flight)) <= rooms_[room];
                  });
    }
  }
}

void Reach::find_by_time(double compute_s, bool recompute) {
  Ends& ends = recompute ? recomputing_ : keeping_;
  if (!ends.chosen) return;
  ends.by_time.resize(n_ * cuts_);
  for (size_t i = 0; i < n_; ++i) {
    const int32_t peer = order_[i];
    find_latest(problem_.chain.units, &ends.by_time[i * cuts_], [&](int32_t begin, int32_t end) {
      const double again = recompute ? problem_.again(peer, begin, end) : 0;
      return problem_.work(peer, begin, end) + again <= compute_s &&
             problem_.storing(peer, begin, end) <= most_storing_s_;
    });
  }
}

void Reach::find_allowed_cuts(double link_s) {
  for (size_t a = 0; a < n_; ++a) {
    for (size_t b = a + 1; b < n_; ++b) {
      const CutCosts::Kind& kind = kind_of(a, b);
      const size_t count = CutCosts::allowed(kind, coefficient_[a * n_ + b], link_s);
      allowed_[a * n_ + b] = &kind.lightest[count * words_];
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

// Where the stage at a position may end; false: nowhere. It ends where one that follows may begin;
// once all of these are in, the others can add none.
bool Reach::find_ends(int32_t depth, size_t position) {
  uint64_t* ends = ends_.data();
  std::fill(ends, ends + words_, 0);
  if (depth == 0) {
    set_cut(ends, problem_.chain.units);
    return true;
  }
  constexpr size_t kLookEvery = 8;
  const uint64_t* most = &behind_[position * words_];
  const auto complete = [&] {
    bool equal = true;  // a few words: cheaper than a call that compares memory
    for (size_t w = 0; w < words_; ++w) equal = equal && ends[w] == most[w];
    return equal;
  };
  if (complete()) return false;
  const uint64_t* theirs = begins(depth - 1, position + 1);
  for (size_t next = position + 1; next < n_; ++next, theirs += words_) {
    const uint64_t* allowed = allowed_cuts(position, next);
    for (size_t w = 0; w < words_; ++w) ends[w] |= theirs[w] & allowed[w];
    if ((next - position) % kLookEvery == 0 && complete()) return true;
  }
  return std::any_of(ends, ends + words_, [](uint64_t word) { return word != 0; });
}

// A stage may begin where the nearest end is not beyond its reach.
void Reach::find_begins(int32_t depth, size_t position) {
  uint64_t* mine = &begins_[(static_cast<size_t>(depth) * n_ + position) * words_];
  std::fill(mine, mine + words_, 0);
  if (!find_ends(depth, position)) return;
  const int32_t units = problem_.chain.units;
  int32_t nearest = units + 1;
  for (int32_t begin = units - 1; begin >= 0; --begin) {
    if (has_cut(ends_.data(), begin + 1)) nearest = begin + 1;
    if (nearest <= latest(depth, position, begin)) set_cut(mine, begin);
  }
}

void Reach::gather(int32_t depth) {
  std::fill(behind_.begin(), behind_.end(), 0);
  for (size_t i = n_ - 1; i-- > 0;) {
    const uint64_t* next = begins(depth, i + 1);
    for (size_t w = 0; w < words_; ++w) {
      behind_[i * words_ + w] = behind_[(i + 1) * words_ + w] | next[w];
    }
  }
}

// Bits left from an earlier call beyond the depth that answers are never read.
bool Reach::feasible(const Bounds& bounds, int32_t stages) {
  if (bounds.compute_s != compute_s_) {
    for (const bool recompute : {false, true}) find_by_time(bounds.compute_s, recompute);
  }
  if (bounds.link_s != link_s_) find_allowed_cuts(bounds.link_s);
  compute_s_ = bounds.compute_s;
  link_s_ = bounds.link_s;
  const int32_t last = stages > 0 ? stages - 1 : depths_ - 1;
  for (int32_t depth = 0; depth <= last && depth < depths_; ++depth) {
    bool whole = false;
    for (size_t i = 0; i < n_; ++i) {
      find_begins(depth, i);
      whole = whole || has_cut(begins(depth, i), 0);
    }
    if (whole && (stages == 0 || depth == last)) return true;
    gather(depth);
    // Nobody but the first peer may begin: then nobody can stand before.
    const uint64_t* first = behind_.data();
    if (std::all_of(first, first + words_, [](uint64_t word) { return word == 0; })) {
      return false;
    }
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
      if (has_cut(begins(depth, position), 0)) return true;
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
    const int32_t reach = std::min(latest(depth, position, begin), units - 1);
    for (size_t next = position + 1; next < n_; ++next) {
      const uint64_t* theirs = begins(depth - 1, next);
      const uint64_t* allowed = allowed_cuts(position, next);
      for (int32_t end = reach; end > longest; --end) {
        if (!has_cut(theirs, end) || !has_cut(allowed, end)) continue;
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
