// Life of the endpoint and its links: listening, dialling, the watchdog, the end.
#include "net/tls/tls_core.h"

#include <fmt/format.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os/net.h"
#include "base/os/signals.h"
#include "base/rng.h"

// g++ 12 takes Asio's coroutine frame allocation for a mismatch with its own deallocation.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace weft::net {
namespace {

using asio::as_tuple;
using asio::use_awaitable;
using asio::ip::tcp;

constexpr size_t kMaxHandshakes = 64;  // incoming connections not yet authenticated
constexpr int kBacklog = 256;
constexpr int64_t kMinBackoffMs = 50, kMaxBackoffMs = 1000;
constexpr int64_t kStableMs =
    2000;  // a connection that lived this long, or was of use, resets the backoff
constexpr int64_t kLeaveMs = 1000;
constexpr int32_t kMaxTickMs = WarmUp::kPingMs / 2;
constexpr int64_t kTrimMs = 2000;  // storage not used that long is given back

bool one_machine(const tcp::socket& socket) {
  boost::system::error_code ec;
  const auto remote = socket.remote_endpoint(ec);
  if (ec) return false;
  return remote.address().is_loopback() || remote.address() == socket.local_endpoint(ec).address();
}

void tune(Connection& connection) {
  tcp::socket& socket = connection.socket();
  boost::system::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  os::set_unsent_limit(socket.native_handle(), Pacer::kFirstWrite);
  connection.congestion.begin(os::set_congestion_control(
      socket.native_handle(), CongestionChoice::at_first(one_machine(socket))));
}

}  // namespace

std::string Link::name() const {
  return fmt::format("stage {} (peer {})", stage, peer);
}

TlsCore::TlsCore(TlsEndpointOptions options, std::unique_ptr<asio::ssl::context> context)
    : options_(std::move(options)),
      rules_(options_.stage, options_.edges, options_.control_neighbours),
      context_(std::move(context)) {
  for (int32_t stage : rules_.neighbours()) {
    links_.emplace(stage, std::make_unique<Link>(rules_, options_, stage, pool_, io_));
  }
  for (const EdgeLink& edge : options_.edges) {
    const bool sends = edge.from == options_.stage;
    const auto link = links_.find(sends ? edge.to : edge.from);
    if (link == links_.end()) continue;
    link->second->message_bytes += sends ? edge.activation_bytes : edge.gradient_bytes;
  }
}

TlsCore::~TlsCore() {
  io_.stop();
  if (thread_.joinable()) thread_.join();
}

Status TlsCore::start() {
  boost::system::error_code ec;
  const auto failed = [&](const std::string& what) {
    return make_error(Code::kIo,
                      fmt::format("cannot {} {} port {}: {}", what, options_.listen_host,
                                  options_.listen_port, ec.message()),
                      "choose another listen address or port");
  };
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(options_.listen_host, std::to_string(options_.listen_port),
                                      tcp::resolver::passive, ec);
  if (ec || found.empty()) return failed("resolve");
  const tcp::endpoint address = found.begin()->endpoint();
  acceptor_ = std::make_unique<tcp::acceptor>(io_);
  acceptor_->open(address.protocol(), ec);
  if (ec) return failed("open a socket for");
  acceptor_->set_option(tcp::acceptor::reuse_address(true), ec);
  acceptor_->bind(address, ec);
  if (ec) return failed("bind");
  acceptor_->listen(kBacklog, ec);
  if (ec) return failed("listen on");
  port_ = acceptor_->local_endpoint(ec).port();
  thread_ = std::thread([this] { run(); });
  return {};
}

void TlsCore::run() {
  os::name_thread("weft-data");
  os::block_signals();
  try {
    io_.run();
  } catch (const std::exception& e) {
    fail(make_error(Code::kInternal, fmt::format("the data plane stopped: {}", e.what())));
  }
}

void TlsCore::spawn(Task<void> task) {
  asio::co_spawn(io_, std::move(task), [this](std::exception_ptr thrown) {
    if (!thrown) return;
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
      fail(make_error(Code::kInternal, fmt::format("a data plane task ended: {}", e.what())));
    }
  });
}

void TlsCore::fail(Error error) {
  if (!mailbox_.failed()) log_error("data plane of stage {}: {}", options_.stage, error.message);
  mailbox_.fail(std::move(error));
}

