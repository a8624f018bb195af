// The planning problem as numbers: a chain of units that contiguous runs cut into stages, peers
// that run them at their own speeds, the network between. What the search works on; graphs become
// it in chain.h, benchmarks and property tests make it from nothing. Plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "broker/planner/compression.h"
#include "broker/planner/memory_plan.h"
#include "broker/planner/network.h"
#include "broker/planner/pipeline.h"
#include "job/schedule.h"

namespace weft::broker {

// Cuts are numbered 0 (before the first unit) to units (behind the last); a run [begin, end) lies
// between two of them.
struct Chain {
  int32_t units = 0;
  // [cut]: bytes of a micro-batch that cross it forward (every live edge counted) and backward.
  std::vector<double> forward_bytes, backward_bytes;
  // [cut]: the same for codecs, values alike together, which count as equally large; or empty:
  // fp32, one with a gradient and one without.
  struct Values {
    DType dtype = DType::kFloat32;
    bool gradient = false;
    int32_t count = 1;
    double bytes = 0;  // of all of them
  };
  std::vector<std::vector<Values>> crossing;
  // [begin * (units + 1) + end]: weights, gradients, optimizer, constants and passing values of the
  // run; and what a micro-batch leaves there until its backward.
  std::vector<double> fixed_bytes, stash_bytes;
  // As long: what a micro-batch brings into the run, all that stays where forwards run again; and
  // PipelineStage::shared_bytes.
  std::vector<double> input_bytes, shared_bytes;
  // As long: what a checkpoint holds of the run.
  std::vector<double> shard_bytes;

  // A weight that units far apart share: after a step the gradient of the last one's copy goes to
  // the first one's stage, the weight comes back.
  struct Tie {
    int32_t first = 0, last = 0;  // units
    double bytes = 0;
  };
  std::vector<Tie> ties;

  explicit Chain(int32_t count = 0);
  // Whether a gradient comes back over a cut: none does below the first trained parameter. What
  // crosses without any bytes is answered.
  bool answered(int32_t cut) const {
    const auto at = static_cast<size_t>(cut);
    return backward_bytes[at] > 0 || forward_bytes[at] == 0;
  }
  size_t at(int32_t begin, int32_t end) const {
    return static_cast<size_t>(begin) * static_cast<size_t>(units + 1) + static_cast<size_t>(end);
  }
};

struct Problem {
  Chain chain;
  Network network{0};
  // [peer][cut]: seconds of the units before the cut, one micro-batch.
  std::vector<std::vector<double>> forward_s, backward_s;
  std::vector<double> memory_bytes;  // of each peer that a plan may use; infinite where unknown
  job::ScheduleOptions schedule;     // kind and micro_batches
  int32_t stages = 0;                // asked for; 0: any number up to most_stages
  int32_t most_stages = 32;
  // 0: the gap the links ask for; else this one. 1 where speeds are unknown, and with them what a
  // gap would have to hide.
  int32_t gap = 0;
  bool agrees = false;  // Pipeline::agrees
  // [peer]: seconds that a byte of a checkpoint takes on its way to the broker, shared out over the
  // micro-batches until the next checkpoint; empty: none on the way.
  std::vector<double> store_s;
  job::Recompute recompute = job::Recompute::kNever;
  Compressor compressor;
  std::vector<MemorySpeed> memory_speed;  // of each peer, for codecs; empty: unknown

  size_t peers() const { return memory_bytes.size(); }
  MemorySpeed memory_speed_of(size_t peer) const {
    return memory_speed.empty() ? MemorySpeed{} : memory_speed[peer];
  }
  double forward(int32_t peer, int32_t begin, int32_t end) const {
    const auto& sums = forward_s[static_cast<size_t>(peer)];
    return sums[static_cast<size_t>(end)] - sums[static_cast<size_t>(begin)];
  }
  double backward(int32_t peer, int32_t begin, int32_t end) const {
    const auto& sums = backward_s[static_cast<size_t>(peer)];
    return sums[static_cast<size_t>(end)] - sums[static_cast<size_t>(begin)];
  }
  // Of a run that recomputes, its forward once more; without a backward nothing runs again.
  double again(int32_t peer, int32_t begin, int32_t end) const {
    return backward(peer, begin, end) > 0 ? forward(peer, begin, end) : 0;
  }
  double work(int32_t peer, int32_t begin, int32_t end) const {
    return forward(peer, begin, end) + backward(peer, begin, end);
  }
  // A worker does not run ahead of its checkpoints (job::kMaxStoredShards): no micro-batch takes
  // less than this.
  double storing(int32_t peer, int32_t begin, int32_t end) const {
    if (store_s.empty()) return 0;
    return store_s[static_cast<size_t>(peer)] * chain.shard_bytes[chain.at(begin, end)];
  }
};

// A plan of it: stage k runs the units up to cut ends[k] on peers[k]; ends.back() is chain.units.
struct Layout {
  std::vector<int32_t> peers;
  std::vector<int32_t> ends;
  bool operator==(const Layout&) const = default;
};

size_t stage_of(const Layout& layout, int32_t unit);

// Bytes a run needs; micro-batches in flight and recorded as job/schedule.h counts them.
double run_bytes(const Chain& chain, size_t run, int32_t in_flight);
double run_bytes_recomputed(const Chain& chain, size_t run, int32_t in_flight, int32_t recorded);

// How a layout may keep within its peers' memory at gaps up to `wanted` (memory_plan.h).
std::vector<MemoryPlan> memory_plans(const Problem& problem, const Layout& layout, int32_t wanted);

// The widest of their gaps; 0: not even gap 1 fits. Schedules without a gap give `wanted` or 0.
int32_t gap_within_memory(const Problem& problem, const Layout& layout, int32_t wanted);

// A layout as stages that pass everything to the next one, as if the graph were a chain. recompute:
// by stage; empty for none.
Pipeline chain_pipeline(const Problem& problem, const Layout& layout,
                        const std::vector<bool>& recompute = {});

// What stages do before memory is looked at; by stage.
std::vector<bool> asked_recompute(const Problem& problem, const Layout& layout);

// The problem's gap, or the one that the links of a layout ask for.
int32_t gap_wanted(const Problem& problem, const Layout& layout);

// Seconds that storing checkpoints takes of every step at least.
double storing_seconds(const Problem& problem, const Layout& layout);

// Predicted seconds of a step with the best of its memory plans, up to the gap that the links ask
// for, and no less than storing checkpoints takes; infinite where there is none. estimate: closed
// form, for searching; exact: played, the judge.
double estimate_layout(const Problem& problem, const Layout& layout);
double estimate_step(const Problem& problem, const Layout& layout);  // as if storing took nothing
struct Estimate {
  double step_s = 0;
  MemoryPlan plan;  // with which it takes that
};
Estimate estimate(const Problem& problem, const Layout& layout);  // likewise
inline constexpr size_t kPlayedActions = 40000;  // at most, of a step that is scored
struct Scored {
  Layout layout;
  int32_t gap = 1;
  double step_s = 0;
  std::vector<bool> recompute;  // by stage
};
Scored score_layout(const Problem& problem, const Layout& layout);
// The largest compute of a stage; to tell equal scores apart.
double slowest_stage(const Problem& problem, const Layout& layout);

}  // namespace weft::broker
