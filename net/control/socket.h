// A ZeroMQ context and socket with owners, and a socket's readiness as an Asio event. One thread at
// a time. Private to net/control.
#pragma once

#include <zmq.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace weft::net {

// Ends when its sockets are closed; every server and client has its own.
class ZmqContext {
 public:
  explicit ZmqContext(int max_sockets);
  ~ZmqContext() { zmq_ctx_term(context_); }
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* get() const { return context_; }

 private:
  void* context_;
};

// One message as it arrived. user_id: what the ZAP handler said of its sender.
struct ZmqFrames {
  std::vector<std::string> parts;
  std::string user_id;
};

class ZmqSocket {
 public:
  ZmqSocket(ZmqContext& context, int type) : socket_(zmq_socket(context.get(), type)) {}
  ~ZmqSocket() { close(); }
  ZmqSocket(const ZmqSocket&) = delete;
  ZmqSocket& operator=(const ZmqSocket&) = delete;

  // Options gather their first error, for bind and connect to report.
  void set(int option, int value);
  void set(int option, const std::string& value);
  void set_limit(int option, int64_t value);
  // Options every control connection has: size cap, queue bounds, keepalive, no lingering.
  void set_common();
  Status bind(const std::string& endpoint);
  Status connect(const std::string& endpoint);

  bool readable() const;
  // At most max_parts are kept, more parts make an empty message.
  ZmqFrames receive(size_t max_parts);
  // 0, or the errno of the first part; a message goes whole or not at all.
  int send(const std::vector<std::string>& parts);
  std::string text_option(int option) const;
  int fd() const;
  void close();

 private:
  void* socket_;
  std::string failure_;
};

// Calls back whenever a socket may have become readable. libzmq's descriptor is edge-triggered and
// a send may swallow the edge: after sending, call poke().
class ZmqReadiness {
 public:
  ZmqReadiness(boost::asio::io_context& io, int fd, std::function<void()> on_ready);
  ~ZmqReadiness();
  void poke();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

std::string zmq_endpoint(const std::string& host, uint16_t port);
uint64_t random_session();

}  // namespace weft::net
