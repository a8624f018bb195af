// Service: weftd's life. Keeps the control connection, answers the broker, runs at most one
// assignment, serves blobs to other peers, and winds down on signals.
//
//   start -> serving --first SIGTERM--> draining --assignment ended--> leave
//                    --SIGINT or second SIGTERM--> stop the assignment --> leave
//
// run() is the main thread and owns all state; other threads post to its EventQueue.
#pragma once

#include <memory>

#include "base/config.h"
#include "base/result.h"
#include "daemon/membership.h"

namespace weft::daemon {

class Service {
 public:
  static Result<std::unique_ptr<Service>> create(const Config& config, Membership member);
  virtual ~Service() = default;
  // Returns when the daemon has left: kCancelled is never returned; kDenied when the broker removed
  // this peer.
  virtual Status run() = 0;
};

}  // namespace weft::daemon
