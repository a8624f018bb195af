// The control plane: small protobuf messages between the broker (ROUTER) and its peers (DEALER),
// CURVE on every connection. Requests carry ids, are acknowledged, retried until a deadline and
// handled once: ROUTER drops silently, so a send that "succeeded" proves nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "net/identity/authority.h"
#include "net/proto/control.pb.h"

namespace weft::net {

// Larger messages are refused by the sender and end the connection at the receiver: big content
// travels as blobs.
inline constexpr size_t kMaxControlBytes = size_t{4} << 20;

// ---- broker side -----------------------------------------------------------------------------
struct ControlServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any
  CurveKeys keys;
  int32_t handshake_ms = 3000;
  int32_t max_peers = 10000;
};

// Owns one thread ("weft-control"); callbacks run on it. Only listed keys get through the ZAP
// handler; a message's peer is the one its key was listed for, whatever the message says.
// Messages of one sender reach the callback in the order sent and each once, as long as both
// programs live; a message is acknowledged when the callback has returned.
class ControlServer {
 public:
  using OnMessage = std::function<void(const std::string& peer, const proto::PeerMessage&)>;
  static Result<std::unique_ptr<ControlServer>> start(const ControlServerOptions& options,
                                                      OnMessage on_message);
  virtual ~ControlServer() = default;
  virtual uint16_t port() const = 0;
  virtual void allow(const std::string& public_z85, const std::string& peer) = 0;  // any thread
  virtual void revoke(const std::string& public_z85) = 0;  // later messages are dropped too
  // Queues a message: retried until the peer acknowledges or ttl_ms passes. Any thread.
  virtual void send(const std::string& peer, proto::BrokerMessage message, int32_t ttl_ms) = 0;
  virtual void stop() = 0;
};

// ---- peer side -------------------------------------------------------------------------------
struct ControlClientOptions {
  std::string host;
  uint16_t port = 0;
  std::string server_key_z85;
  CurveKeys keys;
  int32_t reconnect_max_ms = 5000;
  // A broker that leaves messages unanswered this long gets a fresh connection (twice as long after
  // each failure): libzmq itself never tries again once its key was refused, and a peer may be
  // listed late.
  int32_t rebuild_after_ms = 5000;
};

// Owns one thread ("weft-control"); callbacks run on it.
class ControlClient {
 public:
  using OnMessage = std::function<void(const proto::BrokerMessage&)>;
  static Result<std::unique_ptr<ControlClient>> start(const ControlClientOptions& options,
                                                      OnMessage on_message);
  virtual ~ControlClient() = default;
  // Queues a message: retried until the broker acknowledges or ttl_ms passes. A heartbeat is sent
  // once and dropped if there is no connection. Any thread.
  virtual void send(proto::PeerMessage message, int32_t ttl_ms) = 0;
  // Since start, as long as it was never heard. Heartbeats are answered, so it stays below their
  // interval. Any thread.
  virtual int64_t ms_since_broker_heard() const = 0;
  virtual void stop() = 0;
};

}  // namespace weft::net
