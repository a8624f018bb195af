#include <fmt/format.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/os/signals.h"
#include "base/rng.h"
#include "net/codec/parse.h"
#include "net/control/control.h"
#include "net/control/inbox.h"
#include "net/control/outbox.h"
#include "net/control/socket.h"

namespace weft::net {
namespace {

namespace asio = boost::asio;

constexpr auto kTick = std::chrono::milliseconds(100);
constexpr int kBatch = 256;
constexpr int64_t kMaxRebuild_ms = 30000;

class Client final : public ControlClient {
 public:
  Client(const ControlClientOptions& options, OnMessage on_message)
      : options_(options),
        on_message_(std::move(on_message)),
        context_(16),
        tick_(io_),
        session_(random_session()),
        rng_(session_),
        out_(session_),
        heard_ms_(clock_.monotonic_ms()),
        rebuild_ms_(options.rebuild_after_ms) {}
  ~Client() override { stop(); }

  Status open();
  void run() {
    thread_ = std::thread([this] {
      os::name_thread("weft-control");
      io_.run();
    });
  }

  void send(proto::PeerMessage message, int32_t ttl_ms) override {
    asio::post(io_, [this, message = std::move(message), ttl_ms]() mutable {
      do_send(std::move(message), ttl_ms);
    });
  }
  int64_t ms_since_broker_heard() const override {
    return clock_.monotonic_ms() - heard_ms_.load(std::memory_order_relaxed);
  }
  void stop() override {
    if (!thread_.joinable()) return;
    asio::post(io_, [this] { io_.stop(); });
    thread_.join();
    ready_.reset();
    socket_.reset();
  }

 private:
  void do_send(proto::PeerMessage message, int32_t ttl_ms);
  void receive();
  void take(const std::string& bytes);
  void acknowledge(const proto::BrokerMessage& message);
  bool transmit(const proto::PeerMessage& message);
  void pump();
  void heard();
  void expect_answer();
  void rebuild_if_silent();
  void arm_tick();

