// Coefficients of seconds = a0 operators + a1 FLOPs + a2 bytes out of measured runs. Pure.
#pragma once

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

// The least squares of relative errors with no coefficient below zero, and that of FLOPs not below
// least_flop_s, in which samples far off the others weigh little (Huber). Samples without a
// positive finite time or with negative work are left out; without any the cost is zero.
CostFit fit_costs(const std::vector<CostSample>& samples, double least_flop_s = 0);

}  // namespace weft::job
