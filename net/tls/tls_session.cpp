// One connection: TLS handshake, identity, hello, and what arrives then.
#include <fmt/format.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>

#include "base/clock.h"
#include "base/log.h"
#include "base/os/net.h"
#include "net/certificate/certificate.h"
#include "net/tls/tls_core.h"

// g++ 12 takes Asio's coroutine frame allocation for a mismatch with its own deallocation.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace weft::net {
namespace {

using asio::as_tuple;
using asio::use_awaitable;

constexpr size_t kMaxFrameBytes = kPrefixBytes + kMaxHeaderBytes + kMaxHelloBytes;
static_assert(kMaxFrameBytes < TlsStream::kMaxArrived, "a frame must fit into what a stream holds");
constexpr int64_t kLingerMs = 500;
constexpr int32_t kMaxViolations = 8;
// Answers not yet written: beyond every credit, so only a sender that repeats and never reads.
constexpr size_t kMaxControl = 1 << 16;

// Of this process's own clock: how long the machine runs is nobody's business.
int64_t now_us() {
  static const double origin = monotonic_seconds();
  return static_cast<int64_t>(1e6 * (monotonic_seconds() - origin));
}

std::string peer_text(const CertificateInfo& c) {
  return fmt::format("peer {} with stage {} of job {}, epoch {}", c.subject, c.stage, c.job,
                     c.epoch);
}

Error io_error(const boost::system::error_code& ec, const std::string& what) {
  if (is_certificate_error(ec)) {
    return make_error(Code::kDenied, fmt::format("{}: {}", what, ec.message()),
                      "both sides need certificates of the same cluster");
  }
  return make_error(Code::kUnavailable, fmt::format("{}: {}", what, ec.message()));
}

}  // namespace

void Connection::close() {
  if (closed) return;
  closed = true;
  boost::system::error_code ignored;
  socket().close(ignored);
  wake.cancel();
}

void Connection::push_control(Frame frame) {
  control.push_back(std::move(frame));
  wake.cancel();
}

Task<Status> TlsCore::secure(ConnectionPtr connection, bool server, Link* expected) {
  const auto ec = co_await connection->stream.handshake(server);
  if (ec) co_return io_error(ec, "the TLS handshake failed");
  auto link = check_certificate(*connection, expected);
  if (!link.ok()) {
    co_return co_await refuse(connection, GoodbyeReason::kDenied, std::move(link).error());
  }
  connection->link = link.value();
  co_return Status();
}

Result<Link*> TlsCore::check_certificate(Connection& connection, const Link* expected) {
  X509* certificate = SSL_get1_peer_certificate(connection.stream.native_handle());
  if (!certificate) return make_error(Code::kDenied, "the other side has no certificate");
  auto info = read_worker_certificate(certificate);
  X509_free(certificate);
  if (!info.ok()) return std::move(info).error();
  const auto deny = [&](const std::string& why) {
    return make_error(
        Code::kDenied,
        fmt::format("{} may not link to stage {}: {}", peer_text(*info), options_.stage, why),
        "a data link exists only between stages that share an edge of the plan");
  };
  if (info->job != options_.job) return deny("this is job " + options_.job);
  if (info->epoch != options_.epoch) {
    return deny(fmt::format("the plan is at epoch {}", options_.epoch));
  }
  const auto it = links_.find(info->stage);
  if (it == links_.end()) return deny("the plan has no edge between them");
  if (it->second->peer != info->subject) return deny("the plan gives that stage to another peer");
  if (expected && expected->stage != info->stage) {
    return deny(fmt::format("stage {} was dialled", expected->stage));
  }
  return it->second.get();
}

Task<Status> TlsCore::refuse(ConnectionPtr connection, GoodbyeReason reason, Error error) {
  ++refused_;
  if (refused_ <= 20 || refused_ % 100 == 0) {
    log_warning("data link refused ({} so far): {}", refused_, error.message);
  }
  std::vector<std::byte> out;
  encode_frame(GoodbyeFrame{reason, error.message}, {}, out);
  connection->deadline_ms = now_ms() + kLingerMs;
  const auto ec = co_await connection->stream.write(out);
  boost::system::error_code ignored;
  connection->socket().shutdown(asio::socket_base::shutdown_send, ignored);
  // Closing over unread bytes would reset the stream and destroy the goodbye on its way.
  std::array<std::byte, 4096> unread;
  for (bool open = !ec; open;) {
    const auto [read_ec, count] = co_await connection->socket().async_read_some(
        asio::buffer(unread), as_tuple(use_awaitable));
    open = !read_ec;
  }
  connection->close();
  co_return error;
}

