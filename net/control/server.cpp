#include <fmt/format.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <set>
#include <thread>
#include <unordered_map>

#include "base/clock.h"
#include "base/log.h"
#include "base/os/signals.h"
#include "net/codec/parse.h"
#include "net/control/control.h"
#include "net/control/inbox.h"
#include "net/control/outbox.h"
#include "net/control/socket.h"
#include "net/control/zap.h"

namespace weft::net {
namespace {

namespace asio = boost::asio;

constexpr int kZapEnforceDomain = 93;  // ZMQ_ZAP_ENFORCE_DOMAIN, of libzmq's draft header
constexpr auto kTick = std::chrono::milliseconds(100);
constexpr int kBatch = 256;  // messages read before other work gets its turn

// What the server knows of one peer. The route is libzmq's name of its latest connection.
struct Peer {
  explicit Peer(uint64_t session) : out(session) {}
  Outbox<proto::BrokerMessage> out;
  Inbox in;
  std::string route, route_key;
};

class Server final : public ControlServer {
 public:
  Server(const ControlServerOptions& options, OnMessage on_message)
      : options_(options),
        on_message_(std::move(on_message)),
        context_(16),
        zap_(context_, [this](const std::string& key) { return peer_of_key_.contains(key); }),
        router_(context_, ZMQ_ROUTER),
        tick_(io_) {}
  ~Server() override { stop(); }

  Status open();
  void run();
  uint16_t port() const override { return port_; }

  void allow(const std::string& key, const std::string& peer) override {
    asio::post(io_, [this, key, peer] { do_allow(key, peer); });
  }
  void revoke(const std::string& key) override {
    asio::post(io_, [this, key] { do_revoke(key); });
  }
  void send(const std::string& peer, proto::BrokerMessage message, int32_t ttl_ms) override {
    asio::post(io_, [this, peer, message = std::move(message), ttl_ms]() mutable {
      do_send(peer, std::move(message), ttl_ms);
    });
  }
  void stop() override {
    if (!thread_.joinable()) return;
    asio::post(io_, [this] { io_.stop(); });
    thread_.join();
    router_ready_.reset();
    zap_ready_.reset();
    router_.close();
  }

 private:
  void do_allow(const std::string& key, const std::string& peer);
  void do_revoke(const std::string& key);
  void do_send(const std::string& peer, proto::BrokerMessage message, int32_t ttl_ms);
  void receive();
  void take(const std::string& route, const std::string& key, const std::string& bytes);
  void deliver(const std::string& name, Peer& peer, const proto::PeerMessage& message);
  void acknowledge(Peer& peer, const proto::PeerMessage& message);
  void set_route(const std::string& name, Peer& peer, const std::string& route,
                 const std::string& key);
  void clear_route(Peer& peer);
  bool transmit(Peer& peer, const proto::BrokerMessage& message);
  void pump(const std::string& name, Peer& peer);
  void arm_tick();

