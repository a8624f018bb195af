#include <fmt/format.h>
#include <openssl/ssl.h>

#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>
#include <vector>

#include "base/hash.h"
#include "base/os/net.h"
#include "net/certificate/certificate.h"
#include "net/http/chunk.h"
#include "net/http/http.h"
#include "net/http/tls_context.h"

namespace weft::net {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;
using Stream = asio::ssl::stream<beast::tcp_stream>;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr uint64_t kMaxResponseBytes = uint64_t{256} << 20;
constexpr uint32_t kMaxHeaderBytes = 64 << 10;
constexpr size_t kPieceBytes = 64 << 10;
constexpr size_t kMaxKeptBytes = 256 << 10;  // of an answer to a flow that is no flow itself

// What went wrong, and whether the server may have seen the request.
struct Failure {
  error_code ec;
  const char* doing = "";
  bool answered = false;  // some byte of a response had arrived
};

bool is_timeout(const error_code& ec) {
  return ec == beast::error::timeout || ec == asio::error::timed_out;
}

// Repeating one of these changes nothing more, so a lost answer may be asked for again.
bool is_idempotent(const std::string& method) {
  return method != "POST" && method != "PATCH";
}

Status check_target(const std::string& target) {
  if (!target.empty() && target.front() == '/' &&
      target.find_first_of(" \r\n\t") == std::string::npos) {
    return {};
  }
  return make_error(Code::kInvalid, fmt::format("'{}' is no request target", target));
}

template <typename Message>
void take_header(const Message& in, HttpResponse& response) {
  response.status = in.result_int();
  response.content_type = std::string(in[http::field::content_type]);
  for (const auto& field : in) {
    std::string name(field.name_string());
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
    response.headers[name] = std::string(field.value());
  }
}

}  // namespace

struct HttpClient::Impl {
  explicit Impl(HttpClientOptions o) : options(std::move(o)) {}

  Result<HttpResponse> request(const http::request<http::string_body>& out,
                               const std::string& method);
  Result<HttpResponse> stream_bodies(http::request<http::empty_body> out, const HttpFlow& flow);
  // Of either kind, without its body.
  template <typename Request>
  void fill(Request& out, const std::string& method, const std::string& target) const;
  void interrupt();

  HttpClientOptions options;

 private:
  void deadline() { stream->next_layer().expires_after(milliseconds(options.timeout_ms)); }
  bool silent();
  // A kept connection on which the server has said something unasked was closed by it.
  bool reusable() { return stream && silent(); }
  void disconnect() { stream.reset(); }
  Status connect();
  Status connect_unless_kept(bool& kept);
  Result<HttpResponse> exchange(const http::request<http::string_body>& out, Failure& failure);
  Result<HttpResponse> finish(const Failure& failure, HttpResponse response);
  Error explain(const Failure& failure);

  asio::awaitable<Failure> open();
  asio::awaitable<Failure> resolve_and_connect();
  asio::awaitable<Failure> write_and_read(const http::request<http::string_body>& out,
                                          HttpResponse& response);
  asio::awaitable<Failure> read(bool head, HttpResponse& response);
  asio::awaitable<Failure> flow_through(http::request<http::empty_body>& out, const HttpFlow& flow,
                                        HttpResponse& response);
  asio::awaitable<Failure> send_flow(http::request<http::empty_body>& out, const HttpSource& send);
  asio::awaitable<Failure> read_flow(const HttpFlow& flow, HttpResponse& response);

  // Runs one coroutine to its end on this thread.
  Failure run(asio::awaitable<Failure> work) {
    Failure result;
    std::exception_ptr thrown;
    const auto guarded = [this](asio::awaitable<Failure> inner) -> asio::awaitable<Failure> {
      if (interrupted) co_return Failure{asio::error::operation_aborted, "talk to", false};
      co_return co_await std::move(inner);
    };
    asio::co_spawn(io, guarded(std::move(work)), [&](std::exception_ptr error, Failure failure) {
      thrown = error;
      result = failure;
    });
    io.restart();
    io.run();
    if (thrown) result = {asio::error::fault, "talk to", false};
    return result;
  }

