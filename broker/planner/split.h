// Exact contiguous splits for one order of peers: which of them run which units, any of them may be
// skipped. Pure.
//
// Two dynamic programmes (methods, section 4). Reachability: for bounds on the compute of a stage
// and on the transfer of a micro-batch, per depth d (stages that follow) and peer, the set of cuts
// at which a stage of it may begin so that the rest can be done: words of bits, n^2 / 2 x L / 64 x
// depths operations; bisection gives the least bound. Fill: under fixed bounds the split with the
// least sum of compute and transfer, n^2 / 2 x L x depths. The depth tells how many micro-batches a
// stage keeps, so memory is exact in both. A stage that recomputes takes its forward longer and
// keeps less; both programmes have it beside the one that keeps everything. Codecs count with the
// transfers: what they take of a stage's own time is seen where layouts are judged.
//
// Under ZB-H1 all stages keep as many as the first: more, the more stages there are. Where the best
// of a split does not fit for that, it is made again for as few stages as fit.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "broker/planner/cut_costs.h"
#include "broker/planner/problem.h"

namespace weft::broker {

struct SplitOptions {
  int32_t gap = 1;          // stages keep activations as for this gap
  int32_t most_stages = 0;  // 0: as the problem says
  // Stages keep as many micro-batches as in a pipeline of so many of them; 0: as in one that ends
  // with them, which is too few for ZB-H1.
  int32_t kept_for = 0;
  // Stages may recompute, where the problem lets them: both choices of each are tried. Always: so.
  bool recompute = false;
  // What storing a stage's checkpoints may take of a micro-batch.
  double most_storing_s = std::numeric_limits<double>::infinity();
  // Bounds tried by the fill programme, as multiples of the least.
  std::vector<double> slacks = {1.0, 1.1, 1.3, 1.7};
};

// Layouts worth scoring, best bottleneck first; empty where memory allows none. costs: of the
// problem, one for all its splits. Every layout uses
// peers of `order` in that order, and exactly problem.stages of them if asked for.
std::vector<Layout> split_order(const Problem& problem, const CutCosts& costs,
                                const std::vector<int32_t>& order, const SplitOptions& options);

// Whether memory may decide what a plan of the problem is.
bool memory_limits(const Problem& problem);

// Whether some split of this order fits its peers' memory; takes a tenth of split_order's work.
bool any_fits(const Problem& problem, const CutCosts& costs, const std::vector<int32_t>& order,
              const SplitOptions& options);

// Basic operations split_order takes about, to bound a search without a clock; what ZB-H1 makes
// again comes on top, as much at most.
double split_cost(const Problem& problem, size_t peers, const SplitOptions& options);

}  // namespace weft::broker
