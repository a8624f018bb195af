// What other peers of the cluster may ask of this daemon over HTTPS: the blobs it keeps, and to be
// measured.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "daemon/membership.h"
#include "net/blob/blob_store.h"
#include "net/http/http.h"
#include "net/probe/probe_desk.h"

namespace weft::daemon {

// Peers the broker removed: their certificates are valid for a while yet. Any thread.
class RevokedPeers {
 public:
  void replace(std::set<std::string> peers);
  bool contains(const std::string& peer) const;

 private:
  mutable std::mutex mutex_;
  std::set<std::string> peers_;
};

// Nothing is written; only peers of the cluster that were not removed get an answer: a worker has
// no business here, it reads what its daemon fetched. Blobs and desk must outlive the server.
Result<std::unique_ptr<net::HttpServer>> serve_peers(net::BlobStore& blobs, net::ProbeDesk& desk,
                                                     const Membership& member,
                                                     std::shared_ptr<RevokedPeers> revoked,
                                                     const std::string& host, uint16_t port);

}  // namespace weft::daemon
