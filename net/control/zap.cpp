#include "net/control/zap.h"

#include "base/log.h"

namespace weft::net {
namespace {

// version, request id, domain, address, identity, mechanism, key (32 bytes)
constexpr size_t kParts = 7;
constexpr size_t kKeyBytes = 32;

std::string key_of(const ZmqFrames& request) {
  if (request.parts.size() != kParts || request.parts[5] != "CURVE" ||
      request.parts[6].size() != kKeyBytes) {
    return {};
  }
  char text[41] = {};
  const auto* raw = reinterpret_cast<const uint8_t*>(request.parts[6].data());
  return zmq_z85_encode(text, raw, kKeyBytes) != nullptr ? text : std::string();
}

}  // namespace

ZapHandler::ZapHandler(ZmqContext& context, Allowed allowed)
    : socket_(context, ZMQ_REP), allowed_(std::move(allowed)) {
  socket_.set(ZMQ_LINGER, 0);
}

Status ZapHandler::bind() {
  return socket_.bind("inproc://zeromq.zap.01");
}

void ZapHandler::answer() {
  while (socket_.readable()) {
    const ZmqFrames request = socket_.receive(kParts);
    const std::string key = key_of(request);
    const bool good = !key.empty() && allowed_(key);
    if (!good) log_debug("control connection refused: key {} is not listed", key);
    const std::string id = request.parts.size() > 1 ? request.parts[1] : std::string();
    socket_.send(
        {"1.0", id, good ? "200" : "400", good ? "OK" : "not listed", good ? key : "", ""});
  }
}

}  // namespace weft::net
