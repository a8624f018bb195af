#include "daemon/peer_server.h"

#include "net/certificate/certificate.h"

namespace weft::daemon {
namespace {

constexpr int32_t kMaxConnections = 64;

// Who asks. On the server's thread.
class Callers {
 public:
  explicit Callers(std::shared_ptr<RevokedPeers> revoked) : revoked_(std::move(revoked)) {}

  // Empty: nobody that gets an answer.
  std::string peer_of(const net::HttpRequest& request) {
    if (request.client_certificate_pem.empty()) return {};
    // One connection asks many times, and a round trip is measured to a tenth of a millisecond.
    if (request.client_certificate_pem != last_pem_) {
      const auto info = net::read_certificate(request.client_certificate_pem);
      last_pem_ = request.client_certificate_pem;
      last_peer_ = info.ok() && info->kind == "peer" ? info->subject : std::string();
    }
    return last_peer_.empty() || revoked_->contains(last_peer_) ? std::string() : last_peer_;
  }

 private:
  std::shared_ptr<RevokedPeers> revoked_;
  std::string last_pem_, last_peer_;
};

}  // namespace

void RevokedPeers::replace(std::set<std::string> peers) {
  std::lock_guard lock(mutex_);
  peers_ = std::move(peers);
}

bool RevokedPeers::contains(const std::string& peer) const {
  std::lock_guard lock(mutex_);
  return peers_.contains(peer);
}

Result<std::unique_ptr<net::HttpServer>> serve_peers(net::BlobStore& blobs, net::ProbeDesk& desk,
                                                     const Membership& member,
                                                     std::shared_ptr<RevokedPeers> revoked,
                                                     const std::string& host, uint16_t port) {
  net::HttpServerOptions options;
  options.host = host;
  options.port = port;
  options.certificate_pem = member.certificate_pem;
  options.key_pem = member.key_pem;
  options.ca_pem = member.ca_pem;
  options.require_client_certificate = true;
  options.max_body_bytes = 4096;
  options.max_connections = kMaxConnections;
  auto callers = std::make_shared<Callers>(std::move(revoked));
  options.upload = [callers, &desk](const net::HttpRequest& request) {
    const std::string peer = callers->peer_of(request);
    return peer.empty() ? nullptr : desk.upload(request, peer);
  };
  return net::HttpServer::start(options, [callers, &blobs, &desk](net::HttpRequest request,
                                                                  net::HttpReply reply) {
    const std::string peer = callers->peer_of(request);
    if (peer.empty()) {
      reply(net::problem_response(make_error(Code::kDenied, "only peers of the cluster may ask")));
    } else if (!desk.serve(request, peer, reply) &&
               !net::serve_blob(blobs, request, false, 0, reply)) {
      reply(
          net::problem_response(make_error(Code::kNotFound, "peers serve blobs and probes only")));
    }
  });
}

}  // namespace weft::daemon