Task<Status> TlsCore::send_hello(ConnectionPtr connection) {
  HelloFrame hello{.job = options_.job,
                   .epoch = options_.epoch,
                   .stage = options_.stage,
                   .peer = options_.peer,
                   .edges = rules_.digest(connection->link->stage),
                   .held = {},
                   .consumed = {},
                   .partial = {}};
  connection->link->inbox.describe(hello);
  std::vector<std::byte> out;
  encode_frame(hello, {}, out);
  const auto ec = co_await connection->stream.write(out);
  if (ec) co_return io_error(ec, "sending the hello failed");
  co_return Status();
}

Task<Result<HelloFrame>> TlsCore::read_hello(ConnectionPtr connection) {
  DecodedFrame decoded;
  if (auto status = co_await read_frame(connection, &decoded); !status.ok()) {
    co_return std::move(status).error();
  }
  if (auto* goodbye = std::get_if<GoodbyeFrame>(&decoded.frame)) {
    const bool denied = goodbye->reason == GoodbyeReason::kDenied;
    co_return make_error(denied ? Code::kDenied : Code::kUnavailable,
                         "the other side refused the link: " + goodbye->text);
  }
  auto* hello = std::get_if<HelloFrame>(&decoded.frame);
  if (!hello) co_return make_error(Code::kCorrupt, "the first frame is not a hello");
  co_return std::move(*hello);
}

// The certificate was checked already; a hello that contradicts it is a broken program.
Status TlsCore::check_hello(const Link& link, const HelloFrame& hello) const {
  if (hello.job != options_.job || hello.epoch != options_.epoch || hello.stage != link.stage ||
      hello.peer != link.peer) {
    return make_error(Code::kDenied,
                      fmt::format("a hello of peer {} with stage {} of job {}, epoch {} does not "
                                  "match its certificate",
                                  hello.peer, hello.stage, hello.job, hello.epoch));
  }
  if (hello.edges != rules_.digest(link.stage)) {
    return make_error(
        Code::kDenied,
        fmt::format("{} has cut the model otherwise than stage {} (peer {}): they run different "
                    "versions of weft; have both run the same",
                    link.name(), options_.stage, options_.peer));
  }
  return {};
}

// Brings what arrived to `least` bytes, at most `most`.
Task<Status> TlsCore::gather(ConnectionPtr connection, size_t least, size_t most) {
  TlsStream& stream = connection->stream;
  while (stream.arrived().size() < least) {
    const auto ec = co_await stream.read(most - stream.arrived().size());
    if (ec) co_return io_error(ec, "the connection ended");
  }
  co_return Status();
}

