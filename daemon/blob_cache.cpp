#include "daemon/blob_cache.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "base/log.h"
#include "net/certificate/certificate.h"

namespace weft::daemon {
namespace {

constexpr int32_t kMaxReaders = 64;

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
  std::vector<net::BlobFile> files = blobs.files();
  uint64_t total = 0;
  for (const net::BlobFile& file : files) total += file.bytes;
  std::sort(files.begin(), files.end(), [](const net::BlobFile& a, const net::BlobFile& b) {
    return std::tie(b.age_ms, a.name) < std::tie(a.age_ms, b.name);
  });
  for (const net::BlobFile& file : files) {
    if (total <= max_bytes) break;
    // One that was asked for since it was listed stays.
    auto removed = blobs.remove_if_older(file, file.age_ms);
    if (removed.ok() && *removed) total -= file.bytes;
    if (!removed.ok()) log_warning("blob cache: {}", removed.error().text());
  }
}

}  // namespace weft::daemon
