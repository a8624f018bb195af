// Random planning problems and the search over everything, for property tests of the planner.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "broker/planner/problem.h"
#include "broker/planner/search.h"

namespace weft::broker::testing {

inline double between(Rng& rng, double low, double high) {  // log-uniform
  return low * std::exp(rng.uniform() * std::log(high / low));
}

struct ProblemShape {
  int32_t peers = 4, units = 8, micro_batches = 16;
  bool tight_memory = false;
  bool access = false;
  bool compress = false;
  bool checkpoints = false;
};

// A policy of its own for every seed: by size, by rate, or as little as a message has to be to
// hide behind the slowest stage; codecs as fast as memory or at a speed of their own.
inline Compression random_compression(uint64_t seed) {
  Rng rng(seed);
  const double forward = between(rng, 0.02, 0.5), backward = between(rng, 0.05, 0.7);
  const double passes = between(rng, 1, 8),
               own_s = rng.below(2) == 0 ? 0 : between(rng, 1e-10, 1e-8);
  const double least_bytes = rng.below(2) == 0 ? 0 : between(rng, 1e5, 1e6);
  const double least_s = rng.below(2) == 0 ? 0 : seconds_per_byte_at(between(rng, 20, 1000));
  const bool adapts = rng.below(3) == 0;
  const auto policy = [=](const Crossing& crossing) {
    const Coded plain{crossing.bytes, 0, 0, {}};
    if (!dtype_is_floating(crossing.dtype) || crossing.bytes < least_bytes ||
        crossing.byte_s <= least_s) {
      return plain;
    }
    const auto codec_s = [&](const MemorySpeed& speed) {
      return speed.op_s + crossing.bytes * (passes * speed.byte_s + own_s);
    };
    Coded coded{0, codec_s(crossing.sender), codec_s(crossing.receiver), "random"};
    const double least = crossing.gradient ? backward : forward;
    double ratio = least;
    if (adapts) {
      const double left_s =
          crossing.slowest_stage_s - crossing.latency_s - coded.encode_s - coded.decode_s;
      ratio = std::clamp(left_s / (crossing.byte_s * crossing.bytes), least, 1.0);
      if (ratio >= 1) return plain;
    }
    coded.wire_bytes = ratio * crossing.bytes;
    return coded;
  };
  return {"random", {}, policy};
}

// Unequal peers in one to three sites, fast links inside, slow ones between.
inline Problem random_problem(uint64_t seed, const ProblemShape& shape) {
  Rng rng(seed);
  Problem problem;
  problem.chain = Chain(shape.units);
  Chain& chain = problem.chain;
  std::vector<double> work{0}, fixed{0}, stash{0};
  for (int32_t u = 0; u < shape.units; ++u) {
    work.push_back(work.back() + between(rng, 0.2, 2));
    fixed.push_back(fixed.back() + between(rng, 0.5, 2));
    stash.push_back(stash.back() + between(rng, 0.02, 0.2));
  }
  for (int32_t cut = 1; cut < shape.units; ++cut) {
    chain.forward_bytes[static_cast<size_t>(cut)] = between(rng, 5e4, 5e6);
    chain.backward_bytes[static_cast<size_t>(cut)] = chain.forward_bytes[static_cast<size_t>(cut)];
  }
  for (int32_t a = 0; a <= shape.units; ++a) {
    for (int32_t b = a; b <= shape.units; ++b) {
      const auto i = static_cast<size_t>(a), j = static_cast<size_t>(b);
      chain.fixed_bytes[chain.at(a, b)] = fixed[j] - fixed[i];
      chain.stash_bytes[chain.at(a, b)] = stash[j] - stash[i];
    }
  }
  const auto n = static_cast<size_t>(shape.peers);
  problem.network = Network(n);
  const uint64_t sites = 1 + rng.below(3);
  std::vector<uint64_t> site(n);
  for (auto& s : site) s = rng.below(sites);
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = 0; b < n; ++b) {
      if (a == b) continue;
      const bool near = site[a] == site[b];
      const double latency_s = near ? between(rng, 1e-4, 1e-3) : between(rng, 5e-3, 1e-1);
      const double mbit_s = near ? between(rng, 500, 10000) : between(rng, 8, 500);
      problem.network.set(a, b, latency_s, seconds_per_byte_at(mbit_s));
    }
  }
  if (shape.access) {
    for (int32_t peer = 0; peer < shape.peers; ++peer) {
      problem.network.add_access("p" + std::to_string(peer), {peer},
                                 seconds_per_byte_at(between(rng, 20, 1000)),
                                 seconds_per_byte_at(between(rng, 50, 1000)));
    }
  }
  const double whole = fixed.back() + stash.back();
  for (size_t peer = 0; peer < n; ++peer) {
    const double speed = between(rng, 0.5, 8);  // units of work a second
    std::vector<double> forward, backward;
    for (const double w : work) {
      forward.push_back(0.05 * w / speed / 3);
      backward.push_back(0.05 * w / speed * 2 / 3);
    }
    problem.forward_s.push_back(std::move(forward));
    problem.backward_s.push_back(std::move(backward));
    problem.memory_bytes.push_back(shape.tight_memory ? whole * between(rng, 0.2, 1.5)
                                                      : std::numeric_limits<double>::infinity());
  }
  problem.schedule = {job::PipelineSchedule::k1F1B, shape.micro_batches, 1};
  if (shape.compress) {
    problem.compressor = Compressor(random_compression(rng.next()));
    for (size_t peer = 0; peer < n; ++peer) {
      problem.memory_speed.push_back({between(rng, 1e-6, 1e-5), between(rng, 1e-12, 5e-10)});
    }
  }
  if (shape.checkpoints) {
    chain.shard_bytes = chain.fixed_bytes;
    // The whole takes between a fifth of a step of the slowest peer and five of them.
    const double step_s = 0.05 * work.back() * shape.micro_batches / 0.5;
    for (size_t peer = 0; peer < n; ++peer) {
      problem.store_s.push_back(between(rng, 0.2, 5) * step_s / fixed.back() / shape.micro_batches);
    }
  }
  return problem;
}

// Everything: each sequence of distinct peers, each way to cut. Infinite where nothing fits.
class Exhaustive {
 public:
  explicit Exhaustive(const Problem& problem) : problem_(problem) {}
  Scored best() {
    best_.step_s = std::numeric_limits<double>::infinity();
    used_.assign(problem_.peers(), false);
    extend(0);
    return best_;
  }

 private:
  void extend(int32_t begin) {
    for (size_t peer = 0; peer < problem_.peers(); ++peer) {
      if (used_[peer]) continue;
      used_[peer] = true;
      layout_.peers.push_back(static_cast<int32_t>(peer));
      for (int32_t end = begin + 1; end <= problem_.chain.units; ++end) {
        layout_.ends.push_back(end);
        if (end == problem_.chain.units) {
          const bool asked =
              problem_.stages == 0 || static_cast<size_t>(problem_.stages) == layout_.ends.size();
          if (asked) {
            const Scored scored = score_layout(problem_, layout_);
            if (scored.step_s < best_.step_s) best_ = scored;
          }
        } else {
          extend(end);
        }
        layout_.ends.pop_back();
      }
      layout_.peers.pop_back();
      used_[peer] = false;
    }
  }

  const Problem& problem_;
  Layout layout_;
  std::vector<bool> used_;
  Scored best_;
};

}  // namespace weft::broker::testing
