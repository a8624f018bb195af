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

inline constexpr int64_t kTrustedSteps = 5;  // before them anything may be an outlier

// Whether so many steps say that the profile is wrong by so much that it is to be measured again.
inline constexpr double kDoubtedFactor = 2;  // and one over it
inline constexpr int64_t kDoubtedSteps = 20;
bool disagrees(const Correction& now);  // however many steps
bool doubted(const Correction& now);

// Of a profile measured anew that promises `faster` times what the one before did: predictions stay
// what real runs made of them, but count as learned from few steps, so that new runs soon outweigh
// them. Where `faster` is no ratio, nothing is known.
inline constexpr int64_t kCarriedSteps = 5;
Correction carried_over(const Correction& now, double faster);

}  // namespace weft::broker