// The frame's body points into what the stream holds, or into the message it belongs to, and lives
// until the next call. What is here already is taken without a coroutine of its own.
Task<Status> TlsCore::read_frame(ConnectionPtr connection, DecodedFrame* out) {
  TlsStream& stream = connection->stream;
  stream.consume(std::exchange(connection->handled, 0));
  // As much as the head of a chunk, and no byte of its body.
  if (!stream.try_hold(kPrefixBytes, kChunkOverheadBytes)) {
    if (auto s = co_await gather(connection, kPrefixBytes, kChunkOverheadBytes); !s.ok()) {
      co_return s;
    }
  }
  const auto prefix = decode_prefix(stream.arrived().first(kPrefixBytes));
  if (!prefix.ok()) co_return prefix.error();
  const size_t head_bytes = kPrefixBytes + prefix->header_bytes;
  if (!stream.try_hold(head_bytes, head_bytes)) {
    if (auto s = co_await gather(connection, head_bytes, head_bytes); !s.ok()) co_return s;
  }
  std::span<std::byte> room;
  const auto chunk = peek_chunk(*prefix, stream.arrived().first(head_bytes));
  if (chunk && connection->active) {
    room = connection->link->inbox.room(*chunk, prefix->body_bytes);
  }
  if (room.empty()) {
    const size_t bytes = kPrefixBytes + prefix->rest_bytes();
    if (!stream.try_hold(bytes, bytes)) {
      if (auto s = co_await gather(connection, bytes, bytes); !s.ok()) co_return s;
    }
    connection->handled = bytes;
    auto decoded = decode_frame(*prefix, stream.arrived().first(bytes));
    if (!decoded.ok()) co_return std::move(decoded).error();
    *out = std::move(decoded).value();
    co_return Status();
  }
  std::array<std::byte, kChunkOverheadBytes> head;
  std::ranges::copy(stream.arrived(), head.begin());
  stream.consume(head.size());
  if (std::span<std::byte> rest = room; !stream.try_read_into(rest)) {
    if (const auto ec = co_await stream.read_into(rest)) {
      co_return io_error(ec, "the connection ended");
    }
  }
  auto decoded = decode_frame(*prefix, head, room);
  if (!decoded.ok()) co_return std::move(decoded).error();
  *out = std::move(decoded).value();
  co_return Status();
}

void TlsCore::activate(const ConnectionPtr& connection, const HelloFrame& hello) {
  Link& link = *connection->link;
  connection->active = true;
  link.progressed = false;
  connection->deadline_ms = 0;
  connection->up_since_ms = connection->last_heard_ms = link.last_heard_ms = now_ms();
  const int64_t resent = link.outbox.on_connected(hello);
  release(link);
  if (link.ever_up) mailbox_.count_reconnect(resent);
  log_info("data link to {} is up{}; congestion control {}", link.name(),
           link.ever_up ? " again" : "", connection->congestion.current());
  link.ever_up = true;
  mailbox_.link_up(link.stage);
  if (link.message_bytes >= WarmUp::kLargeBytes) warm_up(*connection);
  spawn(read_loop(connection));
  spawn(write_loop(connection));
}

Task<void> TlsCore::read_loop(ConnectionPtr connection) {
  for (;;) {
    DecodedFrame decoded;
    auto status = co_await read_frame(connection, &decoded);
    if (connection->closed) break;
    if (status.ok()) {
      connection->last_heard_ms = connection->link->last_heard_ms = now_ms();
      status = handle(*connection, decoded);
    }
    if (status.ok()) continue;
    Link& link = *connection->link;
    const Error& error = status.error();
    if (error.code != Code::kUnavailable && error.code != Code::kCancelled) {
      ++link.violations;
      log_warning("data link to {} broke the protocol: {}", link.name(), error.message);
      if (!connection->leaving) {
        connection->leaving = true;
        connection->deadline_ms = now_ms() + kLingerMs;
        connection->push_control(GoodbyeFrame{GoodbyeReason::kProtocol, error.message});
        // write_loop sends it and closes; nothing more of this stream is believed.
        break;
      }
    }
    lost(connection, error.message);
    break;
  }
}