  ControlServerOptions options_;
  OnMessage on_message_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  ZmqContext context_;
  ZapHandler zap_;
  ZmqSocket router_;
  std::unique_ptr<ZmqReadiness> zap_ready_, router_ready_;
  asio::steady_timer tick_;
  bool tick_armed_ = false;
  uint16_t port_ = 0;
  const uint64_t session_ = random_session();
  SystemClock clock_;
  std::unordered_map<std::string, std::string> peer_of_key_;  // Z85 key to peer
  std::unordered_map<std::string, std::string> peer_of_route_;
  std::unordered_map<std::string, Peer> peers_;
  std::set<std::string> pending_;  // peers with unacknowledged messages
  std::thread thread_;
};

Status Server::open() {
  WEFT_TRY_STATUS(zap_.bind());
  router_.set_common();
  router_.set(ZMQ_IPV6, options_.host.find(':') != std::string::npos ? 1 : 0);
  router_.set(ZMQ_ROUTER_MANDATORY, 1);  // else messages to nobody vanish without an error
  router_.set(ZMQ_BACKLOG, 4096);        // every peer comes at once after a restart
  router_.set(ZMQ_HANDSHAKE_IVL, options_.handshake_ms);
  router_.set(ZMQ_CURVE_SERVER, 1);
  router_.set(ZMQ_CURVE_SECRETKEY, options_.keys.secret_z85);
  router_.set(ZMQ_ZAP_DOMAIN, std::string("weft"));
  router_.set_limit(kZapEnforceDomain, 1);
  WEFT_TRY_STATUS(router_.bind(zmq_endpoint(options_.host, options_.port)));
  const std::string bound = router_.text_option(ZMQ_LAST_ENDPOINT);
  const size_t colon = bound.rfind(':') + 1;
  std::from_chars(bound.data() + colon, bound.data() + bound.size(), port_);
  return {};
}

void Server::run() {
  zap_ready_ = std::make_unique<ZmqReadiness>(io_, zap_.fd(), [this] { zap_.answer(); });
  router_ready_ = std::make_unique<ZmqReadiness>(io_, router_.fd(), [this] { receive(); });
  zap_ready_->poke();
  router_ready_->poke();
  thread_ = std::thread([this] {
    os::name_thread("weft-control");
    io_.run();
  });
}

void Server::do_allow(const std::string& key, const std::string& peer) {
  if (!peer_of_key_.contains(key) && peer_of_key_.size() >= size_t(options_.max_peers)) {
    log_error("control: no room for the key of peer {}: the limit is {}", peer, options_.max_peers);
    return;
  }
  peer_of_key_[key] = peer;
  peers_.try_emplace(peer, session_);
}

void Server::do_revoke(const std::string& key) {
  const auto found = peer_of_key_.find(key);
  if (found == peer_of_key_.end()) return;
  const std::string name = found->second;
  peer_of_key_.erase(found);
  Peer& peer = peers_.at(name);
  if (peer.route_key == key) clear_route(peer);
  const bool other_key = std::any_of(peer_of_key_.begin(), peer_of_key_.end(),
                                     [&](const auto& entry) { return entry.second == name; });
  if (other_key) return;
  peers_.erase(name);
  pending_.erase(name);
}

void Server::do_send(const std::string& name, proto::BrokerMessage message, int32_t ttl_ms) {
  const auto found = peers_.find(name);
  if (found == peers_.end()) {
    log_warning("control: a message to peer {} is dropped: no key of it is listed", name);
    return;
  }
  if (const size_t bytes = message.ByteSizeLong(); bytes > kMaxControlBytes) {
    log_error("control: a message of {} bytes to peer {} is over the limit of {}", bytes, name,
              kMaxControlBytes);
    return;
  }
  if (!found->second.out.push(std::move(message), clock_.monotonic_ms(), ttl_ms)) {
    log_warning("control: the queue to peer {} is full, a message is dropped", name);
    return;
  }
  pump(name, found->second);
}

void Server::receive() {
  for (int i = 0; i < kBatch; ++i) {
    if (!router_.readable()) return;
    const ZmqFrames frames = router_.receive(2);
    if (frames.parts.size() == 2) take(frames.parts[0], frames.user_id, frames.parts[1]);
  }
  router_ready_->poke();
}

// The peer is the one whose key opened the connection; nothing the message says matters for it.
void Server::take(const std::string& route, const std::string& key, const std::string& bytes) {
  const auto owner = peer_of_key_.find(key);
  if (owner == peer_of_key_.end()) return;  // revoked after it connected
  const std::string name = owner->second;
  proto::PeerMessage message;
  if (!parse_message(bytes, message)) {
    log_debug("control: {} bytes of peer {} are no message", bytes.size(), name);
    return;
  }
  const auto found = peers_.find(name);
  if (found == peers_.end()) return;
  set_route(name, found->second, route, key);
  deliver(name, found->second, message);
}

void Server::deliver(const std::string& name, Peer& peer, const proto::PeerMessage& message) {
  using Body = proto::PeerMessage;
  if (message.body_case() == Body::kAck) {
    peer.out.acknowledge(message.ack_session(), message.ack(), clock_.monotonic_ms());
    pump(name, peer);
    return;
  }
  const bool heartbeat = message.body_case() == Body::kHeartbeat;
  if (!heartbeat && message.id() == 0) return;
  const Admission admission =
      heartbeat ? Admission::kNew
                : peer.in.check(message.session(), message.id(), message.previous());
  if (admission == Admission::kEarly) return;
  if (admission == Admission::kNew && message.body_case() != Body::BODY_NOT_SET) {
    try {
      on_message_(name, message);
    } catch (const std::exception& error) {
      log_error("control: handling a message of peer {} threw: {}", name, error.what());
    }
  }
  acknowledge(peer, message);
}

void Server::acknowledge(Peer& peer, const proto::PeerMessage& message) {
  proto::BrokerMessage answer;
  answer.set_session(session_);
  if (message.body_case() == proto::PeerMessage::kHeartbeat) {
    answer.set_heartbeat_ack(message.heartbeat().sequence());
  } else {
    answer.set_ack(message.id());
    answer.set_ack_session(message.session());
  }
  transmit(peer, answer);
}

void Server::set_route(const std::string& name, Peer& peer, const std::string& route,
                       const std::string& key) {
  if (peer.route == route && peer.route_key == key) return;
  if (const auto other = peer_of_route_.find(route); other != peer_of_route_.end()) {
    clear_route(peers_.at(std::string(other->second)));
  }
  clear_route(peer);
  peer.route = route;
  peer.route_key = key;
  peer_of_route_[route] = name;
  peer.out.link_renewed();
  pump(name, peer);
}

void Server::clear_route(Peer& peer) {
  peer_of_route_.erase(peer.route);
  peer.route.clear();
  peer.route_key.clear();
}

bool Server::transmit(Peer& peer, const proto::BrokerMessage& message) {
  if (peer.route.empty()) return false;
  const int error = router_.send({peer.route, message.SerializeAsString()});
  if (error == EHOSTUNREACH) clear_route(peer);
  if (router_ready_) router_ready_->poke();
  return error == 0;
}

void Server::pump(const std::string& name, Peer& peer) {
  const size_t expired = peer.out.pump(
      clock_.monotonic_ms(), [&](const proto::BrokerMessage& m) { return transmit(peer, m); });
  if (expired > 0) log_warning("control: {} messages to peer {} ran out of time", expired, name);
  if (peer.out.empty()) {
    pending_.erase(name);
  } else {
    pending_.insert(name);
    arm_tick();
  }
}

void Server::arm_tick() {
  if (tick_armed_) return;
  tick_armed_ = true;
  tick_.expires_after(kTick);
  tick_.async_wait([this](const boost::system::error_code& ec) {
    tick_armed_ = false;
    if (ec) return;
    const std::vector<std::string> names(pending_.begin(), pending_.end());
    for (const std::string& name : names) pump(name, peers_.at(name));
  });
}

}  // namespace

Result<std::unique_ptr<ControlServer>> ControlServer::start(const ControlServerOptions& options,
                                                            OnMessage on_message) {
  if (!on_message) return make_error(Code::kInternal, "a control server needs a callback");
  WEFT_TRY_STATUS(curve_public(options.keys.secret_z85).ok()
                      ? Status()
                      : make_error(Code::kInvalid, "the control server's CURVE key is malformed"));
  auto server = std::make_unique<Server>(options, std::move(on_message));
  WEFT_TRY_STATUS(server->open());
  server->run();
  return std::unique_ptr<ControlServer>(std::move(server));
}

}  // namespace weft::net
