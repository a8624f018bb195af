// The blobs a peer keeps, and serves to other peers of its cluster over HTTPS.
#pragma once

#include <memory>
#include <string>

#include "daemon/membership.h"
#include "net/blob/blob_store.h"
#include "net/http/http.h"

namespace weft::daemon {

// Read-only; only certificates of the cluster's CA get an answer.
Result<std::unique_ptr<net::HttpServer>> serve_cached_blobs(net::BlobStore& blobs,
                                                            const Membership& member,
                                                            const std::string& host, uint16_t port);

// Removes the least recently written blobs until at most max_bytes remain.
void trim_cache(net::BlobStore& blobs, uint64_t max_bytes);

}  // namespace weft::daemon
