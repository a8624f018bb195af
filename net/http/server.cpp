#include <fmt/format.h>

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/os/signals.h"
#include "net/http/connection.h"
#include "net/http/tls_context.h"
#include "net/http/uri.h"

namespace weft::net {
namespace {

namespace http = boost::beast::http;
using namespace http_server;
using std::chrono::steady_clock;

constexpr uint32_t kMaxHeaderBytes = 16 << 10;
constexpr milliseconds kHandshakeTime{10000};
constexpr milliseconds kHeaderTime{10000};
constexpr milliseconds kMaxReplyTime{600000};

// One request waiting for its reply; touched by the thread only.
struct Pending {
  explicit Pending(asio::io_context& io) : timer(io) {}
  asio::steady_timer timer;
  std::optional<HttpResponse> response;
};

// Carries the reply to the thread. A handler that drops its reply has answered 500.
class Replier {
 public:
  Replier(std::shared_ptr<Core> core, std::shared_ptr<Pending> pending)
      : core_(std::move(core)), pending_(std::move(pending)) {}
  Replier(const Replier&) = delete;
  Replier& operator=(const Replier&) = delete;
  ~Replier() {
    reply(problem_response(make_error(Code::kInternal, "the request was given up unanswered")));
  }
  void reply(HttpResponse response) {
    if (done_.exchange(true)) return;
    asio::post(core_->io,
               [pending = std::move(pending_), response = std::move(response)]() mutable {
                 pending->response = std::move(response);
                 pending->timer.cancel();
               });
  }

 private:
  std::shared_ptr<Core> core_;
  std::shared_ptr<Pending> pending_;
  std::atomic<bool> done_{false};
};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& ch : out) ch = ch >= 'A' && ch <= 'Z' ? char(ch - 'A' + 'a') : ch;
  return out;
}

// Without its body.
std::optional<HttpRequest> to_request(Connection& c, const http::request<http::string_body>& in) {
  const auto target = parse_target(std::string_view(in.target().data(), in.target().size()));
  if (!target) return std::nullopt;
  HttpRequest out;
  out.method = std::string(in.method_string());
  out.path = target->path;
  out.query = target->query;
  for (const auto& field : in) {
    std::string& value = out.headers[lower(
        std::string_view(field.name_string().data(), field.name_string().size()))];
    if (!value.empty()) value += ", ";
    value += std::string(field.value());
  }
  out.client_certificate_pem = c.certificate_pem;
  out.remote_address = c.remote;
  return out;
}

void call_handler(const std::shared_ptr<Core>& core, HttpRequest request,
                  std::shared_ptr<Pending> pending) {
  auto replier = std::make_shared<Replier>(core, std::move(pending));
  try {
    core->handler(std::move(request),
                  [replier](HttpResponse response) { replier->reply(std::move(response)); });
  } catch (const std::exception& error) {
    log_error("an HTTP handler threw: {}", error.what());
    replier->reply(problem_response(make_error(Code::kInternal, "the request failed inside")));
  }
}

asio::awaitable<HttpResponse> answer(Connection& c, std::weak_ptr<Core> weak, HttpRequest request) {
  auto pending = std::make_shared<Pending>(c.core.io);
  pending->timer.expires_after(kMaxReplyTime);
  c.tcp().expires_never();
  if (auto core = weak.lock()) call_handler(core, std::move(request), pending);
  if (!pending->response) co_await pending->timer.async_wait(kAwait);
  if (pending->response) co_return std::move(*pending->response);
  co_return problem_response(make_error(Code::kTimeout, "the request took too long", "try again"));
}

HttpResponse refusal(error_code ec, uint64_t max_body_bytes, bool stranger) {
  if (ec == http::error::body_limit && stranger) {
    return problem_response(make_error(
        Code::kDenied,
        fmt::format("a body of more than {} bytes needs a valid bearer token or client certificate",
                    max_body_bytes),
        "log in: weft login"));
  }
  if (ec == http::error::body_limit) {
    return problem_response(
        make_error(Code::kTooLarge, fmt::format("the body is larger than {} bytes", max_body_bytes),
                   "send large content as blobs, in chunks"));
  }
  HttpResponse out = problem_response(
      make_error(Code::kInvalid, fmt::format("not a readable HTTP request: {}", ec.message())));
  if (ec == http::error::header_limit) out.status = 431;
  return out;
}

bool is_http_error(error_code ec) {
  static const auto& category = http::make_error_code(http::error::bad_version).category();
  return ec.category() == category && ec != http::error::end_of_stream &&
         ec != http::error::partial_message;
}

using Parser = http::request_parser<http::string_body>;

