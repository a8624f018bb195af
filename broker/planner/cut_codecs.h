// What a problem's compression makes of the values that cross a cut between two peers. Private to
// the planner. Pure.
#pragma once

#include <algorithm>

#include "broker/planner/problem.h"

namespace weft::broker {

// What crosses a cut, values alike together. Without compression nothing needs to tell more apart
// than what has a gradient.
template <typename Visit>
void for_each_values(const Problem& problem, int32_t cut, const Visit& visit) {
  const Chain& chain = problem.chain;
  const auto at = static_cast<size_t>(cut);
  if (problem.compressor && !chain.crossing.empty() && !chain.crossing[at].empty()) {
    for (const Chain::Values& values : chain.crossing[at]) visit(values);
    return;
  }
  const double there = chain.forward_bytes[at], back = chain.backward_bytes[at];
  if (back > 0 || there == 0) {
    visit(Chain::Values{DType::kFloat32, true, 1, std::min(back, there)});
  }
  if (there > back) visit(Chain::Values{DType::kFloat32, false, 1, there - back});
}

// Values alike, or their gradients, from a peer to another. slowest_s: Crossing::slowest_stage_s.
Coded coded(const Problem& problem, int32_t from, int32_t to, const Chain::Values& values,
            bool gradient, double slowest_s);

// All that crosses a cut: bytes on the wire, and what codecs take of the stages at its sides.
struct CutMessages {
  double there = 0, back = 0;
  double sender_forward_s = 0, sender_backward_s = 0;
  double receiver_forward_s = 0, receiver_backward_s = 0;

  double sender_s() const { return sender_forward_s + sender_backward_s; }
  double receiver_s() const { return receiver_forward_s + receiver_backward_s; }
};
CutMessages messages_over(const Problem& problem, int32_t from, int32_t to, int32_t cut,
                          double slowest_s);

}  // namespace weft::broker
