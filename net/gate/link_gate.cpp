#include "net/gate/link_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio.hpp>
#include <cmath>
#include <deque>
#include <set>
#include <thread>
#include <vector>

#include "base/os/signals.h"
#include "base/rng.h"

// g++ 12 takes Asio's coroutine frame allocation for a mismatch with its own deallocation.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace weft::net {
namespace {

namespace asio = boost::asio;
using asio::as_tuple;
using asio::use_awaitable;
using asio::ip::tcp;
using Time = std::chrono::steady_clock::time_point;

constexpr size_t kReadBytes = 16 * 1024;
constexpr size_t kMinQueueBytes = 64 * 1024;
constexpr auto kStallPoll = std::chrono::milliseconds(5);

std::chrono::nanoseconds from_ms(double ms) {
  return std::chrono::nanoseconds(static_cast<int64_t>(ms * 1e6));
}

struct Piece {
  Time due;
  std::vector<std::byte> bytes;
};

// One direction of one proxied connection.
struct Lane {
  Lane(asio::io_context& io) : changed(io, Time::max()) {}
  std::deque<Piece> queue;
  size_t queued_bytes = 0;
  asio::steady_timer changed;
  Time link_free{}, last_due{};
  bool ended = false;
};

struct Pipe {
  Pipe(asio::io_context& io, Rng seed) : client(io), target(io), forward(io), back(io), rng(seed) {}
  void close() {
    boost::system::error_code ignored;
    // A reset, as a broken link or a rebooted router would give.
    client.set_option(asio::socket_base::linger(true, 0), ignored);
    target.set_option(asio::socket_base::linger(true, 0), ignored);
    client.close(ignored);
    target.close(ignored);
    for (Lane* lane : {&forward, &back}) {
      lane->ended = true;
      lane->changed.cancel();
    }
  }
  tcp::socket client, target;
  Lane forward, back;
  Rng rng;
  double break_in = 0;  // bytes until it breaks; 0: never
};
using PipePtr = std::shared_ptr<Pipe>;

class LinkGateImpl final : public LinkGate {
 public:
  explicit LinkGateImpl(const LinkGateOptions& options)
      : options_(options), rng_(options.seed), acceptor_(io_) {
    const double in_flight =
        options.bandwidth_mbit_s * 125 * (options.latency_ms + options.jitter_ms);
    queue_limit_ = std::max(kMinQueueBytes, static_cast<size_t>(2 * in_flight));
  }
  ~LinkGateImpl() override {
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }

  Status open();
  uint16_t port() const override { return port_; }
  void cut() override {
    asio::post(io_, [this] { cut_all(); });
  }
  void cut_after(int64_t bytes) override { cut_after_ = bytes; }
  void stall(bool on) override { stalled_ = on; }
  void corrupt_next() override { corrupt_ = true; }
  LinkGateStats stats() const override {
    return {connections_, cuts_, bytes_forward_, bytes_back_};
  }

 private:
  template <typename T>
  using Task = asio::awaitable<T>;

  Task<void> accept_loop();
  Task<void> run(PipePtr pipe);
  Task<void> read_side(PipePtr pipe, bool forward);
  Task<void> write_side(PipePtr pipe, bool forward);
  void schedule(Pipe& pipe, Lane& lane, std::vector<std::byte> bytes);
  bool must_break(Pipe& pipe, size_t bytes);
  void cut_all();
  void spawn(Task<void> task) {
    asio::co_spawn(io_, std::move(task), [](std::exception_ptr) {});
  }

