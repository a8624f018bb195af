// Correction: by how much a peer's real runs differ from what its profile predicts. Pure.
#pragma once

#include <cstdint>

namespace weft::broker {

struct Correction {
  double factor = 1;  // real seconds for each predicted one
  int64_t steps = 0;  // that it was learned from
};

inline constexpr double kMostCorrection = 8;  // and one over it the least

// And of what the runs of one plan show, of a peer or of the model: beyond it no machine differs
// from what it was planned as, whatever peers tell.
inline constexpr double kMostSlowness = 1000;

// After a step whose compute was predicted to take predicted_s without any correction. A mean of
// logarithms: of all steps first, then of about the last twenty, a single step counting at most
// twice and at least half. Numbers that are no times change nothing.
Correction corrected(const Correction& now, double predicted_s, double measured_s);

}  // namespace weft::broker
