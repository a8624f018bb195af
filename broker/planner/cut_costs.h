// What every cut costs over ways of a few kinds, so that the exact split (split.h) of an order need
// not ask a compression policy for each pair of peers at each cut. Private to the planner. Pure.
//
// Ways that a policy cannot tell apart are one kind. Where there are too many kinds for that, ways
// of about equal rate are one, and the first of them speaks for all: the split is then as good as
// that, while whoever scores its layouts asks for their own ways. Without compression there is one
// kind.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "broker/planner/problem.h"

namespace weft::broker {

class CutCosts {
 public:
  explicit CutCosts(const Problem& problem);

  static constexpr size_t kMostKinds = 64;
  size_t kinds() const { return kinds_.size(); }
  size_t kind_of(int32_t from, int32_t to) const {
    return kind_of_.empty() ? 0 : kind_of_[pair(from, to)];
  }

  struct Kind {
    // [cut]: bytes on the wire; codecs' seconds, of both ends and both directions.
    std::vector<double> there_bytes, back_bytes, codec_s;
    // [cut]: what counts in a bound, over the way that speaks for the kind: the transfers, and the
    // codecs of the busier end.
    std::vector<double> way_s, end_s;
    double rate = 1;  // that way's coefficient (below); without compression 1, and way_s are bytes
    std::vector<double> sorted_s;    // seconds() of the inner cuts over that way, ascending
    std::vector<uint64_t> lightest;  // [count * words]: the count lightest cuts as bits
  };
  const Kind& kind(size_t index) const { return kinds_[index]; }

  // Seconds a byte counts between two peers. GPipe uses one direction at a time, so that both
  // transfers add up; else each has its own way.
  double coefficient(int32_t from, int32_t to) const;
  // Seconds that a cut counts over a way of that kind and coefficient.
  static double seconds(const Kind& kind, double coefficient, int32_t cut) {
    const auto at = static_cast<size_t>(cut);
    const double way_s = kind.rate > 0 ? kind.way_s[at] * (coefficient / kind.rate) : 0;
    return std::max(way_s, kind.end_s[at]);
  }
  // How many of the lightest cuts take no longer than that.
  static size_t allowed(const Kind& kind, double coefficient, double most_s);
  // Of the heaviest cut.
  static double slowest(const Kind& kind, double coefficient);

 private:
  size_t pair(int32_t from, int32_t to) const {
    return static_cast<size_t>(from) * problem_.peers() + static_cast<size_t>(to);
  }
  // Of transfers or rates of both directions, what counts.
  double both(double there_s, double back_s) const;
  // Ways that speak for their kinds: from, to.
  std::vector<std::pair<int32_t, int32_t>> tell_apart();
  bool each_alike(std::vector<std::pair<int32_t, int32_t>>& ways);
  void by_rate(std::vector<std::pair<int32_t, int32_t>>& ways);
  void fill(Kind& kind, int32_t from, int32_t to, double slowest_s) const;
  void sort(Kind& kind) const;

  const Problem& problem_;
  std::vector<uint8_t> kind_of_;  // [from * peers + to]; empty: one kind
  std::vector<Kind> kinds_;
};

}  // namespace weft::broker
