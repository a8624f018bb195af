#include "broker/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/log.h"
#include "base/os/process.h"
#include "broker/api/api.h"
#include "broker/loop.h"
#include "net/blob/blob_store.h"
#include "net/control/control.h"
#include "net/http/http.h"

namespace weft::broker {
namespace {

constexpr int64_t kTickMs = 250;
constexpr int64_t kSweepMs = 3600000;
constexpr int64_t kServerCertificateDays = 825;
constexpr std::string_view kBlobPrefix = "/api/v1/blobs/";

class ControlLink final : public PeerLink {
 public:
  explicit ControlLink(net::ControlServer& server) : server_(server) {}
  void send(const std::string& peer, proto::BrokerMessage message, int32_t ttl_ms) override {
    server_.send(peer, std::move(message), ttl_ms);
  }
  void allow(const std::string& curve_public, const std::string& peer) override {
    server_.allow(curve_public, peer);
  }
  void revoke(const std::string& curve_public) override { server_.revoke(curve_public); }

 private:
  net::ControlServer& server_;
};

bool wildcard(const std::string& host) {
  return host == "0.0.0.0" || host == "::";
}

uint16_t port_from(const std::string& text) {
  uint16_t port = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), port);
  return parsed.ec == std::errc() ? port : uint16_t{0};
}

class ServiceImpl final : public Service {
 public:
  ServiceImpl(Home home, ServiceOptions options, const Clock& clock, std::unique_ptr<Store> store,
              net::BlobStore blobs)
      : home_(std::move(home)),
        options_(std::move(options)),
        store_(std::move(store)),
        blobs_(std::move(blobs)),
        core_(*store_, blobs_, clock, options_.core),
        loop_("weft-broker"),
        blob_loop_("weft-blobs") {}
  ~ServiceImpl() override { ServiceImpl::stop(); }

  Status begin() {
    WEFT_TRY_STATUS(start_control());
    link_ = std::make_unique<ControlLink>(*control_);
    core_.set_link(link_.get());
    WEFT_TRY_STATUS(core_.load());
    WEFT_TRY_STATUS(start_http());
    WEFT_TRY_STATUS(store_->set_meta("http_port", std::to_string(http_->port())));
    WEFT_TRY_STATUS(store_->set_meta("control_port", std::to_string(control_->port())));
    const std::string join_host = client_host(options_, os::host_name());
    api_ = std::make_unique<Api>(
        core_, home_.authority,
        ApiIdentity{home_.admin_token, home_.curve.public_z85, options_.advertise_host, join_host,
                    http_->port(), control_->port()});
    api_->random_hex = [](size_t bytes) { return random_hex(bytes); };
    core_.on_news([this](const std::string& job) { api_->waiters().news(job); });
    loop_.every_ms(kTickMs, [this] {
      core_.tick();
      api_->waiters().tick(core_.now_ms());
      maybe_sweep();
    });
    blob_loop_.start();
    loop_.start();
    return {};
  }

  uint16_t http_port() const override { return http_->port(); }
  uint16_t control_port() const override { return control_->port(); }

  void stop() override {
    if (stopped_) return;
    stopped_ = true;
    loop_.post([this] { api_->waiters().drop_all(); });
    blob_loop_.stop();
    // The servers first: after them nobody posts to the loop.
    if (http_) http_->stop();
    if (control_) control_->stop();
    loop_.stop();
  }

 private:
  // Listing the folder takes long, so it is done elsewhere; the decision is the core's.
  void maybe_sweep() {
    if (core_.now_ms() < next_sweep_ms_) return;
    next_sweep_ms_ = core_.now_ms() + kSweepMs;
    blob_loop_.post([this] { loop_.post([this, files = blobs_.files()] { core_.sweep(files); }); });
  }

  template <typename Start>
  Result<uint16_t> last_port(uint16_t configured, const char* name, Start start) {
    if (configured != 0) {
      WEFT_TRY_STATUS(start(configured));
      return configured;
    }
    WEFT_TRY(const std::string last, store_->meta(name));
    const uint16_t port = port_from(last);
    if (port != 0 && start(port).ok()) return port;
    WEFT_TRY_STATUS(start(uint16_t{0}));
    return uint16_t{0};
  }