asio::awaitable<error_code> read_header(Connection& c, Parser& parser) {
  if (c.buffer.size() == 0) {
    c.buffer.shrink_to_fit();
    c.tcp().expires_after(milliseconds(c.core.options.idle_timeout_ms));
    auto [ec, n] = co_await c.stream.async_read_some(c.buffer.prepare(4096), kAwait);
    if (ec) co_return ec;
    c.buffer.commit(n);
  }
  c.tcp().expires_after(kHeaderTime);
  auto [ec, n] = co_await http::async_read_header(c.stream, c.buffer, parser, kAwait);
  co_return ec;
}

// How large a body the caller may send.
uint64_t body_limit_of(const Core& core, const std::optional<HttpRequest>& header) {
  const bool admitted = !core.options.admit || (header && core.options.admit(*header));
  return admitted ? core.options.max_body_bytes
                  : std::min(core.options.max_body_bytes, core.options.stranger_body_bytes);
}

// Tells a client that waits for it to send its body. False: the connection is gone.
template <typename AnyParser>
asio::awaitable<bool> go_on(Connection& c, const AnyParser& parser) {
  if (!beast::iequals(parser.get()[http::field::expect], "100-continue")) co_return true;
  http::response<http::empty_body> go_on{http::status::continue_, parser.get().version()};
  auto [ec, n] = co_await http::async_write(c.stream, go_on, kAwait);
  co_return !ec;
}

asio::awaitable<error_code> read_body(Connection& c, Parser& parser, uint64_t limit) {
  const auto length = parser.content_length_remaining();
  // The parser itself checks a stated length with the header only.
  if (length && *length > limit) co_return http::make_error_code(http::error::body_limit);
  parser.body_limit(limit);
  if (!co_await go_on(c, parser)) co_return asio::error::connection_aborted;
  const auto end = steady_clock::now() + transfer_time(c.core, length.value_or(limit));
  const milliseconds idle(c.core.options.idle_timeout_ms);
  while (!parser.is_done()) {
    c.tcp().expires_at(std::min(end, steady_clock::now() + idle));
    auto [ec, n] = co_await http::async_read_some(c.stream, c.buffer, parser, kAwait);
    if (ec) co_return ec;
  }
  co_return error_code{};
}

// Says why, once, and ends the connection.
asio::awaitable<bool> refuse(Connection& c, HttpResponse response) {
  co_await write_response(c, std::move(response), false, 11, false);
  co_await linger(c);
  co_return false;
}

asio::awaitable<bool> serve_upload(Connection& c, Parser& header, HttpUpload& upload) {
  http::request_parser<http::buffer_body> parser(std::move(header));
  parser.body_limit(boost::none);  // the upload has its own
  std::vector<char> piece(kPieceBytes);
  bool wanted = upload.take(0);
  if (wanted && !co_await go_on(c, parser)) co_return false;
  while (wanted && !parser.is_done()) {
    auto& body = parser.get().body();
    body.data = piece.data();
    body.size = piece.size();
    c.tcp().expires_after(milliseconds(c.core.options.idle_timeout_ms));
    auto [ec, n] = co_await http::async_read_some(c.stream, c.buffer, parser, kAwait);
    if (ec && ec != http::error::need_buffer) {
      if (!is_http_error(ec)) co_return false;
      co_return co_await refuse(c, refusal(ec, 0, false));
    }
    if (body.size < piece.size()) wanted = upload.take(piece.size() - body.size);
  }
  if (!parser.is_done()) co_return co_await refuse(c, upload.end());
  co_return co_await write_response(c, upload.end(), false, 11, parser.keep_alive());
}

asio::awaitable<bool> serve_one(Connection& c, std::weak_ptr<Core> core) {
  Parser parser;
  parser.header_limit(kMaxHeaderBytes);
  parser.body_limit(c.core.options.max_body_bytes);
  error_code ec = co_await read_header(c, parser);
  uint64_t limit = c.core.options.max_body_bytes;
  std::optional<HttpRequest> request;
  if (!ec) {
    request = to_request(c, parser.get());
    std::unique_ptr<HttpUpload> upload;
    if (request && c.core.options.upload) upload = c.core.options.upload(*request);
    if (upload) co_return co_await serve_upload(c, parser, *upload);
    limit = body_limit_of(c.core, request);
    ec = co_await read_body(c, parser, limit);
  }
  if (ec) {
    if (!is_http_error(ec)) co_return false;
    const bool stranger = limit < c.core.options.max_body_bytes;
    co_return co_await refuse(c, refusal(ec, limit, stranger));
  }
  auto in = parser.release();
  const bool keep_alive = in.keep_alive(), head = in.method() == http::verb::head;
  const unsigned version = in.version();
  HttpResponse response;
  if (request) {
    request->body = std::move(in.body());
    response = co_await answer(c, std::move(core), std::move(*request));
  } else {
    response = problem_response(make_error(Code::kInvalid, "the request target is malformed"));
  }
  co_return co_await write_response(c, std::move(response), head, version, keep_alive);
}