Status TlsCore::begin(const std::vector<Neighbour>& neighbours, bool dialable) {
  std::map<int32_t, Neighbour> by_stage;
  for (const Neighbour& neighbour : neighbours) by_stage[neighbour.stage] = neighbour;
  for (int32_t stage : rules_.neighbours()) {
    const auto it = by_stage.find(stage);
    if (it == by_stage.end()) {
      return make_error(Code::kInvalid, fmt::format("stage {} is linked to stage {}, whose address "
                                                    "is not given",
                                                    options_.stage, stage));
    }
    if (it->second.port == 0 && !dialable) {
      return make_error(Code::kUnavailable,
                        fmt::format("neither stage {} nor stage {} (peer {}) can be dialled",
                                    options_.stage, stage, it->second.peer),
                        "give one of the two peers a reachable address");
    }
  }
  asio::post(io_, [this, by_stage, dialable] {
    for (auto& [stage, link] : links_) {
      const Neighbour& neighbour = by_stage.at(stage);
      link->peer = neighbour.peer;
      link->host = neighbour.host;
      link->port = neighbour.port;
      link->last_heard_ms = now_ms();
      link->dials = neighbour.port != 0 && (!dialable || options_.stage < stage);
      if (link->dials) spawn(dial_loop(link.get()));
    }
    last_tick_ms_ = now_ms();
    spawn(accept_loop());
    spawn(tick_loop());
  });
  return {};
}

void TlsCore::post_send(int32_t to_stage, Message message) {
  mailbox_.count_queued();
  asio::post(io_, [this, to_stage, message = std::move(message)]() mutable {
    Link& link = *links_.at(to_stage);
    if (link.left) {
      fail(make_error(Code::kUnavailable, fmt::format("{} has left: {} cannot be sent", link.name(),
                                                      message.key.text())));
    }
    ++link.queued;
    if (message.bytes.size() >= WarmUp::kLargeBytes) note_large(link, message.bytes.size());
    link.outbox.push(std::move(message));
    release(link);
    wake(link);
  });
}

void TlsCore::note_large(Link& link, uint64_t bytes) {
  link.message_bytes = std::max(link.message_bytes, bytes);
  if (!link.connection || !link.connection->active) return;
  warm_up(*link.connection);
  link.connection->warm_up.note_large(now_ms());
}

void TlsCore::post_taken(const MessageKey& key) {
  asio::post(io_, [this, key] {
    Link& link = *links_.at(key.from);
    link.inbox.on_taken(key);
    if (link.connection) link.connection->push_control(ConsumedFrame{key});
  });
}

void TlsCore::leave(GoodbyeReason reason, const std::string& text) {
  asio::post(io_, [this, reason, text] {
    stopping_ = true;
    boost::system::error_code ignored;
    acceptor_->close(ignored);
    const auto open = connections_;
    for (const ConnectionPtr& connection : open) {
      if (!connection->active || connection->leaving) {
        lost(connection, "this stage leaves");
        continue;
      }
      connection->leaving = true;
      connection->deadline_ms = now_ms() + kLeaveMs;
      connection->push_control(GoodbyeFrame{reason, text});
    }
    mailbox_.connections(connections_.size());
  });
}

ConnectionPtr TlsCore::make_connection() {
  auto connection = std::make_shared<Connection>(io_, *context_);
  connection->deadline_ms = now_ms() + options_.handshake_timeout_ms;
  connections_.insert(connection);
  mailbox_.connections(connections_.size());
  return connection;
}

// The link's one connection from now on; an older one is dead, or its other end would not have
// dialled again.
void TlsCore::adopt(Link& link, const ConnectionPtr& connection) {
  if (link.connection) lost(link.connection, "replaced by a newer connection");
  link.connection = connection;
}

void TlsCore::lost(const ConnectionPtr& connection, const std::string& why) {
  connection->close();
  if (connections_.erase(connection) == 0) return;
  mailbox_.connections(connections_.size());
  Link* link = connection->link;
  if (!link || link->connection != connection) return;
  link->connection = nullptr;
  link->inbox.on_disconnected();
  link->outbox.on_disconnected();
  wake_others(*link);
  link->runs.on_disconnected();
  link->way_back = {};  // the other side's clock may be another one
  release(*link);
  link->changed.cancel();
  mailbox_.link_trouble(link->stage, why);
  if (!stopping_ && !link->left) log_info("data link to {} is down: {}", link->name(), why);
}

