#include "broker/planner/local_search.h"

#include <algorithm>

namespace weft::broker {
namespace {

class Climber {
 public:
  Climber(const Problem& problem, Layout start, size_t most_trials, const Judge& judge)
      : problem_(problem),
        judge_(judge),
        best_(std::move(start)),
        value_(judge(problem, best_)),
        trials_(most_trials) {}

  Layout climb() {
    for (bool better = true; better && trials_ > 0;) {
      better = move_boundaries();
      better = swap_peers() || better;
      better = replace_peers() || better;
      better = reverse_pieces() || better;
      if (problem_.stages == 0) {
        better = drop_stages() || better;
        better = add_stages() || better;
      }
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
  const Judge& judge_;
  Layout best_;
  double value_;
  size_t trials_;
};

}  // namespace

Layout improve(const Problem& problem, const Layout& start, size_t most_trials,
               const Judge& judge) {
  return Climber(problem, start, most_trials, judge).climb();
}

}  // namespace weft::broker