  const LinkGateOptions options_;
  Rng rng_;
  size_t queue_limit_ = 0;
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  std::set<PipePtr> pipes_;
  uint16_t port_ = 0;
  std::atomic<bool> stalled_ = false, corrupt_ = false;
  std::atomic<int64_t> cut_after_ = 0, connections_ = 0, cuts_ = 0, bytes_forward_ = 0,
                       bytes_back_ = 0;
  std::thread thread_;
};

Status LinkGateImpl::open() {
  boost::system::error_code ec;
  const tcp::endpoint any(asio::ip::address_v4::loopback(), 0);
  acceptor_.open(any.protocol(), ec);
  if (!ec) acceptor_.bind(any, ec);
  if (!ec) acceptor_.listen(64, ec);
  if (ec)
    return make_error(Code::kIo, fmt::format("the link gate cannot listen: {}", ec.message()));
  port_ = acceptor_.local_endpoint(ec).port();
  spawn(accept_loop());
  thread_ = std::thread([this] {
    os::name_thread("weft-gate");
    io_.run();
  });
  return {};
}

LinkGateImpl::Task<void> LinkGateImpl::accept_loop() {
  for (;;) {
    auto pipe = std::make_shared<Pipe>(io_, Rng(rng_.next()));
    const auto [ec] = co_await acceptor_.async_accept(pipe->client, as_tuple(use_awaitable));
    if (ec) co_return;
    ++connections_;
    pipes_.insert(pipe);
    spawn(run(pipe));
  }
}

LinkGateImpl::Task<void> LinkGateImpl::run(PipePtr pipe) {
  if (options_.break_every_bytes > 0) {
    pipe->break_in = -std::log(1 - pipe->rng.uniform()) * options_.break_every_bytes + 1;
  }
  boost::system::error_code ec;
  const auto host = asio::ip::make_address(options_.target_host, ec);
  if (!ec) {
    std::tie(ec) =
        co_await pipe->target.async_connect({host, options_.target_port}, as_tuple(use_awaitable));
  }
  if (ec) {
    pipe->close();
    pipes_.erase(pipe);
    co_return;
  }
  pipe->client.set_option(tcp::no_delay(true), ec);
  pipe->target.set_option(tcp::no_delay(true), ec);
  for (bool forward : {true, false}) {
    spawn(read_side(pipe, forward));
    spawn(write_side(pipe, forward));
  }
}

// Departure behind what already waits on the link, then latency; never before an earlier piece.
void LinkGateImpl::schedule(Pipe& pipe, Lane& lane, std::vector<std::byte> bytes) {
  const Time now = std::chrono::steady_clock::now();
  Time sent = std::max(now, lane.link_free);
  if (options_.bandwidth_mbit_s > 0) {
    sent += from_ms(static_cast<double>(bytes.size()) * 8e-3 / options_.bandwidth_mbit_s);
    lane.link_free = sent;
  }
  const double delay_ms = options_.latency_ms + options_.jitter_ms * pipe.rng.uniform();
  lane.last_due = std::max(lane.last_due, sent + from_ms(delay_ms));
  lane.queued_bytes += bytes.size();
  lane.queue.push_back({lane.last_due, std::move(bytes)});
  lane.changed.cancel();
}

bool LinkGateImpl::must_break(Pipe& pipe, size_t bytes) {
  const auto count = static_cast<int64_t>(bytes);
  if (cut_after_ > 0 && (cut_after_ -= count) <= 0) {
    cut_after_ = 0;
    return true;
  }
  if (pipe.break_in <= 0) return false;
  pipe.break_in -= static_cast<double>(bytes);
  return pipe.break_in <= 0;
}

LinkGateImpl::Task<void> LinkGateImpl::read_side(PipePtr pipe, bool forward) {
  tcp::socket& from = forward ? pipe->client : pipe->target;
  Lane& lane = forward ? pipe->forward : pipe->back;
  while (!lane.ended) {
    while (lane.queued_bytes > queue_limit_ && !lane.ended) {
      co_await lane.changed.async_wait(as_tuple(use_awaitable));
    }
    std::vector<std::byte> bytes(kReadBytes);
    const auto [ec, count] =
        co_await from.async_read_some(asio::buffer(bytes), as_tuple(use_awaitable));
    if (ec) break;
    bytes.resize(count);
    schedule(*pipe, lane, std::move(bytes));
  }
  lane.ended = true;
  lane.changed.cancel();
}

LinkGateImpl::Task<void> LinkGateImpl::write_side(PipePtr pipe, bool forward) {
  tcp::socket& to = forward ? pipe->target : pipe->client;
  Lane& lane = forward ? pipe->forward : pipe->back;
  asio::steady_timer timer(io_);
  for (;;) {
    while (lane.queue.empty() && !lane.ended) {
      co_await lane.changed.async_wait(as_tuple(use_awaitable));
    }
    if (lane.queue.empty()) break;
    timer.expires_at(lane.queue.front().due);
    co_await timer.async_wait(as_tuple(use_awaitable));
    while (stalled_ && pipe->client.is_open()) {
      timer.expires_after(kStallPoll);
      co_await timer.async_wait(as_tuple(use_awaitable));
    }
    if (lane.queue.empty()) break;  // cut meanwhile
    Piece piece = std::move(lane.queue.front());
    lane.queue.pop_front();
    if (corrupt_.exchange(false)) {
      piece.bytes[pipe->rng.below(piece.bytes.size())] ^= std::byte{0x10};
    }
    const auto [ec, count] =
        co_await asio::async_write(to, asio::buffer(piece.bytes), as_tuple(use_awaitable));
    lane.queued_bytes -= piece.bytes.size();
    lane.changed.cancel();
    (forward ? bytes_forward_ : bytes_back_) += static_cast<int64_t>(count);
    const bool breaks = !ec && must_break(*pipe, count);
    if (breaks) ++cuts_;
    if (ec || breaks) {
      pipe->close();
      break;
    }
  }
  boost::system::error_code ignored;
  to.shutdown(tcp::socket::shutdown_send, ignored);
  if (pipe->forward.ended && pipe->back.ended) pipes_.erase(pipe);
}

void LinkGateImpl::cut_all() {
  for (const PipePtr& pipe : std::exchange(pipes_, {})) {
    ++cuts_;
    pipe->close();
    pipe->forward.queue.clear();
    pipe->back.queue.clear();
  }
}

}  // namespace

Result<std::unique_ptr<LinkGate>> LinkGate::start(const LinkGateOptions& options) {
  auto gate = std::make_unique<LinkGateImpl>(options);
  WEFT_TRY_STATUS(gate->open());
  return std::unique_ptr<LinkGate>(std::move(gate));
}

}  // namespace weft::net
