#include "net/probe/probe_desk.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "net/probe/arrivals.h"

namespace weft::net {
namespace {

constexpr std::string_view kPath = "/api/v1/probe", kTrainPath = "/api/v1/probe/train";

std::optional<uint64_t> query_number(const HttpRequest& request, const char* name) {
  const auto found = request.query.find(name);
  if (found == request.query.end()) return std::nullopt;
  const std::string& text = found->second;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

HttpResponse method_response(const HttpRequest& request, const char* allowed) {
  HttpResponse response = problem_response(make_error(
      Code::kInvalid, fmt::format("{} is no method of {}", request.method, request.path)));
  response.status = 405;
  response.headers["allow"] = allowed;
  return response;
}

// A train that a peer sends us.
class TrainUpload final : public HttpUpload {
 public:
  // goes_on: asked before each piece.
  TrainUpload(std::function<bool()> goes_on, std::function<double()> seconds)
      : goes_on_(std::move(goes_on)), seconds_(std::move(seconds)), since_s_(seconds_()) {}

  bool take(size_t bytes) override {
    const double now = seconds_();
    total_ += bytes;
    busy_ = !goes_on_();
    if (busy_ || total_ > ProbeDesk::kMaxTrainBytes || now > since_s_ + ProbeDesk::kMaxTrainS) {
      return false;
    }
    if (bytes > 0) log_.note(bytes, now);
    return true;
  }
  HttpResponse end() override {
    if (busy_) return busy_response();
    HttpResponse response;
    response.body = nlohmann::json{{"arrivals", arrivals_to_json(log_.arrivals())}}.dump();
    return response;
  }

 private:
  std::function<bool()> goes_on_;
  std::function<double()> seconds_;
  double since_s_;
  uint64_t total_ = 0;
  bool busy_ = false;
  ArrivalLog log_;
};

}  // namespace

HttpResponse busy_response() {
  return problem_response(make_error(
      Code::kUnavailable, "this peer is busy: it works, or is being measured", "try again later"));
}

bool ProbeDesk::turn(const std::string& peer) {
  if (!open_) return false;
  const double now = seconds_();
  if (now >= turn_until_s_) {
    peer_ = peer;
    turn_since_s_ = now;
  }
  if (peer != peer_) return false;
  turn_until_s_ = std::min(now + kIdleTurnS, turn_since_s_ + kMaxTurnS);
  return true;
}

bool ProbeDesk::serve(const HttpRequest& request, const std::string& peer, const HttpReply& reply) {
  if (request.path == kTrainPath) {
    reply(request.method == "GET" ? send_train(request, peer)
                                  : method_response(request, "GET, PUT"));
    return true;
  }
  if (request.path != kPath) return false;
  HttpResponse done;
  if (request.method == "DELETE") {
    if (peer == peer_) turn_until_s_ = -1;
    done.status = 204;
  } else if (request.method != "GET") {
    done = method_response(request, "GET, DELETE");
  } else if (turn(peer)) {
    done.body = "{}";
  } else {
    done = busy_response();
  }
  reply(std::move(done));
  return true;
}

HttpResponse ProbeDesk::send_train(const HttpRequest& request, const std::string& peer) {
  const auto bytes = query_number(request, "bytes"), ms = query_number(request, "ms");
  if (!bytes || !ms || *bytes == 0) {
    return problem_response(
        make_error(Code::kInvalid, "bytes and ms must be whole numbers, bytes more than 0",
                   "ask for a train as GET /api/v1/probe/train?bytes=65536&ms=1000"));
  }
  if (!turn(peer)) return busy_response();
  HttpResponse response;
  response.content_type = "application/octet-stream";
  const double until_s = seconds_() + std::min(static_cast<double>(*ms) / 1e3, kMaxTrainS);
  response.source = [this, peer, until_s,
                     left = std::min(*bytes, kMaxTrainBytes)](std::span<char> room) mutable {
    if (seconds_() > until_s || !turn(peer)) return size_t{0};
    const uint64_t now = std::min<uint64_t>(left, room.size());
    left -= now;
    return static_cast<size_t>(now);
  };
  return response;
}

std::unique_ptr<HttpUpload> ProbeDesk::upload(const HttpRequest& request, const std::string& peer) {
  if (request.path != kTrainPath || request.method != "PUT") return nullptr;
  return std::make_unique<TrainUpload>([this, peer] { return turn(peer); }, seconds_);
}

}  // namespace weft::net