  asio::io_context io{1};
  std::optional<asio::ssl::context> tls;
  std::optional<Stream> stream;
  beast::flat_buffer buffer;
  std::atomic<bool> interrupted = false;
};

// What is posted is run by the request under way, or by the next, which looks at the flag, too.
void HttpClient::Impl::interrupt() {
  interrupted = true;
  asio::post(io, [this] {
    if (stream) stream->next_layer().close();
  });
}

// Nothing waits to be read.
bool HttpClient::Impl::silent() {
  auto& socket = stream->next_layer().socket();
  error_code ec;
  socket.non_blocking(true, ec);
  char byte = 0;
  socket.receive(asio::buffer(&byte, 1), tcp::socket::message_peek, ec);
  return ec == asio::error::would_block;
}

Error HttpClient::Impl::explain(const Failure& failure) {
  const std::string where = fmt::format("https://{}:{}", options.host, options.port);
  if (interrupted) {
    return make_error(Code::kCancelled, fmt::format("the request to {} was given up", where));
  }
  if (is_certificate_error(failure.ec)) {
    const bool ours = failure.ec.message().find("alert") != std::string::npos;
    if (ours) {
      return make_error(Code::kDenied,
                        fmt::format("{} refused our certificate: {}", where, failure.ec.message()),
                        "join the cluster again; the certificate is foreign, expired or missing");
    }
    const long verify = stream ? SSL_get_verify_result(stream->native_handle()) : X509_V_OK;
    return make_error(
        Code::kDenied,
        fmt::format(
            "the certificate of {} does not hold: {}", where,
            verify != X509_V_OK ? X509_verify_cert_error_string(verify) : failure.ec.message()),
        options.ca_fingerprint.empty()
            ? "it is not of this cluster's authority; check the address"
            : "the server is not the one of the join address or pin; ask for a new one");
  }
  if (is_timeout(failure.ec)) {
    return make_error(Code::kTimeout,
                      fmt::format("cannot {} {}: no progress within {} ms", failure.doing, where,
                                  options.timeout_ms),
                      "check that the server runs and the network is up");
  }
  return make_error(Code::kUnavailable,
                    fmt::format("cannot {} {}: {}", failure.doing, where, failure.ec.message()),
                    "check that the server runs at this address and that no firewall is between");
}

asio::awaitable<Failure> HttpClient::Impl::resolve_and_connect() {
  error_code no_address;
  const auto address = asio::ip::make_address(options.host, no_address);
  beast::tcp_stream& tcp = stream->next_layer();
  if (!no_address) {
    auto [ec] = co_await tcp.async_connect(tcp::endpoint(address, options.port), kAwait);
    co_return Failure{ec, "connect to"};
  }
  // The timer bounds the wait; it needs the resolver alive, so both are joined here.
  tcp::resolver resolver(io);
  asio::steady_timer timer(io, milliseconds(options.timeout_ms));
  timer.async_wait([&resolver](error_code ec) {
    if (!ec) resolver.cancel();
  });
  auto [failed, results] =
      co_await resolver.async_resolve(options.host, std::to_string(options.port), kAwait);
  timer.cancel();
  if (failed == asio::error::operation_aborted) {
    co_return Failure{asio::error::timed_out, "find the address of"};
  }
  if (failed) co_return Failure{failed, "find the address of"};
  deadline();
  auto [ec, endpoint] = co_await tcp.async_connect(results, kAwait);
  co_return Failure{ec, "connect to"};
}

asio::awaitable<Failure> HttpClient::Impl::open() {
  deadline();
  if (Failure failure = co_await resolve_and_connect(); failure.ec) co_return failure;
  error_code ignored;
  stream->next_layer().socket().set_option(tcp::no_delay(true), ignored);
  deadline();
  auto [ec] = co_await stream->async_handshake(asio::ssl::stream_base::client, kAwait);
  co_return Failure{ec, "make a TLS connection to"};
}

Status HttpClient::Impl::connect() {
  if (!tls) {
    WEFT_TRY(tls, client_context(options));
  }
  buffer.clear();
  stream.emplace(io, *tls);
  const Failure failure = run(open());
  if (failure.ec) {
    Error error = explain(failure);
    disconnect();
    return error;
  }
  Status subject = check_server_subject(stream->native_handle(), options);
  if (!subject.ok()) disconnect();
  return subject;
}

