// A simulated, seeded data plane inside one process: latency, jitter and reordering under a
// virtual clock, no sockets and no threads. One seed gives one order of deliveries.
// Single-threaded: the driver alternates between running stages and deliver_next(). An endpoint's
// wait() and flush() make deliveries themselves, in virtual time, until what they wait for happens.
// A credit returns to the sender one latency after the receiver took the message, and so does the
// acknowledgement by which stats() tell at what rate messages were carried.
#pragma once

#include <memory>
#include <vector>

#include "net/endpoint.h"
#include "net/link_plan.h"

namespace weft::net {

struct SimOptions {
  uint64_t seed = 0;
  double latency_ms = 1;        // one way
  double jitter_ms = 1;         // uniform, added; reorders messages of different keys
  double bandwidth_mbit_s = 0;  // per link and direction; 0: unlimited
  double loss = 0;              // probability that a delivery is lost and resent after 2 x latency
  double duplicate = 0;         // probability that a message arrives twice
};

class SimNetwork {
 public:
  SimNetwork(int32_t stages, const SimOptions& options);
  ~SimNetwork();
  // Limits messages in flight per edge and direction; unlimited when never called.
  void set_credits(const std::vector<EdgeLink>& edges);
  Endpoint& endpoint(int32_t stage);
  // Moves the clock to the next delivery and makes it; false when nothing is under way.
  bool deliver_next();
  double now_ms() const;

  struct Impl;  // of sim_network.cpp

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::net
