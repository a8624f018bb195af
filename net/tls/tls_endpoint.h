// The data plane over TCP and TLS 1.3, both sides authenticated against the cluster's CA.
// One I/O thread ("weft-data") runs every socket; the compute thread only touches queues.
//
// A link that breaks is dialled again and resumed: what the other side did not receive is sent
// again by message key, nothing is delivered twice. A link down or silent for link_timeout_ms fails
// the endpoint with kUnavailable, naming stage and peer. A neighbour that ends its endpoint in
// order only makes later sends to it fail, and a wait that stays fruitless.
// Destruction says goodbye to every neighbour (at most a second); it does not flush.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "net/endpoint.h"
#include "net/link_plan.h"

namespace weft::net {

// A neighbour as this stage knows it. port 0: it cannot be dialled, it will dial us.
struct Neighbour {
  int32_t stage = 0;
  std::string peer;  // id that the certificate must carry
  std::string host;
  uint16_t port = 0;
};

struct TlsEndpointOptions {
  std::string job;
  uint32_t epoch = 1;
  int32_t stage = 0;
  std::string peer;          // our id
  std::string listen_host;   // "127.0.0.1", "0.0.0.0", "::"
  uint16_t listen_port = 0;  // 0: any
  std::string certificate_path, key_path, ca_path;
  std::vector<EdgeLink> edges;              // all edges this stage is part of
  std::vector<int32_t> control_neighbours;  // stages linked without an edge (norms, tied groups)
  int32_t link_timeout_ms = 15000;          // down or silent that long: the endpoint fails
  int32_t ping_interval_ms = 1000;
  uint64_t max_message_bytes = uint64_t{1} << 32;
  // Largest frame, 4 KiB to 64 KiB. What overtakes does so between writes, which are as long as the
  // link is fast, so that a smaller frame only has more overhead.
  int32_t chunk_bytes = 64 * 1024;
  int32_t handshake_timeout_ms = 5000;  // of one connection attempt, either side
};

class TlsEndpoint : public Endpoint {
 public:
  static Result<std::unique_ptr<TlsEndpoint>> listen(TlsEndpointOptions options);
  virtual uint16_t port() const = 0;
  // Starts linking to every neighbour; the one with the lower stage number dials where both can.
  // Blocks until all links are up, at most timeout_ms. An entry for our own stage tells by which
  // port others dial us (0: they cannot); entries of stages without a link are ignored. Once only.
  // kInvalid: a linked stage has no entry. kDenied: a certificate does not belong on its link.
  // kUnavailable: a link did not come up in time. After a failed connect the endpoint is failed.
  virtual Status connect(const std::vector<Neighbour>& neighbours, int32_t timeout_ms) = 0;
  // Makes the goodbye at destruction say that this stage failed, so that neighbours fail at once
  // instead of waiting for messages that will not come.
  virtual void set_leave_reason(const std::string& failure) = 0;
};

}  // namespace weft::net
