// ProbeDesk: how a daemon answers peers that measure the way to it, over the HTTPS server that
// gives them blobs. One of them at a time has its turn; whoever comes while it is another's, or
// while the desk is closed since its daemon works, is told "busy" at once (503).
//
//   GET    /api/v1/probe                    one round trip; takes or keeps the caller's turn
//   PUT    /api/v1/probe/train              a train of bytes (chunked); the answer says when they
//                                           came: {"arrivals": [[bytes, seconds], ...]}
//   GET    /api/v1/probe/train?bytes=N&ms=T a train of at most so many bytes, sent for at most so
//                                           long
//   DELETE /api/v1/probe                    the turn is over
//
// A train has at most kMaxTrainBytes and kMaxTrainS, whatever was asked for, and is not kept:
// memory is a chunk and the log of arrivals. A turn ends kIdleTurnS after its last request and
// kMaxTurnS after its first. Who the caller is and whether it may ask is the daemon's business.
//
// open(), close() and in_use(): any thread. The rest: the server's thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "net/http/http.h"

namespace weft::net {

class ProbeDesk {
 public:
  static constexpr uint64_t kMaxTrainBytes = uint64_t{64} << 20;
  static constexpr double kMaxTrainS = 10, kIdleTurnS = 3, kMaxTurnS = 30;

  explicit ProbeDesk(std::function<double()> seconds = monotonic_seconds)
      : seconds_(std::move(seconds)) {}

  // Closed at first. A train under way ends when the desk is closed.
  void open() { open_ = true; }
  void close() { open_ = false; }
  // Somebody measures, or did a moment ago.
  bool in_use() const { return seconds_() < turn_until_s_; }

  // Whether the request is one for the desk; then it was answered.
  bool serve(const HttpRequest& request, const std::string& peer, const HttpReply& reply);
  // Who takes the train that the request brings; nullptr: it brings none.
  std::unique_ptr<HttpUpload> upload(const HttpRequest& request, const std::string& peer);

 private:
  // Takes or keeps the turn; false: busy.
  bool turn(const std::string& peer);
  HttpResponse send_train(const HttpRequest& request, const std::string& peer);

  std::function<double()> seconds_;
  std::atomic<bool> open_ = false;
  std::atomic<double> turn_until_s_ = -1;
  std::string peer_;  // whose turn it is, or was
  double turn_since_s_ = 0;
};

// What a desk that is busy answers.
HttpResponse busy_response();

}  // namespace weft::net