asio::awaitable<Failure> HttpClient::Impl::read(bool head, HttpResponse& response) {
  http::response_parser<http::string_body> parser;
  parser.header_limit(kMaxHeaderBytes);
  parser.body_limit(kMaxResponseBytes);
  parser.skip(head);
  Failure failure{{}, "read the answer of"};
  do {  // by pieces: the deadline is of silence, not of the whole
    deadline();
    auto [ec, n] = co_await http::async_read_some(*stream, buffer, parser, kAwait);
    failure.answered = failure.answered || n > 0 || parser.got_some();
    failure.ec = ec;
  } while (!failure.ec && !parser.is_done());
  if (failure.ec) co_return failure;
  auto in = parser.release();
  take_header(in, response);
  response.body = std::move(in.body());
  if (!in.keep_alive()) disconnect();
  co_return failure;
}

asio::awaitable<Failure> HttpClient::Impl::write_and_read(
    const http::request<http::string_body>& out, HttpResponse& response) {
  http::request_serializer<http::string_body> serializer{out};
  Failure written{{}, "send to"};
  while (!written.ec && !serializer.is_done()) {
    deadline();
    auto [ec, n] = co_await http::async_write_some(*stream, serializer, kAwait);
    written.ec = ec;
  }
  if (is_timeout(written.ec)) co_return written;
  // Also after a failed write: a server that refuses says why before it closes.
  Failure answer = co_await read(out.method() == http::verb::head, response);
  if (answer.ec && written.ec && !is_certificate_error(answer.ec)) {
    written.answered = answer.answered;
    co_return written;
  }
  if (!answer.ec && written.ec) disconnect();
  co_return answer;
}

Result<HttpResponse> HttpClient::Impl::exchange(const http::request<http::string_body>& out,
                                                Failure& failure) {
  HttpResponse response;
  failure = run(write_and_read(out, response));
  return finish(failure, std::move(response));
}

Result<HttpResponse> HttpClient::Impl::finish(const Failure& failure, HttpResponse response) {
  if (!failure.ec) return response;
  Error error = explain(failure);
  disconnect();
  return error;
}

Status HttpClient::Impl::connect_unless_kept(bool& kept) {
  kept = reusable();
  if (kept) return {};
  disconnect();
  return connect();
}

Result<HttpResponse> HttpClient::Impl::request(const http::request<http::string_body>& out,
                                               const std::string& method) {
  bool kept = false;
  WEFT_TRY_STATUS(connect_unless_kept(kept));
  Failure failure;
  auto response = exchange(out, failure);
  const bool again = !response.ok() && kept && !failure.answered && !is_timeout(failure.ec) &&
                     is_idempotent(method);
  if (!again) return response;
  WEFT_TRY_STATUS(connect());
  return exchange(out, failure);
}

// Until the source ends, or the server speaks before it has everything: what it says is the answer.
asio::awaitable<Failure> HttpClient::Impl::send_flow(http::request<http::empty_body>& out,
                                                     const HttpSource& send) {
  http::request_serializer<http::empty_body> serializer{out};
  Failure written{{}, "send to"};
  deadline();
  size_t bytes = 0;
  std::tie(written.ec, bytes) = co_await http::async_write_header(*stream, serializer, kAwait);
  if (!send) co_return written;
  os::set_unsent_limit(stream->next_layer().socket().native_handle(), kUnsentBytes);
  for (ChunkMaker chunks(send); !written.ec && !chunks.ended() && silent();) {
    deadline();
    std::tie(written.ec, bytes) =
        co_await asio::async_write(*stream, asio::buffer(chunks.next()), kAwait);
  }
  co_return written;
}

