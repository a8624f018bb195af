// What the files of the HTTPS server share: its thread's state, a connection, and writing answers.
// Everything here belongs to the thread "weft-http". Private to net/http.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <chrono>
#include <set>
#include <string>

#include "net/http/http.h"

namespace weft::net::http_server {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;
using Stream = asio::ssl::stream<beast::tcp_stream>;

inline constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
inline constexpr milliseconds kLingerTime{3000};
inline constexpr size_t kPieceBytes = 64 << 10;

struct Connection;

// What the thread works on. Replies hold it too: they may come after the server has gone.
struct Core {
  Core(HttpServerOptions o, HttpHandler h, asio::ssl::context t)
      : options(std::move(o)), handler(std::move(h)), tls(std::move(t)), acceptor(io) {}

  HttpServerOptions options;
  HttpHandler handler;
  asio::ssl::context tls;
  std::set<Connection*> connections;  // of the thread only
  asio::io_context io{1};             // after the set: its coroutines leave it when destroyed
  tcp::acceptor acceptor;
};

struct Connection {
  Connection(Core& c, tcp::socket socket) : core(c), stream(std::move(socket), c.tls) {
    core.connections.insert(this);
  }
  ~Connection() { core.connections.erase(this); }
  beast::tcp_stream& tcp() { return stream.next_layer(); }

  Core& core;
  Stream stream;
  beast::flat_buffer buffer;
  std::string remote, certificate_pem;
};

// How long bytes may take at the slowest rate that is borne.
milliseconds transfer_time(const Core& core, uint64_t bytes);

// Whether the connection may carry another request. head: the header alone.
asio::awaitable<bool> write_response(Connection& c, HttpResponse response, bool head,
                                     unsigned version, bool keep_alive);

// Reads and drops what the client still sends, so that closing does not reset the connection
// before it has read our answer.
asio::awaitable<void> linger(Connection& c);

}  // namespace weft::net::http_server
