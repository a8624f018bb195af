// What a data plane must know of a plan: which edges exist and how many messages each may have in
// flight. Plain numbers, so that net/ stands below job/.
#pragma once

#include <cstdint>

namespace weft::net {

struct EdgeLink {
  uint32_t edge = 0;
  int32_t from = 0;  // stages; activations flow from -> to, gradients back
  int32_t to = 0;
  int32_t activation_credits = 1;
  int32_t gradient_credits = 1;
  uint64_t activation_bytes = 0, gradient_bytes = 0;  // of a micro-batch; 0: none, or unknown
  int32_t value = -1;                                 // of the graph; -1: unknown
};

}  // namespace weft::net