asio::awaitable<Failure> HttpClient::Impl::read_flow(const HttpFlow& flow, HttpResponse& response) {
  http::response_parser<http::buffer_body> parser;
  parser.header_limit(kMaxHeaderBytes);
  parser.body_limit(boost::none);
  std::vector<char> piece(kPieceBytes);
  Failure failure{{}, "read the answer of"};
  bool wanted = true;
  while (!failure.ec && wanted && !parser.is_done()) {
    auto& body = parser.get().body();
    body.data = piece.data();
    body.size = piece.size();
    deadline();
    auto [ec, n] = co_await http::async_read_some(*stream, buffer, parser, kAwait);
    failure.answered = failure.answered || n > 0 || parser.got_some();
    if (ec != http::error::need_buffer) failure.ec = ec;
    const size_t bytes = piece.size() - body.size;
    const bool flows = flow.arrived && parser.get().result_int() < 300;
    if (flows && bytes > 0) wanted = flow.arrived(bytes);
    if (!flows) response.body.append(piece.data(), bytes);
    if (response.body.size() > kMaxKeptBytes) failure.ec = http::error::body_limit;
  }
  if (failure.ec) co_return failure;
  take_header(parser.get(), response);
  if (!parser.is_done() || !parser.get().keep_alive()) disconnect();
  co_return failure;
}

asio::awaitable<Failure> HttpClient::Impl::flow_through(http::request<http::empty_body>& out,
                                                        const HttpFlow& flow,
                                                        HttpResponse& response) {
  const Failure written = co_await send_flow(out, flow.send);
  if (is_timeout(written.ec)) co_return written;
  Failure answer = co_await read_flow(flow, response);
  if (answer.ec && written.ec && !is_certificate_error(answer.ec)) co_return written;
  co_return answer;
}

Result<HttpResponse> HttpClient::Impl::stream_bodies(http::request<http::empty_body> out,
                                                     const HttpFlow& flow) {
  bool kept = false;
  WEFT_TRY_STATUS(connect_unless_kept(kept));
  HttpResponse response;
  const Failure failure = run(flow_through(out, flow, response));
  return finish(failure, std::move(response));
}

template <typename Request>
void HttpClient::Impl::fill(Request& out, const std::string& method,
                            const std::string& target) const {
  out.version(11);
  out.method_string(method);
  out.target(target);
  const bool six = options.host.find(':') != std::string::npos;
  out.set(http::field::host,
          fmt::format("{}{}{}:{}", six ? "[" : "", options.host, six ? "]" : "", options.port));
  out.set(http::field::user_agent, "weft");
  if (!options.bearer_token.empty()) {
    out.set(http::field::authorization, "Bearer " + options.bearer_token);
  }
}

HttpClient::HttpClient(HttpClientOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
HttpClient::~HttpClient() = default;
HttpClient::HttpClient(HttpClient&&) noexcept = default;
HttpClient& HttpClient::operator=(HttpClient&&) noexcept = default;

Result<HttpResponse> HttpClient::request(const std::string& method, const std::string& target,
                                         std::string body,
                                         std::map<std::string, std::string> headers) {
  WEFT_TRY_STATUS(check_target(target));
  try {
    http::request<http::string_body> out;
    impl_->fill(out, method, target);
    for (const auto& [name, value] : headers) out.set(name, value);
    out.body() = std::move(body);
    if (!out.body().empty() || (method != "GET" && method != "HEAD")) {
      if (out.find(http::field::content_type) == out.end()) {
        out.set(http::field::content_type, "application/json");
      }
      out.content_length(out.body().size());
    }
    return impl_->request(out, method);
  } catch (const std::exception& error) {
    return make_error(Code::kInternal, fmt::format("cannot make the request {} {}: {}", method,
                                                   target, error.what()));
  }
}

Result<HttpResponse> HttpClient::stream(const std::string& method, const std::string& target,
                                        const HttpFlow& flow) {
  WEFT_TRY_STATUS(check_target(target));
  try {
    http::request<http::empty_body> out;
    impl_->fill(out, method, target);
    if (flow.send) out.chunked(true);
    return impl_->stream_bodies(std::move(out), flow);
  } catch (const std::exception& error) {
    return make_error(Code::kInternal, fmt::format("cannot make the request {} {}: {}", method,
                                                   target, error.what()));
  }
}

void HttpClient::interrupt() {
  impl_->interrupt();
}

}  // namespace weft::net
