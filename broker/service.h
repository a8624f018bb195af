// Service: a running broker: control server, HTTP server, store and core wired together. The core
// lives on one loop ("weft-broker"); the servers' threads only post to it, so no logic needs a
// mutex. Blob transfers run on "weft-blobs" once the loop has admitted the caller.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "broker/core.h"
#include "broker/home.h"

namespace weft::broker {

struct ServiceOptions {
  std::string http_host = "127.0.0.1", control_host = "127.0.0.1";
  uint16_t http_port = 0, control_port = 0;  // 0: the last one used, else any
  std::string advertise_host;                // empty: as clients dial it
  uint64_t max_blob_bytes = uint64_t{1} << 40;
  std::string store_path;  // empty: <dir>/broker.db
  CoreOptions core;
};

// The host under which a client elsewhere reaches the broker, as far as the settings tell.
std::string client_host(const ServiceOptions& options, const std::string& own_name);

class Service {
 public:
  static Result<std::unique_ptr<Service>> start(Home home, ServiceOptions options,
                                                const Clock& clock);
  virtual ~Service() = default;
  virtual uint16_t http_port() const = 0;
  virtual uint16_t control_port() const = 0;
  // Answers waiting requests, stops the servers, empties the loop. Running jobs are judged at the
  // next start.
  virtual void stop() = 0;
};

}  // namespace weft::broker
