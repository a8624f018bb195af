// Endpoint: one stage's access to the data plane. Three back ends hide behind it, each exposing
// only a factory header: net/tls (sockets), net/sim (seeded, virtual time), and tests' own.
//
// Threads: all functions are called from the stage's compute thread; a back end does its I/O
// elsewhere. send never blocks; what it is handed is queued until the receiver grants credit and
// acknowledges. A failed endpoint stays failed: every later call returns the same error.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/result.h"
#include "net/message.h"

namespace weft::net {

// What the messages to one stage say of the way there (net/frame/run_meter.h).
struct CarriedTraffic {
  double bytes_s = 0;       // it was carried at, at least; 0: unknown of late
  double round_trip_s = 0;  // the shortest of late, from this process to that and back; 0: unknown
  int64_t runs = 0;         // of messages that were measured since the beginning
  bool operator==(const CarriedTraffic&) const = default;
};

struct EndpointStats {
  std::map<uint32_t, int64_t> bytes_sent;  // by edge, forward and backward messages; wire bytes
  int64_t reconnects = 0;
  int64_t resent = 0;
  std::map<int32_t, CarriedTraffic> carried;  // by stage, where something was measured
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  // Queues message for a stage. The bytes are not copied: the Buffer keeps its owner alive, and the
  // owner must not be written until the Buffer is released (after acknowledgement).
  // kNotFound: no link to that stage in the plan.
  virtual Status send(int32_t to_stage, Message message) = 0;

  // Takes a message if it has arrived. Never blocks.
  virtual std::optional<Message> take(const MessageKey& key) = 0;

  // Blocks until something arrived since the last call, timeout_ms passed (kTimeout), interrupt()
  // was called (kCancelled), or a link died (kUnavailable naming stage and peer).
  virtual Status wait(int32_t timeout_ms) = 0;

  // Blocks until everything sent is acknowledged, at most timeout_ms.
  virtual Status flush(int32_t timeout_ms) = 0;

  // From any thread: makes wait return.
  virtual void interrupt() = 0;

  virtual EndpointStats stats() const = 0;
};

}  // namespace weft::net
