// The blobs a peer keeps, and serves to other peers of its cluster over HTTPS.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "daemon/membership.h"
#include "net/blob/blob_store.h"
#include "net/http/http.h"

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

// Read-only; only peers of the cluster that were not removed get an answer: a worker has no
// business here, it reads what its daemon fetched.
Result<std::unique_ptr<net::HttpServer>> serve_cached_blobs(net::BlobStore& blobs,
                                                            const Membership& member,
                                                            std::shared_ptr<RevokedPeers> revoked,
                                                            const std::string& host, uint16_t port);

// Removes the least recently used files, partial downloads included, until at most max_bytes
// remain. On the transfer thread: nothing is being downloaded meanwhile.
void trim_cache(net::BlobStore& blobs, uint64_t max_bytes);

}  // namespace weft::daemon