asio::awaitable<void> serve(std::unique_ptr<Connection> c, std::weak_ptr<Core> core) {
  error_code ec;
  c->tcp().socket().set_option(tcp::no_delay(true), ec);
  const auto remote = c->tcp().socket().remote_endpoint(ec);
  if (ec) co_return;
  c->remote = remote.address().to_string();
  c->tcp().expires_after(kHandshakeTime);
  auto [failed] = co_await c->stream.async_handshake(asio::ssl::stream_base::server, kAwait);
  if (failed) {
    log_debug("TLS handshake with {} failed: {}", c->remote, failed.message());
    co_await linger(*c);
    co_return;
  }
  c->certificate_pem = peer_certificate_pem(c->stream.native_handle());
  while (co_await serve_one(*c, core)) {
  }
  c->tcp().expires_after(kLingerTime);
  co_await c->stream.async_shutdown(kAwait);
}

void log_end(std::exception_ptr failure) {
  if (!failure) return;
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    log_error("an HTTP connection ended by an exception: {}", error.what());
  }
}

asio::awaitable<void> accept_loop(Core& core, std::weak_ptr<Core> weak) {
  while (core.acceptor.is_open()) {
    auto [ec, socket] = co_await core.acceptor.async_accept(kAwait);
    if (ec == asio::error::operation_aborted) co_return;
    if (ec) {  // out of descriptors, or the client left: wait instead of spinning
      asio::steady_timer pause(core.io, milliseconds(100));
      co_await pause.async_wait(kAwait);
      continue;
    }
    if (core.connections.size() >= size_t(core.options.max_connections)) continue;  // closes it
    asio::co_spawn(core.io, serve(std::make_unique<Connection>(core, std::move(socket)), weak),
                   log_end);
  }
}

class Server final : public HttpServer {
 public:
  explicit Server(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  ~Server() override { stop(); }

  void run() {
    port_ = core_->acceptor.local_endpoint().port();
    asio::co_spawn(core_->io, accept_loop(*core_, core_), log_end);
    thread_ = std::thread([core = core_] {
      os::name_thread("weft-http");
      core->io.run();
    });
  }
  uint16_t port() const override { return port_; }

  void stop() override {
    if (!thread_.joinable()) return;
    asio::post(core_->io, [core = core_.get()] {
      error_code ignored;
      core->acceptor.close(ignored);
      for (Connection* connection : core->connections) connection->tcp().close();
      core->io.stop();
    });
    thread_.join();
    core_->handler = nullptr;
  }

 private:
  std::shared_ptr<Core> core_;
  uint16_t port_ = 0;
  std::thread thread_;
};

Status listen(Core& core) {
  const auto fail = [&](const char* what, const error_code& ec) {
    return make_error(Code::kUnavailable,
                      fmt::format("cannot {} {}:{}: {}", what, core.options.host, core.options.port,
                                  ec.message()),
                      "choose another address or port, or end the program that holds it");
  };
  error_code ec;
  const auto address = asio::ip::make_address(
      core.options.host == "localhost" ? "127.0.0.1" : core.options.host, ec);
  if (ec) return fail("use as a listen address", ec);
  const tcp::endpoint endpoint(address, core.options.port);
  core.acceptor.open(endpoint.protocol(), ec);
  if (ec) return fail("open", ec);
  core.acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  core.acceptor.bind(endpoint, ec);
  if (ec) return fail("bind", ec);
  core.acceptor.listen(1024, ec);
  if (ec) return fail("listen on", ec);
  return {};
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpServerOptions& options,
                                                      HttpHandler handler) {
  if (!handler) return make_error(Code::kInternal, "an HTTP server needs a handler");
  WEFT_TRY(auto tls, server_context(options));
  try {
    auto core = std::make_shared<Core>(options, std::move(handler), std::move(tls));
    WEFT_TRY_STATUS(listen(*core));
    auto server = std::make_unique<Server>(std::move(core));
    server->run();
    return std::unique_ptr<HttpServer>(std::move(server));
  } catch (const std::exception& error) {
    return make_error(Code::kInternal, fmt::format("cannot start HTTP: {}", error.what()));
  }
}

}  // namespace weft::net
