// How far apart two processors are: what a cache line costs that goes to the other and back. On a
// virtual machine it may change from second to second, and loopback with it.
#pragma once

namespace weft {

// Nanoseconds, the best of several tries in about 20 ms; 0 where a process may not have the first
// two processors to itself.
double cache_line_round_trip_ns();

}  // namespace weft