Status TlsCore::handle(Connection& connection, DecodedFrame& decoded) {
  Link& link = *connection.link;
  Status status;
  const auto type = static_cast<FrameType>(decoded.frame.index() + 1);
  link.progressed |= type >= FrameType::kMessage && type <= FrameType::kConsumed;
  if (auto* message = std::get_if<MessageFrame>(&decoded.frame)) {
    return handle_arrival(connection, link.inbox.on_message(*message, decoded.body));
  }
  if (auto* chunk = std::get_if<ChunkFrame>(&decoded.frame)) {
    return handle_arrival(connection, link.inbox.on_chunk(*chunk, decoded.body));
  }
  if (auto* ack = std::get_if<AckFrame>(&decoded.frame)) {
    status = link.outbox.on_ack(ack->key);
    measure(connection, ack->key, link.way_back.note(monotonic_seconds(), ack->at_us));
  } else if (auto* consumed = std::get_if<ConsumedFrame>(&decoded.frame)) {
    status = link.outbox.on_consumed(consumed->key);
    wake(link);
  } else if (auto* ping = std::get_if<PingFrame>(&decoded.frame)) {
    // A flood of pings is answered one at a time: replies never pile up.
    if (connection.control.empty()) connection.push_control(PongFrame{ping->number, now_us()});
  } else if (auto* pong = std::get_if<PongFrame>(&decoded.frame)) {
    const double now = monotonic_seconds();
    link.way_back.note(now, pong->at_us);
    if (const auto asked_s = connection.pings.answered(pong->number)) {
      link.trip.note(now, now - *asked_s);
    }
  } else if (std::holds_alternative<PaddingFrame>(decoded.frame)) {
    return {};
  } else if (auto* goodbye = std::get_if<GoodbyeFrame>(&decoded.frame)) {
    handle_goodbye(connection, *goodbye);
    return make_error(Code::kCancelled, "the other side said goodbye: " + goodbye->text);
  } else if (std::holds_alternative<HelloFrame>(decoded.frame)) {
    return make_error(Code::kCorrupt, "a second hello");
  }
  release(link);
  return status;
}

Status TlsCore::handle_arrival(Connection& connection, Result<MessageInbox::Arrival> arrival) {
  if (!arrival.ok()) return std::move(arrival).error();
  if (connection.control.size() > kMaxControl) {
    return make_error(Code::kTooLarge, "too many answers wait for a reader");
  }
  if (arrival->ack) connection.push_control(AckFrame{*arrival->ack, now_us()});
  if (arrival->consumed) connection.push_control(ConsumedFrame{*arrival->ack});
  if (arrival->message) mailbox_.deliver(std::move(*arrival->message));
  return {};
}

void TlsCore::handle_goodbye(Connection& connection, const GoodbyeFrame& goodbye) {
  Link& link = *connection.link;
  switch (goodbye.reason) {
    case GoodbyeReason::kDone:
      link.left = true;
      link.left_ms = now_ms();
      mailbox_.link_left(link.stage);
      if (link.queued > 0) {
        fail(make_error(Code::kUnavailable,
                        fmt::format("{} left with {} messages of ours not received", link.name(),
                                    link.queued)));
      }
      return;
    case GoodbyeReason::kFailed:
      fail(make_error(Code::kUnavailable,
                      fmt::format("{} left the job: {}", link.name(), goodbye.text)));
      return;
    case GoodbyeReason::kDenied:
      fail(make_error(Code::kDenied,
                      fmt::format("{} refused the link: {}", link.name(), goodbye.text)));
      return;
    case GoodbyeReason::kProtocol:
      ++link.violations;
      return;
  }
}

void TlsCore::release(Link& link) {
  auto released = link.outbox.take_released();
  link.queued -= static_cast<int64_t>(released.size());
  mailbox_.release(std::move(released));
  if (link.violations > kMaxViolations) {
    fail(
        make_error(Code::kCorrupt,
                   fmt::format("{} and this stage do not understand each other: {} protocol errors",
                               link.name(), link.violations),
                   "run the same version of weft on every peer"));
  }
}

// The kernel's shortest round trip is no longer than the true one, also where a middlebox ends TCP;
// a pong comes from the other stage, and is late rather than early.
void TlsCore::measure(Connection& connection, const MessageKey& acknowledged, double waited_s) {
  Link& link = *connection.link;
  if (!link.runs.awaits(acknowledged)) return;
  const double now = monotonic_seconds();
  const auto progress = os::tcp_progress(connection.socket().native_handle());
  const double kernel_s = progress ? progress->shortest_ms / 1e3 : 0;
  const auto run = link.runs.acknowledged(acknowledged, now, kernel_s, waited_s);
  if (!run) return;
  if (connection.pacer.carried(static_cast<int64_t>(1000 * run->since_s), now_ms(), run->bytes_s)) {
    set_pace(connection);
  }
  const double trip_s = link.trip.seconds().value_or(0);
  mailbox_.count_carried(
      link.stage,
      {link.runs.bytes_s(now), trip_s > 0 ? std::max(trip_s, kernel_s) : 0, link.runs.runs()});
}

}  // namespace weft::net
