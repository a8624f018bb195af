#include "broker/planner/local_search.h"

#include <algorithm>
#include <numeric>

#include "base/rng.h"

namespace weft::broker {
namespace {

class Climber {
 public:
  Climber(const Problem& problem, Layout start, size_t most_trials, Judge judge)
      : problem_(problem),
        judge_(std::move(judge)),
        best_(std::move(start)),
        value_(judge_(problem, best_)),
        trials_(most_trials) {}

  Layout climb() {
    for (bool better = true; better && trials_ > 0;) {
      better = move_boundaries();
      better = swap_peers() || better;
      better = replace_peers() || better;
      better = reverse_pieces() || better;
      better = move_stages() || better;
      if (problem_.stages == 0) {
        better = drop_stages() || better;
        better = add_stages() || better;
      }
    }
    return best_;
  }

  Layout wander(Rng rng) {
    climb();
    while (trials_ > 1) {
      const Layout kept = best_;
      const double value = value_;
      for (uint64_t moves = 2 + rng.below(3); moves > 0; --moves) disturb(rng);
      value_ = judge_(problem_, best_);
      --trials_;
      climb();
      if (value_ < value * (1 - 1e-9)) continue;
      best_ = kept;
      value_ = value;
    }
    return best_;
  }

 private:
  size_t stages() const { return best_.ends.size(); }
  int32_t begin_of(size_t stage) const { return stage == 0 ? 0 : best_.ends[stage - 1]; }

  bool take(const Layout& layout) {
    if (trials_ == 0) return false;
    --trials_;
    const double value = judge_(problem_, layout);
    if (!(value < value_ * (1 - 1e-9))) return false;
    value_ = value;
    best_ = layout;
    return true;
  }

  void disturb(Rng& rng) {
    const size_t a = rng.below(stages()), b = rng.below(stages());
    const std::vector<int32_t> others = idle();
    switch (rng.below(3)) {
      case 0:
        if (others.empty()) break;
        best_.peers[a] = others[rng.below(others.size())];
        return;
      case 1:
        if (a + 1 < stages()) {
          const int32_t low = begin_of(a) + 1, high = best_.ends[a + 1] - 1;
          best_.ends[a] =
              low + static_cast<int32_t>(rng.below(static_cast<uint64_t>(high - low + 1)));
        }
        return;
      default:
        break;
    }
    if (a == b) return;
    Layout layout = best_;
    std::swap(layout.peers[a], layout.peers[b]);
    best_ = with_lengths_swapped(std::move(layout), std::min(a, b), std::max(a, b));
  }

  bool move_boundaries() {
    bool better = false;
    for (size_t k = 0; k + 1 < stages(); ++k) {
      for (const int32_t step : {-8, -4, -2, -1, 1, 2, 4, 8}) {
        Layout layout = best_;
        layout.ends[k] += step;
        if (layout.ends[k] <= begin_of(k) || layout.ends[k] >= best_.ends[k + 1]) continue;
        better = take(layout) || better;
      }
    }
    return better;
  }

  bool swap_peers() {
    bool better = false;
    for (size_t a = 0; a < stages(); ++a) {
      for (size_t b = a + 1; b < stages(); ++b) {
        Layout layout = best_;
        std::swap(layout.peers[a], layout.peers[b]);
        better = take(layout) || better;
        better = take(with_lengths_swapped(std::move(layout), a, b)) || better;
      }
    }
    return better;
  }

  // Two stages change places with all they compute but for what lies between them.
  Layout with_lengths_swapped(Layout layout, size_t a, size_t b) const {
    const int32_t longer = (best_.ends[b] - begin_of(b)) - (best_.ends[a] - begin_of(a));
    for (size_t k = a; k < b; ++k) layout.ends[k] += longer;
    return layout;
  }