  ControlClientOptions options_;
  OnMessage on_message_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  ZmqContext context_;
  std::unique_ptr<ZmqSocket> socket_;
  std::unique_ptr<ZmqReadiness> ready_;
  asio::steady_timer tick_;
  bool tick_armed_ = false;
  SystemClock clock_;
  const uint64_t session_;
  Rng rng_;  // spreads the reconnects of many peers over time
  Outbox<proto::PeerMessage> out_;
  Inbox in_;
  std::atomic<int64_t> heard_ms_;
  std::optional<int64_t> waiting_since_ms_;  // something was sent and nothing heard since
  int64_t rebuild_ms_;
  std::thread thread_;
};

// Also from the thread, to replace a connection.
Status Client::open() {
  ready_.reset();
  socket_ = std::make_unique<ZmqSocket>(context_, ZMQ_DEALER);
  ZmqSocket& socket = *socket_;
  socket.set_common();
  socket.set(ZMQ_IPV6, options_.host.find(':') != std::string::npos ? 1 : 0);
  socket.set(ZMQ_IMMEDIATE, 1);  // nothing queues up for a broker that is not there
  socket.set(ZMQ_HANDSHAKE_IVL, 5000);
  socket.set(ZMQ_CONNECT_TIMEOUT, 5000);
  socket.set(ZMQ_RECONNECT_IVL, 100);
  socket.set(ZMQ_RECONNECT_IVL_MAX, options_.reconnect_max_ms);
  socket.set(ZMQ_CURVE_SERVERKEY, options_.server_key_z85);
  socket.set(ZMQ_CURVE_PUBLICKEY, options_.keys.public_z85);
  socket.set(ZMQ_CURVE_SECRETKEY, options_.keys.secret_z85);
  WEFT_TRY_STATUS(socket.connect(zmq_endpoint(options_.host, options_.port)));
  ready_ = std::make_unique<ZmqReadiness>(io_, socket.fd(), [this] { receive(); });
  ready_->poke();
  return {};
}

void Client::do_send(proto::PeerMessage message, int32_t ttl_ms) {
  if (message.body_case() == proto::PeerMessage::kHeartbeat) {
    message.set_id(0);
    message.set_session(session_);
    transmit(message);
    expect_answer();
    return;
  }
  if (const size_t bytes = message.ByteSizeLong(); bytes > kMaxControlBytes) {
    log_error("control: a message of {} bytes is over the limit of {}", bytes, kMaxControlBytes);
    return;
  }
  if (!out_.push(std::move(message), clock_.monotonic_ms(), ttl_ms)) {
    log_warning("control: the queue to the broker is full, a message is dropped");
    return;
  }
  pump();
}

void Client::receive() {
  for (int i = 0; i < kBatch; ++i) {
    if (!socket_->readable()) return;
    const ZmqFrames frames = socket_->receive(1);
    if (frames.parts.size() == 1) take(frames.parts[0]);
  }
  ready_->poke();
}

void Client::take(const std::string& bytes) {
  using Body = proto::BrokerMessage;
  proto::BrokerMessage message;
  if (!parse_message(bytes, message)) return;
  heard();
  if (message.body_case() == Body::kHeartbeatAck) return;
  if (message.body_case() == Body::kAck) {
    out_.acknowledge(message.ack_session(), message.ack(), clock_.monotonic_ms());
    pump();
    return;
  }
  if (message.id() == 0) return;
  const Admission admission = in_.check(message.session(), message.id(), message.previous());
  if (admission == Admission::kEarly) return;
  if (admission == Admission::kNew && message.body_case() != Body::BODY_NOT_SET) {
    try {
      on_message_(message);
    } catch (const std::exception& error) {
      log_error("control: handling a message of the broker threw: {}", error.what());
    }
  }
  acknowledge(message);
}

void Client::acknowledge(const proto::BrokerMessage& message) {
  proto::PeerMessage answer;
  answer.set_session(session_);
  answer.set_ack(message.id());
  answer.set_ack_session(message.session());
  transmit(answer);
}

bool Client::transmit(const proto::PeerMessage& message) {
  const int error = socket_->send({message.SerializeAsString()});
  if (ready_) ready_->poke();
  return error == 0;
}

void Client::pump() {
  const size_t expired =
      out_.pump(clock_.monotonic_ms(), [&](const proto::PeerMessage& m) { return transmit(m); });
  if (expired > 0) log_warning("control: {} messages to the broker ran out of time", expired);
  if (!out_.empty()) expect_answer();
}

void Client::heard() {
  heard_ms_.store(clock_.monotonic_ms(), std::memory_order_relaxed);
  waiting_since_ms_.reset();
  rebuild_ms_ = options_.rebuild_after_ms;
}

void Client::expect_answer() {
  if (!waiting_since_ms_) waiting_since_ms_ = clock_.monotonic_ms();
  arm_tick();
}

void Client::rebuild_if_silent() {
  const int64_t now_ms = clock_.monotonic_ms();
  if (!waiting_since_ms_ || now_ms - *waiting_since_ms_ < rebuild_ms_) return;
  log_info("control: the broker at {}:{} is silent for {} ms, connecting anew", options_.host,
           options_.port, ms_since_broker_heard());
  if (Status status = open(); !status.ok()) log_error("control: {}", status.error().text());
  out_.link_renewed();
  waiting_since_ms_ = now_ms;
  // From 0.75 to 1.25 of twice the time before.
  const int64_t doubled = std::min(rebuild_ms_ * 2, kMaxRebuild_ms);
  rebuild_ms_ = doubled * 3 / 4 + int64_t(rng_.below(uint64_t(doubled / 2 + 1)));
}

void Client::arm_tick() {
  if (tick_armed_) return;
  tick_armed_ = true;
  tick_.expires_after(kTick);
  tick_.async_wait([this](const boost::system::error_code& ec) {
    tick_armed_ = false;
    if (ec) return;
    rebuild_if_silent();
    pump();
    if (waiting_since_ms_) arm_tick();
  });
}

}  // namespace

Result<std::unique_ptr<ControlClient>> ControlClient::start(const ControlClientOptions& options,
                                                            OnMessage on_message) {
  if (!on_message) return make_error(Code::kInternal, "a control client needs a callback");
  if (options.port == 0) return make_error(Code::kInvalid, "the broker's control port is not set");
  auto client = std::make_unique<Client>(options, std::move(on_message));
  if (Status status = client->open(); !status.ok()) {
    return std::move(status).error().within("control connection");
  }
  client->run();
  return std::unique_ptr<ControlClient>(std::move(client));
}

}  // namespace weft::net
