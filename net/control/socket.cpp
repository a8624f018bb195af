#include "net/control/socket.h"

#include <fmt/format.h>
#include <openssl/rand.h>

#include <boost/asio/post.hpp>
#include <cerrno>

#include "base/check.h"
#include "net/control/control.h"

// libzmq passes a message from its thread to ours through queues whose order ThreadSanitizer cannot
// see from outside the library. Where its bytes are copied out, reads, and nothing else, go
// unwatched.
#if defined(__SANITIZE_THREAD__)
#define WEFT_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WEFT_TSAN 1
#endif
#endif
#ifdef WEFT_TSAN
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
#endif

namespace weft::net {

namespace asio = boost::asio;

namespace {

class UnwatchedReads {
 public:
#ifdef WEFT_TSAN
  UnwatchedReads() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  }
  ~UnwatchedReads() {
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  UnwatchedReads() {}  // not trivial: an object without use is meant
#endif
  UnwatchedReads(const UnwatchedReads&) = delete;
  UnwatchedReads& operator=(const UnwatchedReads&) = delete;
};

}  // namespace

ZmqContext::ZmqContext(int max_sockets) : context_(zmq_ctx_new()) {
  WEFT_CHECK(context_ != nullptr);
  zmq_ctx_set(context_, ZMQ_IO_THREADS, 1);
  zmq_ctx_set(context_, ZMQ_MAX_SOCKETS, max_sockets);
  zmq_ctx_set(context_, ZMQ_BLOCKY, 0);
}

void ZmqSocket::set(int option, int value) {
  if (zmq_setsockopt(socket_, option, &value, sizeof value) != 0 && failure_.empty()) {
    failure_ = fmt::format("option {}: {}", option, zmq_strerror(errno));
  }
}

void ZmqSocket::set(int option, const std::string& value) {
  if (zmq_setsockopt(socket_, option, value.data(), value.size()) != 0 && failure_.empty()) {
    failure_ = fmt::format("option {}: {}", option, zmq_strerror(errno));
  }
}

void ZmqSocket::set_limit(int option, int64_t value) {
  zmq_setsockopt(socket_, option, &value, sizeof value);
}

void ZmqSocket::set_common() {
  set_limit(ZMQ_MAXMSGSIZE, int64_t(kMaxControlBytes) + 1024);  // encryption adds a little
  set(ZMQ_LINGER, 0);
  set(ZMQ_SNDHWM, 1000);
  set(ZMQ_RCVHWM, 1000);
  set(ZMQ_TCP_KEEPALIVE, 1);
  set(ZMQ_TCP_KEEPALIVE_IDLE, 30);
  set(ZMQ_TCP_KEEPALIVE_INTVL, 10);
  set(ZMQ_TCP_KEEPALIVE_CNT, 3);
  set(ZMQ_TCP_MAXRT, 15000);  // else a dead link holds its connection for a quarter of an hour
}

Status ZmqSocket::bind(const std::string& endpoint) {
  if (socket_ == nullptr) return make_error(Code::kInternal, "no ZeroMQ socket left");
  if (!failure_.empty()) return make_error(Code::kInvalid, "ZeroMQ refused " + failure_);
  if (zmq_bind(socket_, endpoint.c_str()) == 0) return {};
  return make_error(Code::kUnavailable,
                    fmt::format("cannot listen on {}: {}", endpoint, zmq_strerror(errno)),
                    "choose another address or port, or end the program that holds it");
}

Status ZmqSocket::connect(const std::string& endpoint) {
  if (socket_ == nullptr) return make_error(Code::kInternal, "no ZeroMQ socket left");
  if (!failure_.empty()) return make_error(Code::kInvalid, "ZeroMQ refused " + failure_);
  if (zmq_connect(socket_, endpoint.c_str()) == 0) return {};
  return make_error(Code::kInvalid,
                    fmt::format("cannot connect to {}: {}", endpoint, zmq_strerror(errno)));
}

bool ZmqSocket::readable() const {
  int events = 0;
  size_t size = sizeof events;
  return zmq_getsockopt(socket_, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN) != 0;
}

ZmqFrames ZmqSocket::receive(size_t max_parts) {
  ZmqFrames out;
  bool more = true, fits = true;
  while (more) {
    zmq_msg_t part;
    zmq_msg_init(&part);
    if (zmq_msg_recv(&part, socket_, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&part);
      break;
    }
    if (out.parts.size() < max_parts) {
      const UnwatchedReads of_the_message;
      out.parts.emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
      if (const char* user = zmq_msg_gets(&part, "User-Id")) out.user_id = user;
    } else {
      fits = false;
    }
    more = zmq_msg_more(&part) != 0;
    zmq_msg_close(&part);
  }
  if (!fits) out.parts.clear();
  return out;
}

int ZmqSocket::send(const std::vector<std::string>& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const int flags = ZMQ_DONTWAIT | (i + 1 < parts.size() ? ZMQ_SNDMORE : 0);
    if (zmq_send(socket_, parts[i].data(), parts[i].size(), flags) < 0) return errno;
  }
  return 0;
}

std::string ZmqSocket::text_option(int option) const {
  char text[512] = {};
  size_t size = sizeof text - 1;
  return zmq_getsockopt(socket_, option, text, &size) == 0 ? std::string(text) : std::string();
}

int ZmqSocket::fd() const {
  int fd = -1;
  size_t size = sizeof fd;
  zmq_getsockopt(socket_, ZMQ_FD, &fd, &size);
  return fd;
}

void ZmqSocket::close() {
  if (socket_ != nullptr) zmq_close(socket_);
  socket_ = nullptr;
}

// Shared with the operation under way, which may complete after the owner has gone.
struct ZmqReadiness::State : std::enable_shared_from_this<State> {
  State(asio::io_context& i, int fd, std::function<void()> f)
      : io(i), descriptor(i, fd), on_ready(std::move(f)) {}

  void watch() {
    descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                          [self = shared_from_this()](const boost::system::error_code& ec) {
                            if (ec || self->ended) return;
                            self->on_ready();
                            if (!self->ended) self->watch();
                          });
  }
  void poke() {
    if (poked) return;
    poked = true;
    asio::post(io, [self = shared_from_this()] {
      self->poked = false;
      if (!self->ended) self->on_ready();
    });
  }

  asio::io_context& io;
  asio::posix::stream_descriptor descriptor;
  std::function<void()> on_ready;
  bool poked = false, ended = false;
};

ZmqReadiness::ZmqReadiness(asio::io_context& io, int fd, std::function<void()> on_ready)
    : state_(std::make_shared<State>(io, fd, std::move(on_ready))) {
  state_->watch();
}

ZmqReadiness::~ZmqReadiness() {
  state_->ended = true;
  state_->descriptor.release();  // the descriptor belongs to libzmq
}

void ZmqReadiness::poke() {
  state_->poke();
}

std::string zmq_endpoint(const std::string& host, uint16_t port) {
  const bool six = host.find(':') != std::string::npos;
  const std::string name = host == "localhost" ? "127.0.0.1" : host;
  return fmt::format("tcp://{}{}{}:{}", six ? "[" : "", name, six ? "]" : "",
                     port == 0 ? "*" : std::to_string(port));
}

uint64_t random_session() {
  uint64_t session = 0;
  while (session == 0) {
    const int good = RAND_bytes(reinterpret_cast<unsigned char*>(&session), sizeof session);
    WEFT_CHECK(good == 1);
  }
  return session;
}

}  // namespace weft::net