  // A stage moves to another place with its peer and length.
  bool move_stages() {
    bool better = false;
    for (size_t from = 0; from < stages(); ++from) {
      for (size_t to = 0; to < stages(); ++to) {
        if (to == from || to + 1 == from) continue;  // the latter swaps neighbours
        Layout layout = best_;
        std::vector<int32_t> lengths;
        for (size_t k = 0; k < stages(); ++k) lengths.push_back(best_.ends[k] - begin_of(k));
        const auto move = [&](std::vector<int32_t>& items) {
          const int32_t item = items[from];
          items.erase(items.begin() + static_cast<std::ptrdiff_t>(from));
          items.insert(items.begin() + static_cast<std::ptrdiff_t>(to), item);
        };
        move(layout.peers);
        move(lengths);
        std::partial_sum(lengths.begin(), lengths.end(), layout.ends.begin());
        better = take(layout) || better;
      }
    }
    return better;
  }

  std::vector<int32_t> idle() const {
    std::vector<bool> used(problem_.peers(), false);
    for (const int32_t peer : best_.peers) used[static_cast<size_t>(peer)] = true;
    std::vector<int32_t> peers;
    for (size_t peer = 0; peer < used.size(); ++peer) {
      if (!used[peer]) peers.push_back(static_cast<int32_t>(peer));
    }
    return peers;
  }

  bool replace_peers() {
    bool better = false;
    for (size_t k = 0; k < stages(); ++k) {
      for (const int32_t peer : idle()) {
        Layout layout = best_;
        layout.peers[k] = peer;
        better = take(layout) || better;
      }
    }
    return better;
  }

  bool reverse_pieces() {
    bool better = false;
    for (size_t a = 0; a + 2 < stages(); ++a) {
      for (size_t b = a + 2; b < stages(); ++b) {
        Layout layout = best_;
        std::reverse(layout.peers.begin() + static_cast<std::ptrdiff_t>(a),
                     layout.peers.begin() + static_cast<std::ptrdiff_t>(b) + 1);
        better = take(layout) || better;
      }
    }
    return better;
  }

  bool drop_stages() {
    bool better = false;
    for (size_t k = 0; k < stages() && stages() > 1; ++k) {
      for (const bool to_next : {false, true}) {
        if (k >= stages() || stages() < 2 || (to_next ? k + 1 == stages() : k == 0)) continue;
        Layout layout = best_;
        layout.peers.erase(layout.peers.begin() + static_cast<std::ptrdiff_t>(k));
        layout.ends.erase(layout.ends.begin() + static_cast<std::ptrdiff_t>(to_next ? k : k - 1));
        better = take(layout) || better;
      }
    }
    return better;
  }

  // A stage is halved by work; an idle peer takes either half.
  bool add_stages() {
    bool better = false;
    for (size_t k = 0; k < stages(); ++k) {
      if (static_cast<int32_t>(stages()) >= problem_.most_stages) break;
      for (const int32_t peer : idle()) {
        if (k >= stages()) break;
        const int32_t begin = begin_of(k), end = best_.ends[k];
        if (end - begin < 2) break;
        int32_t middle = begin + 1;
        const double half = problem_.work(best_.peers[k], begin, end) / 2;
        while (middle + 1 < end && problem_.work(best_.peers[k], begin, middle) < half) ++middle;
        const auto at = static_cast<std::ptrdiff_t>(k);
        for (const std::ptrdiff_t side : {0, 1}) {
          Layout layout = best_;
          layout.ends.insert(layout.ends.begin() + at, middle);
          layout.peers.insert(layout.peers.begin() + at + side, peer);
          if (take(layout)) {
            better = true;
            break;
          }
        }
        if (better) break;  // idle() has changed
      }
    }
    return better;
  }

  const Problem& problem_;
  Judge judge_;
  Layout best_;
  double value_;
  size_t trials_;
};

}  // namespace

Layout improve(const Problem& problem, const Layout& start, size_t most_trials,
               const Judge& judge) {
  return Climber(problem, start, most_trials, judge).climb();
}

Layout wander(const Problem& problem, const Layout& start, size_t most_trials, uint64_t seed) {
  return Climber(problem, start, most_trials, estimate_layout).wander(Rng(seed));
}

}  // namespace weft::broker
