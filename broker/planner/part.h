// Smaller problems cut out of one: of some of its peers, or with fewer places to cut. What is
// searched for there costs a fraction, and is a layout of the whole. Private to the search. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "broker/planner/problem.h"

namespace weft::broker {

// Peer i of the result is peers[i] of the problem.
Problem among_peers(const Problem& problem, const std::vector<int32_t>& peers);

// Cut i of the result is cuts[i] of the problem: ascending, from 0 to its last.
Problem among_cuts(const Problem& problem, const std::vector<int32_t>& cuts);

// work, bytes: [unit] and [cut before it]. All cuts of at most `most` units, else about `most`: of
// every share of the whole work the one with the fewest bytes; both ends always.
std::vector<int32_t> thin_cuts(const std::vector<double>& work, const std::vector<double>& bytes,
                               int32_t most);
// The same of a problem.
std::vector<int32_t> thin_cuts(const Problem& problem, int32_t most);

}  // namespace weft::broker
