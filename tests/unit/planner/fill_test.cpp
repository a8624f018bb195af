#include "broker/planner/fill.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "tests/unit/planner/problems.h"

namespace weft::broker {
namespace {

using testing::between;
using testing::ProblemShape;
using testing::random_problem;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Compute and transfers of a split of peers in their order, as fill.h sums them; infinite where a
// stage or a transfer is beyond the bounds.
class Sums {
 public:
  Sums(const Problem& problem, const CutCosts& costs, const Bounds& bounds)
      : problem_(problem), costs_(costs), bounds_(bounds) {}

  double of(const Layout& layout) const {
    double sum = 0;
    int32_t begin = 0;
    for (size_t k = 0; k < layout.ends.size(); ++k) {
      sum += stage(layout.peers[k], begin, layout.ends[k]);
      begin = layout.ends[k];
      if (k + 1 < layout.ends.size()) sum += way(layout.peers[k], layout.peers[k + 1], begin);
    }
    return sum;
  }

  // The least there is of so many stages: every peer that follows and every cut is tried.
  double least(int32_t stages) const {
    const auto peers = static_cast<int32_t>(problem_.peers());
    const int32_t units = problem_.chain.units;
    // [peer][begin]: of the stages from there on.
    std::vector<std::vector<double>> rest(problem_.peers());
    for (int32_t peer = 0; peer < peers; ++peer) {
      for (int32_t begin = 0; begin < units; ++begin) {
        rest[static_cast<size_t>(peer)].push_back(stage(peer, begin, units));
      }
    }
    for (int32_t more = 1; more < stages; ++more) {
      auto longer = rest;
      for (int32_t peer = 0; peer < peers; ++peer) {
        for (int32_t begin = 0; begin < units; ++begin) {
          double& best = longer[static_cast<size_t>(peer)][static_cast<size_t>(begin)];
          best = kInfinity;
          for (int32_t end = begin + 1; end < units; ++end) {
            for (int32_t next = peer + 1; next < peers; ++next) {
              best = std::min(best, stage(peer, begin, end) + way(peer, next, end) +
                                        rest[static_cast<size_t>(next)][static_cast<size_t>(end)]);
            }
          }
        }
      }
      rest = std::move(longer);
    }
    double best = kInfinity;
    for (const auto& row : rest) best = std::min(best, row[0]);
    return best;
  }

 private:
  double stage(int32_t peer, int32_t begin, int32_t end) const {
    const double work = problem_.work(peer, begin, end);
    return work <= bounds_.compute_s ? work : kInfinity;
  }
  double way(int32_t from, int32_t to, int32_t cut) const {
    const auto a = static_cast<size_t>(from), b = static_cast<size_t>(to),
               at = static_cast<size_t>(cut);
    const double counts =
        CutCosts::seconds(costs_.kind(costs_.kind_of(from, to)), costs_.coefficient(from, to), cut);
    if (counts > bounds_.link_s) return kInfinity;
    const Network& network = problem_.network;
    const double back_s = problem_.chain.answered(cut) ? network.latency_s(b, a) : 0;
    return network.latency_s(a, b) + back_s +
           network.seconds_per_byte(a, b) * problem_.chain.forward_bytes[at] +
           network.seconds_per_byte(b, a) * problem_.chain.backward_bytes[at];
  }

  const Problem& problem_;
  const CutCosts& costs_;
  const Bounds& bounds_;
};

// Cuts are one word of bits or several, at the borders of words too.
TEST(Fill, FindsTheLeastSumThatKeepsTheBounds) {
  int found = 0, none = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    ProblemShape shape;
    shape.peers = 5;
    shape.units = 61 + static_cast<int32_t>(seed * 7 % 75);
    Problem problem = random_problem(seed, shape);
    std::fill(problem.memory_bytes.begin(), problem.memory_bytes.end(), kInfinity);
    const CutCosts costs(problem);
    std::vector<int32_t> order(problem.peers());
    std::iota(order.begin(), order.end(), 0);
    Rng rng(seed);
    const auto stages = static_cast<int32_t>(1 + rng.below(4));
    Reach reach(problem, costs, order, {}, stages, false);
    const double whole = problem.work(0, 0, shape.units);
    const Bounds bounds{between(rng, 0.2, 3) * whole / stages,
                        between(rng, 0.02, 1) * reach.slowest_transfer()};
    const Sums sums(problem, costs, bounds);
    const double least = sums.least(stages);
    ASSERT_EQ(reach.feasible(bounds, stages), least < kInfinity) << "seed " << seed;
    if (least == kInfinity) {
      ++none;
      continue;
    }
    ++found;
    const auto layout = Fill(problem, order, reach).best(bounds, stages);
    ASSERT_TRUE(layout.has_value()) << "seed " << seed;
    EXPECT_EQ(layout->ends.size(), static_cast<size_t>(stages));
    EXPECT_EQ(layout->ends.back(), shape.units);
    EXPECT_NEAR(sums.of(*layout), least, 1e-9 * least) << "seed " << seed;
  }
  EXPECT_GT(found, 15);
  EXPECT_GT(none, 5);
}

}  // namespace
}  // namespace weft::broker