  Status start_control() {
    const auto start = [this](uint16_t port) -> Status {
      net::ControlServerOptions options;
      options.host = options_.control_host;
      options.port = port;
      options.keys = home_.curve;
      WEFT_TRY(control_,
               net::ControlServer::start(
                   options, [this](const std::string& peer, const proto::PeerMessage& message) {
                     // The server has acknowledged it: it waits until the loop starts.
                     loop_.post([this, peer, message] { core_.on_message(peer, message); });
                   }));
      return {};
    };
    WEFT_TRY([[maybe_unused]] const uint16_t port,
             last_port(options_.control_port, "control_port", start));
    return {};
  }

  Status start_http() {
    WEFT_TRY(const std::string request, net::make_request_pem(home_.server_key, "broker"));
    net::CertificateInfo info;
    info.subject = "broker";
    info.kind = "broker";
    info.not_after_ms = core_.now_ms() + kServerCertificateDays * 86400 * 1000;
    std::vector<std::string> hosts = {"localhost", "127.0.0.1"};
    for (const std::string& host : {options_.advertise_host, options_.http_host}) {
      if (!host.empty() && !wildcard(host) &&
          std::find(hosts.begin(), hosts.end(), host) == hosts.end()) {
        hosts.push_back(host);
      }
    }
    WEFT_TRY(const std::string certificate,
             home_.authority.issue(request, info, core_.now_ms(), hosts));
    const auto start = [&](uint16_t port) -> Status {
      net::HttpServerOptions options;
      options.host = options_.http_host;
      options.port = port;
      // With the CA behind it, so that clients can pin the CA's fingerprint.
      options.certificate_pem = certificate + home_.authority.ca_pem();
      options.key_pem = home_.server_key.private_pem;
      options.ca_pem = home_.authority.ca_pem();
      // Strangers may join, which takes a small body. What they may else is decided by the API.
      options.admit = [token = home_.admin_token](const net::HttpRequest& request) {
        return bearer_is(request, token) || has_peer_certificate(request);
      };
      WEFT_TRY(http_, net::HttpServer::start(
                          options, [this](net::HttpRequest request, net::HttpReply reply) {
                            on_request(std::move(request), std::move(reply));
                          }));
      return {};
    };
    WEFT_TRY([[maybe_unused]] const uint16_t port,
             last_port(options_.http_port, "http_port", start));
    return {};
  }

  void on_request(net::HttpRequest request, net::HttpReply reply) {
    loop_.post([this, request = std::move(request), reply = std::move(reply)]() mutable {
      if (!request.path.starts_with(kBlobPrefix)) {
        api_->handle(request, std::move(reply));
        return;
      }
      if (const Status allowed = api_->authorize_blob(request); !allowed.ok()) {
        reply(net::problem_response(allowed.error()));
        return;
      }
      blob_loop_.post([this, request = std::move(request), reply = std::move(reply)] {
        if (!net::serve_blob(blobs_, request, /*allow_put=*/true, options_.max_blob_bytes, reply)) {
          reply(net::problem_response(
              make_error(Code::kNotFound, request.path + " names no blob", "see docs/api.md")));
        }
      });
    });
  }

  Home home_;
  ServiceOptions options_;
  std::unique_ptr<Store> store_;
  net::BlobStore blobs_;
  Core core_;
  std::unique_ptr<ControlLink> link_;
  std::unique_ptr<Api> api_;
  Loop loop_, blob_loop_;  // before the servers that post to them
  int64_t next_sweep_ms_ = 0;
  std::unique_ptr<net::ControlServer> control_;
  std::unique_ptr<net::HttpServer> http_;
  bool stopped_ = false;
};

}  // namespace

std::string client_host(const ServiceOptions& options, const std::string& own_name) {
  if (!options.advertise_host.empty()) return options.advertise_host;
  return wildcard(options.http_host) ? own_name : options.http_host;
}

Result<std::unique_ptr<Service>> Service::start(Home home, ServiceOptions options,
                                                const Clock& clock) {
  const std::string path =
      options.store_path.empty() ? (home.dir / "broker.db").string() : options.store_path;
  WEFT_TRY(auto store, open_sqlite_store(path));
  WEFT_TRY(net::BlobStore blobs, net::BlobStore::open(home.dir / "blobs"));
  auto service = std::make_unique<ServiceImpl>(std::move(home), std::move(options), clock,
                                               std::move(store), std::move(blobs));
  WEFT_TRY_STATUS(service->begin());
  return std::unique_ptr<Service>(std::move(service));
}

}  // namespace weft::broker
