// Hill climbing over layouts: swap two peers or stages, put another peer in, reverse a piece, move
// a stage or a boundary, drop or add a stage. Private to the search. Pure.
#pragma once

#include <functional>

#include "broker/planner/problem.h"

namespace weft::broker {

// Seconds of a step as somebody judges it; infinite for what cannot be.
using Judge = std::function<double(const Problem&, const Layout&)>;

// most_trials bounds the judgements; returns a layout no worse than `start`.
Layout improve(const Problem& problem, const Layout& start, size_t most_trials,
               const Judge& judge = estimate_layout);

// The same again and again from a few random moves away from the best; the same seed wanders the
// same way.
Layout wander(const Problem& problem, const Layout& start, size_t most_trials, uint64_t seed);

}  // namespace weft::broker
