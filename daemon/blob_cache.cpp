#include "daemon/blob_cache.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/log.h"
#include "net/certificate/certificate.h"

namespace weft::daemon {
namespace {

constexpr int32_t kMaxReaders = 64;

struct CachedBlob {
  std::filesystem::file_time_type written;
  std::string sha256;
  uint64_t bytes = 0;
};

bool is_peer(const net::HttpRequest& request, const RevokedPeers& revoked) {
  if (request.client_certificate_pem.empty()) return false;
  const auto info = net::read_certificate(request.client_certificate_pem);
  return info.ok() && info->kind == "peer" && !revoked.contains(info->subject);
}

}  // namespace

void RevokedPeers::replace(std::set<std::string> peers) {
  std::lock_guard lock(mutex_);
  peers_ = std::move(peers);
}

bool RevokedPeers::contains(const std::string& peer) const {
  std::lock_guard lock(mutex_);
  return peers_.contains(peer);
}

Result<std::unique_ptr<net::HttpServer>> serve_cached_blobs(net::BlobStore& blobs,
                                                            const Membership& member,
                                                            std::shared_ptr<RevokedPeers> revoked,
                                                            const std::string& host,
                                                            uint16_t port) {
  net::HttpServerOptions options;
  options.host = host;
  options.port = port;
  options.certificate_pem = member.certificate_pem;
  options.key_pem = member.key_pem;
  options.ca_pem = member.ca_pem;
  options.require_client_certificate = true;
  options.max_body_bytes = 4096;
  options.max_connections = kMaxReaders;
  return net::HttpServer::start(options, [&blobs, revoked = std::move(revoked)](
                                             net::HttpRequest request, net::HttpReply reply) {
    if (!is_peer(request, *revoked)) {
      reply(net::problem_response(make_error(Code::kDenied, "only peers of the cluster may read")));
    } else if (!net::serve_blob(blobs, request, false, 0, reply)) {
      reply(net::problem_response(make_error(Code::kNotFound, "peers serve blobs only")));
    }
  });
}

void trim_cache(net::BlobStore& blobs, uint64_t max_bytes) {
  std::vector<CachedBlob> cached;
  uint64_t total = 0;
  for (const std::string& name : blobs.list()) {
    std::error_code code;
    const auto written = std::filesystem::last_write_time(blobs.path_of(name), code);
    const auto bytes = blobs.size_of(name);
    if (code || !bytes.ok()) continue;
    cached.push_back({written, name, *bytes});
    total += *bytes;
  }
  std::sort(cached.begin(), cached.end(),
            [](const CachedBlob& a, const CachedBlob& b) { return a.written < b.written; });
  for (const CachedBlob& blob : cached) {
    if (total <= max_bytes) break;
    if (blobs.remove(blob.sha256).ok()) total -= blob.bytes;
  }
}

}  // namespace weft::daemon
