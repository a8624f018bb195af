// LinkGate: a TCP proxy in front of one port that behaves like a bad link: latency, jitter,
// bandwidth, black holes, cuts and flipped bits, seeded. For tests and benchmarks of transports on
// one machine, where the kernel has no netem.
//
// It ends TCP on both sides, so the two TCP connections through it see a round trip of nearly zero:
// windows, slow start and loss recovery are NOT exercised (that needs namespaces and a packet
// gate). Loss appears as what an application sees of it, a broken connection. Delays are a delay
// line with absolute deadlines; order within a connection is kept.
//
// One thread ("weft-gate") owns all sockets; every function may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace weft::net {

struct LinkGateOptions {
  std::string target_host = "127.0.0.1";
  uint16_t target_port = 0;
  uint64_t seed = 0;
  double latency_ms = 0;        // one way
  double jitter_ms = 0;         // uniform, added; order is kept
  double bandwidth_mbit_s = 0;  // per connection and direction; 0: unlimited
  // Mean bytes between breaks of a connection, exponential; 0: never. Stands for loss.
  double break_every_bytes = 0;
};

struct LinkGateStats {
  int64_t connections = 0, cuts = 0;
  int64_t bytes_forward = 0, bytes_back = 0;  // forward: towards the target
};

class LinkGate {
 public:
  static Result<std::unique_ptr<LinkGate>> start(const LinkGateOptions& options);
  virtual ~LinkGate() = default;
  virtual uint16_t port() const = 0;  // on 127.0.0.1
  // Resets every connection now.
  virtual void cut() = 0;
  // Breaks the connection that carries the next `bytes` bytes, once they are through.
  virtual void cut_after(int64_t bytes) = 0;
  // Black hole: nothing is forwarded and nothing is closed, until switched off again.
  virtual void stall(bool on) = 0;
  // Flips one bit of the next bytes forwarded.
  virtual void corrupt_next() = 0;
  virtual LinkGateStats stats() const = 0;
};

}  // namespace weft::net
