// Coefficients of seconds = a0 operators + a1 FLOPs + a2 bytes out of measured runs. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "job/work.h"

namespace weft::job {

struct CostSample {
  double operators = 0, flops = 0, bytes = 0;
  double seconds = 0;  // measured
};

struct CostFit {
  OpCost cost;
  double error = 0;  // median of |fitted / measured - 1| over the samples
};

// Products are what FLOPs decide once they are large. Few samples are as large as that on a fast
// card, or none beside another process: a fit alone would promise large ones for next to nothing.
// So a FLOP of theirs costs at least half of the least that one cost in any sample.
enum class CostKind : uint8_t { kAny, kProducts };

// The least squares of relative errors with no coefficient below zero, in which samples far off
// the others weigh little (Huber). Samples without a positive finite time or with negative work are
// left out; without any the cost is zero.
CostFit fit_costs(const std::vector<CostSample>& samples, CostKind kind = CostKind::kAny);

}  // namespace weft::job
