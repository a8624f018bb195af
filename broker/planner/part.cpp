#include "broker/planner/part.h"

#include <algorithm>

namespace weft::broker {
namespace {

template <typename T>
std::vector<T> picked(const std::vector<T>& all, const std::vector<int32_t>& which) {
  if (all.empty()) return {};
  std::vector<T> result;
  result.reserve(which.size());
  for (const int32_t i : which) result.push_back(all[static_cast<size_t>(i)]);
  return result;
}

std::vector<double> picked_runs(const Chain& chain, const std::vector<double>& bytes,
                                const std::vector<int32_t>& cuts) {
  std::vector<double> result(cuts.size() * cuts.size(), 0.0);
  for (size_t a = 0; a < cuts.size(); ++a) {
    for (size_t b = a; b < cuts.size(); ++b) {
      result[a * cuts.size() + b] = bytes[chain.at(cuts[a], cuts[b])];
    }
  }
  return result;
}

}  // namespace

Problem among_peers(const Problem& problem, const std::vector<int32_t>& peers) {
  Problem part;
  part.chain = problem.chain;
  part.network = problem.network.among(peers);
  part.forward_s = picked(problem.forward_s, peers);
  part.backward_s = picked(problem.backward_s, peers);
  part.memory_bytes = picked(problem.memory_bytes, peers);
  part.schedule = problem.schedule;
  part.stages = problem.stages;
  part.most_stages = problem.most_stages;
  part.gap = problem.gap;
  part.agrees = problem.agrees;
  part.store_s = picked(problem.store_s, peers);
  part.recompute = problem.recompute;
  part.compressor = problem.compressor;
  part.memory_speed = picked(problem.memory_speed, peers);
  return part;
}

Problem among_cuts(const Problem& problem, const std::vector<int32_t>& cuts) {
  Problem part = problem;
  const Chain& chain = problem.chain;
  part.chain = Chain(static_cast<int32_t>(cuts.size()) - 1);
  part.chain.forward_bytes = picked(chain.forward_bytes, cuts);
  part.chain.backward_bytes = picked(chain.backward_bytes, cuts);
  part.chain.crossing = picked(chain.crossing, cuts);
  part.chain.fixed_bytes = picked_runs(chain, chain.fixed_bytes, cuts);
  part.chain.stash_bytes = picked_runs(chain, chain.stash_bytes, cuts);
  part.chain.input_bytes = picked_runs(chain, chain.input_bytes, cuts);
  part.chain.shared_bytes = picked_runs(chain, chain.shared_bytes, cuts);
  part.chain.shard_bytes = picked_runs(chain, chain.shard_bytes, cuts);
  const auto run_of = [&](int32_t unit) {
    return static_cast<int32_t>(std::upper_bound(cuts.begin(), cuts.end(), unit) - cuts.begin()) -
           1;
  };
  for (const Chain::Tie& tie : chain.ties) {
    const int32_t first = run_of(tie.first), last = run_of(tie.last);
    if (first != last) part.chain.ties.push_back({first, last, tie.bytes});
  }
  for (auto* seconds : {&part.forward_s, &part.backward_s}) {
    for (std::vector<double>& sums : *seconds) sums = picked(sums, cuts);
  }
  return part;
}

std::vector<int32_t> thin_cuts(const std::vector<double>& work, const std::vector<double>& bytes,
                               int32_t most) {
  const auto units = static_cast<int32_t>(work.size());
  std::vector<int32_t> cuts{0};
  if (units <= most) {
    for (int32_t cut = 1; cut <= units; ++cut) cuts.push_back(cut);
    return cuts;
  }
  double total = 0;
  for (const double w : work) total += w;
  // Half of a unit's share is its count, so that units without work are not all lost.
  double share = 0;
  int32_t bucket = 0, best = 0;
  for (int32_t cut = 1; cut < units; ++cut) {
    const auto at = static_cast<size_t>(cut);
    share += (total > 0 ? work[at - 1] / total : 0) / 2 + 0.5 / units;
    if (best == 0 || bytes[at] < bytes[static_cast<size_t>(best)]) best = cut;
    const auto now = static_cast<int32_t>(share * (most - 1));
    if (now == bucket) continue;
    cuts.push_back(best);
    bucket = now;
    best = 0;
  }
  cuts.push_back(units);
  return cuts;
}

std::vector<int32_t> thin_cuts(const Problem& problem, int32_t most) {
  std::vector<double> work;
  for (int32_t unit = 0; unit < problem.chain.units; ++unit) {
    work.push_back(problem.work(0, unit, unit + 1));
  }
  return thin_cuts(work, problem.chain.forward_bytes, most);
}

}  // namespace weft::broker
