// How the stages of a plan keep within their peers' memory: how far they are ahead of each other,
// and which of them recompute. Both cost time, so there is a choice; it is small, since under a
// given gap no stage gains by recomputing that fits without. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "job/spec.h"

namespace weft::broker {

struct MemoryPlan {
  int32_t gap = 1;
  std::vector<bool> recompute;  // by stage
};

// The plans worth judging, widest gap first, halved from one to the next; empty where nothing fits.
// Each recomputes where it must and nowhere else, so later ones recompute less, and what needs no
// recompute is the last: a narrower gap is never faster. A gap that was asked for is kept to where
// recompute makes it fit. fits(stage, gap, recompute) says whether a stage fits its peer.
template <typename Fits>
std::vector<MemoryPlan> memory_plans(size_t stages, int32_t wanted, bool gap_asked,
                                     job::Recompute mode, const Fits& fits) {
  const bool always = mode == job::Recompute::kAlways;
  std::vector<MemoryPlan> plans;
  for (int32_t gap = wanted > 1 ? wanted : 1;; gap /= 2) {
    MemoryPlan plan{gap, std::vector<bool>(stages, always)};
    bool all = true, chosen = false;
    for (size_t stage = 0; stage < stages && all; ++stage) {
      if (fits(stage, gap, always)) continue;
      all = mode == job::Recompute::kAuto && fits(stage, gap, true);
      plan.recompute[stage] = chosen = true;
    }
    // The same stages at a narrower gap: nothing gained.
    const bool other = plans.empty() || plans.back().recompute != plan.recompute;
    if (all && other) plans.push_back(std::move(plan));
    if ((all && (!chosen || gap_asked)) || gap == 1) return plans;
  }
}

}  // namespace weft::broker
