// The ZAP handler (ZeroMQ RFC 27) of a control server: which CURVE keys get through. It tells
// libzmq the key as User-Id, which every later message of the connection then carries. Private.
#pragma once

#include <functional>

#include "net/control/socket.h"

namespace weft::net {

class ZapHandler {
 public:
  using Allowed = std::function<bool(const std::string& public_z85)>;
  ZapHandler(ZmqContext& context, Allowed allowed);
  // Before the sockets it guards: without a handler libzmq lets every key in.
  Status bind();
  int fd() const { return socket_.fd(); }
  // Answers every waiting question.
  void answer();

 private:
  ZmqSocket socket_;
  Allowed allowed_;
};

}  // namespace weft::net