Task<void> TlsCore::accept_loop() {
  while (!stopping_) {
    auto connection = make_connection();
    connection->deadline_ms = 0;  // waiting for a caller has no bound
    const auto [ec] =
        co_await acceptor_->async_accept(connection->socket(), as_tuple(use_awaitable));
    if (ec || handshakes_ >= kMaxHandshakes) {
      lost(connection, "not accepted");
      if (stopping_) break;
      if (!ec) continue;
      // Out of descriptors: trying again at once would only spin.
      asio::steady_timer pause(io_, std::chrono::milliseconds(100));
      co_await pause.async_wait(as_tuple(use_awaitable));
      continue;
    }
    connection->deadline_ms = now_ms() + options_.handshake_timeout_ms;
    spawn(serve(connection));
  }
}

Task<void> TlsCore::serve(ConnectionPtr connection) {
  tune(*connection);
  ++handshakes_;
  auto status = co_await secure(connection, true, nullptr);
  std::optional<HelloFrame> hello;
  if (status.ok()) {
    auto read = co_await read_hello(connection);
    if (read.ok()) hello = std::move(read).value();
    status = hello ? check_hello(*connection->link, *hello) : Status(std::move(read).error());
    if (hello && !status.ok()) {
      status = co_await refuse(connection, GoodbyeReason::kDenied, status.error());
    }
  }
  --handshakes_;
  if (!status.ok() || stopping_ || connection->link->left || connection->closed) {
    if (!status.ok()) log_debug("incoming data connection: {}", status.error().message);
    lost(connection, "not established");
    co_return;
  }
  adopt(*connection->link, connection);
  status = co_await send_hello(connection);
  if (!status.ok() || connection->closed) {
    lost(connection, status.ok() ? "replaced" : status.error().message);
    co_return;
  }
  activate(connection, *hello);
}

Task<void> TlsCore::dial_loop(Link* link) {
  const auto stage = static_cast<uint64_t>(options_.stage);
  Rng rng(derive_seed(
      {stage, static_cast<uint64_t>(link->stage), xxh3(std::as_bytes(std::span(options_.job)))}));
  const int64_t max_backoff_ms =
      std::min<int64_t>(kMaxBackoffMs, std::max(options_.link_timeout_ms / 4, 1));
  int64_t backoff_ms = std::min(kMinBackoffMs, max_backoff_ms);
  while (!stopping_ && !link->left && !mailbox_.failed()) {
    auto status = co_await dial(link);
    if (status.ok()) {
      const int64_t since_ms = now_ms();
      while (link->connection) co_await link->changed.async_wait(as_tuple(use_awaitable));
      if (link->progressed || now_ms() - since_ms > kStableMs)
        backoff_ms = std::min(kMinBackoffMs, max_backoff_ms);
    } else {
      Error error = std::move(status).error();
      mailbox_.link_trouble(link->stage, error.message);
      if (error.code == Code::kDenied && !link->ever_up) {
        fail(std::move(error).within(
            fmt::format("linking to {} at {}:{}", link->name(), link->host, link->port)));
        co_return;
      }
    }
    const auto jittered =
        static_cast<int64_t>(static_cast<double>(backoff_ms) * (0.5 + 0.5 * rng.uniform()));
    asio::steady_timer pause(io_, std::chrono::milliseconds(jittered));
    co_await pause.async_wait(as_tuple(use_awaitable));
    backoff_ms = std::min(2 * backoff_ms, max_backoff_ms);
  }
}

Task<Status> TlsCore::dial(Link* link) {
  auto connection = make_connection();
  auto status = co_await reach(link, connection);
  if (status.ok()) status = co_await secure(connection, false, link);
  if (status.ok()) status = co_await agree(link, connection);
  if (status.ok() && connection->closed) {
    status = make_error(Code::kUnavailable, "the connection was closed");
  }
  if (!status.ok()) lost(connection, status.error().message);
  co_return status;
}

