// What run_case (measure.h) shares with the rest of measuring: how time is taken.
#pragma once

#include <vector>

#include "executor/measure.h"

// After the others.
#include <ATen/core/Tensor.h>

namespace weft::executor {

// The lower quartile: what disturbs a run only makes it longer.
double typical(std::vector<double> values);

// The clock of the time there is. What one thread does alone takes no longer, and no more of the
// budget, because the machine has something else to do.
double budget_now(const MeasureOptions& options);

// Kernels run on after a call returns: nothing is timed before they are done.
void finish(at::Device device);

}  // namespace weft::executor