Task<Status> TlsCore::reach(Link* link, ConnectionPtr connection) {
  tcp::resolver resolver(io_);
  const auto [resolve_ec, found] = co_await resolver.async_resolve(
      link->host, std::to_string(link->port), as_tuple(use_awaitable));
  if (resolve_ec) {
    co_return make_error(Code::kUnavailable,
                         fmt::format("cannot resolve {}: {}", link->host, resolve_ec.message()));
  }
  boost::system::error_code ec = asio::error::host_not_found;
  for (const auto& entry : found) {
    if (connection->closed) break;
    std::tie(ec) =
        co_await connection->socket().async_connect(entry.endpoint(), as_tuple(use_awaitable));
    if (!ec) break;
    boost::system::error_code ignored;
    connection->socket().close(ignored);
  }
  if (ec || connection->closed) {
    co_return make_error(Code::kUnavailable,
                         fmt::format("cannot connect to {}:{}: {}", link->host, link->port,
                                     connection->closed ? "no answer in time" : ec.message()));
  }
  tune(*connection);
  co_return Status();
}

Task<Status> TlsCore::agree(Link* link, ConnectionPtr connection) {
  adopt(*link, connection);
  auto status = co_await send_hello(connection);
  if (!status.ok()) co_return status;
  auto hello = co_await read_hello(connection);
  if (!hello.ok()) co_return std::move(hello).error();
  if (auto match = check_hello(*link, *hello); !match.ok()) {
    co_return co_await refuse(connection, GoodbyeReason::kDenied, std::move(match).error());
  }
  if (!connection->closed) activate(connection, *hello);
  co_return Status();
}

Task<void> TlsCore::tick_loop() {
  const int32_t period_ms = std::clamp(
      std::min(options_.ping_interval_ms, options_.link_timeout_ms / 4) / 2, 5, kMaxTickMs);
  asio::steady_timer timer(io_);
  while (!stopping_ || !connections_.empty()) {
    timer.expires_after(std::chrono::milliseconds(period_ms));
    co_await timer.async_wait(as_tuple(use_awaitable));
    const int64_t now = now_ms();
    const int64_t slept_ms = now - last_tick_ms_ - period_ms;
    last_tick_ms_ = now;
    // This process stood still (stopped, suspended): what arrived meanwhile is not read yet.
    if (slept_ms > options_.link_timeout_ms / 4) {
      for (auto& [stage, link] : links_) {
        link->last_heard_ms += slept_ms;
        if (link->connection) link->connection->last_heard_ms += slept_ms;
      }
    }
    const auto open = connections_;
    for (const ConnectionPtr& connection : open) {
      if (connection->deadline_ms != 0 && now > connection->deadline_ms) {
        lost(connection, "no answer in time");
      }
    }
    for (auto& [stage, link] : links_) tick(*link, now);
    if (now - last_trim_ms_ > kTrimMs) {
      last_trim_ms_ = now;
      pool_.trim();
    }
  }
}

void TlsCore::tick(Link& link, int64_t now) {
  if (link.left) {
    if (now - link.left_ms > options_.link_timeout_ms) {
      mailbox_.set_stale(make_error(
          Code::kUnavailable,
          fmt::format("{} left {} ms ago and nothing arrives", link.name(), now - link.left_ms)));
    }
    return;
  }
  const ConnectionPtr connection = link.connection;
  if (connection && connection->active) {
    if (now - connection->last_ping_ms >= options_.ping_interval_ms ||
        connection->warm_up.keep_warm(now, connection->last_ping_ms,
                                      connection->congestion.current())) {
      connection->last_ping_ms = now;
      if (connection->control.empty()) {
        connection->push_control(PingFrame{connection->pings.ask(monotonic_seconds())});
      }
    }
    if (connection->warm_up.rests()) start_anew(*connection);
    // Half the time is kept for a new connection to prove that only the old one is dead.
    if (now - connection->last_heard_ms > options_.link_timeout_ms / 2) {
      lost(connection, fmt::format("silent for {} ms", now - connection->last_heard_ms));
    }
  }
  if (link.ever_up && !stopping_ && now - link.last_heard_ms > options_.link_timeout_ms &&
      !mailbox_.failed()) {
    fail(
        make_error(Code::kUnavailable,
                   fmt::format("the data link to {} is dead: nothing heard for {} ms; {}",
                               link.name(), now - link.last_heard_ms, mailbox_.trouble(link.stage)),
                   "see whether that peer and its network are alive"));
  }
}

}  // namespace weft::net
