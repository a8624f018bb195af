// One connection: what goes next, how much of it at once and how fast.
#include <algorithm>
#include <array>

#include "base/log.h"
#include "base/os/net.h"
#include "net/tls/tls_core.h"

// g++ 12 takes Asio's coroutine frame allocation for a mismatch with its own deallocation.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace weft::net {
namespace {

using asio::as_tuple;
using asio::use_awaitable;

constexpr size_t kTlsRecordBytes = 22;       // header, content type and tag of one TLS 1.3 record
constexpr size_t kWorthPackingBytes = 2048;  // room below which a message frame waits for the next
constexpr size_t kFillingWrite = 64 * 1024;
constexpr std::array<std::byte, TlsStream::kRecordBytes - kPrefixBytes> kPadding{};

}  // namespace

void TlsCore::wake(Link& link) {
  if (link.connection && link.connection->active) link.connection->wake.cancel();
}

// The gradient of a shared weight goes straight to its owner, which needs it only when its own last
// gradient has come through the pipeline. Over an uplink that all links share it would hold those
// up: it waits for what is ready on the others.
bool TlsCore::has_frame(const Link& link) const {
  if (!link.outbox.has_frame()) return false;
  if (link.outbox.next_kind() != MessageKind::kTiedGradient) return true;
  return std::none_of(links_.begin(), links_.end(), [&](const auto& entry) {
    const MessageOutbox& other = entry.second->outbox;
    return other.has_frame() && other.next_kind() != MessageKind::kTiedGradient;
  });
}

void TlsCore::wake_others(const Link& link) {
  for (auto& [stage, other] : links_) {
    const bool waits =
        other->outbox.has_frame() && other->outbox.next_kind() == MessageKind::kTiedGradient;
    if (other.get() != &link && waits) wake(*other);
  }
}

// One write: control frames first; then as many message frames as there is room for, most urgent
// first, or padding where there are none. Records are full but for the last.
TlsStream::ErrorCode TlsCore::fill(Connection& connection) {
  MessageOutbox& outbox = connection.link->outbox;
  std::vector<std::byte>& head = connection.head;
  const auto frame = static_cast<size_t>(options_.chunk_bytes);
  const double now = monotonic_seconds();
  for (size_t room = write_bytes(connection); room > 0;) {
    head.clear();
    std::span<const std::byte> body;
    if (!connection.control.empty()) {
      encode_frame(connection.control.front(), {}, head);
      connection.control.pop_front();
    } else if (!connection.leaving && has_frame(*connection.link) && room >= kWorthPackingBytes) {
      const auto next = outbox.next_frame(head, std::min(frame, room));
      body = next.body;
      if (next.overtakes && connection.pacer.note_urgent(now_ms())) {
        limit_unsent(connection);
      }
      count(next.key, head.size() + body.size());
      connection.link->runs.writes(now, head.size() + body.size(),
                                   next.last ? std::optional(next.key) : std::nullopt);
    } else if (!connection.leaving && connection.warm_up.filling() && room >= kWorthPackingBytes) {
      body = std::span(kPadding).first(std::min(kPadding.size(), room));
      encode_head(PaddingFrame{}, body, head);
      connection.warm_up.note_padding(head.size() + body.size());
    } else {
      break;
    }
    if (const auto ec = connection.stream.pack(head)) return ec;
    if (const auto ec = connection.stream.pack(body)) return ec;
    room -= std::min(room, head.size() + body.size());
  }
  return connection.stream.seal_rest();
}

void TlsCore::count(const MessageKey& key, size_t frame_bytes) {
  if (key.kind != MessageKind::kActivation && key.kind != MessageKind::kGradient &&
      key.kind != MessageKind::kEvalActivation) {
    return;
  }
  const size_t records = (frame_bytes + TlsStream::kRecordBytes - 1) / TlsStream::kRecordBytes;
  mailbox_.count_sent(key.edge, static_cast<int64_t>(frame_bytes + records * kTlsRecordBytes));
}

size_t TlsCore::write_bytes(const Connection& connection) {
  const size_t bytes = connection.pacer.write_bytes();
  return connection.warm_up.filling() ? std::max(bytes, kFillingWrite) : bytes;
}

// The kernel should hold no more than this unsent.
void TlsCore::limit_unsent(Connection& connection) {
  size_t bytes = connection.pacer.write_bytes();
  if (connection.warm_up.filling()) bytes = std::max(bytes, connection.warm_up.unsent_bytes());
  os::set_unsent_limit(connection.socket().native_handle(), bytes);
}

void TlsCore::warm_up(Connection& connection) {
  if (connection.warm_up.begun()) return;
  const auto progress = os::tcp_progress(connection.socket().native_handle());
  if (!progress) return;
  if (!connection.warm_up.begin(now_ms(), connection.link->message_bytes, progress->acknowledged,
                                progress->round_trip_ms)) {
    return;
  }
  limit_unsent(connection);
  connection.wake.cancel();
}

// What acknowledgements tell, for as long as somebody wants to know.
void TlsCore::observe(Connection& connection) {
  const bool more = has_frame(*connection.link);
  connection.pacer.note(more);
  if (!more) {
    wake_others(*connection.link);
    connection.link->runs.lull();
    connection.warm_up.note_last(now_ms());
  }
  const bool fills = connection.warm_up.due(now_ms()), paces = connection.pacer.due(now_ms());
  if (!fills && !paces) return;
  const auto progress = os::tcp_progress(connection.socket().native_handle());
  if (!progress) return;
  if (fills) fill_further(connection, *progress);
  if (paces) pace(connection, *progress);
}

// In a pause: what bbr takes for the way's rate holds for a moment at which others sent, too, or
// for bursts that ended before it could see more.
void TlsCore::start_anew(Connection& connection) {
  if (connection.link->outbox.has_frame() || connection.warm_up.filling()) return;
  const int socket = connection.socket().native_handle();
  const os::BbrPhase phase = os::bbr_phase(socket);
  // The window it had before is known to itself alone.
  if (phase == os::BbrPhase::kUnknown || phase == os::BbrPhase::kProbeRoundTrip) return;
  const auto progress = os::tcp_progress(socket);
  if (!progress || progress->unsent > 0 || progress->repairing) return;
  if (connection.warm_up.start_anew(now_ms(), progress->round_trip_ms, progress->shortest_ms,
                                    phase == os::BbrPhase::kStartup)) {
    connection.congestion.begin(os::restart_congestion_control(socket));
  }
}

void TlsCore::fill_further(Connection& connection, const os::TcpProgress& progress) {
  WarmUp& warm_up = connection.warm_up;
  warm_up.update(now_ms(), progress.acknowledged, progress.round_trip_ms);
  limit_unsent(connection);
  if (warm_up.filling()) return;
  log_info("data link to {}: {:.1f} MB of padding showed a way of {:.1f} Mbit/s",
           connection.link->name(), static_cast<double>(warm_up.padding_bytes()) / 1e6,
           warm_up.rate() * 8e-6);
}

void TlsCore::set_pace(Connection& connection) {
  limit_unsent(connection);
  os::set_pacing_rate(connection.socket().native_handle(), connection.pacer.pacing_rate());
}

void TlsCore::pace(Connection& connection, const os::TcpProgress& progress) {
  Pacer& pacer = connection.pacer;
  if (!pacer.update(now_ms(), progress.acknowledged, progress.round_trip_ms)) return;
  set_pace(connection);
  const std::string control =
      connection.congestion.update(now_ms(), pacer.pacing_rate() != 0, progress.retransmitted);
  if (control.empty()) return;
  log_info("data link to {}: congestion control {}, {} segments sent again so far",
           connection.link->name(),
           os::set_congestion_control(connection.socket().native_handle(), control),
           progress.retransmitted);
}

Task<void> TlsCore::write_loop(ConnectionPtr connection) {
  Link& link = *connection->link;
  while (!connection->closed) {
    const bool more = !connection->leaving && (has_frame(link) || connection->warm_up.filling());
    if (connection->control.empty() && !more) {
      if (connection->leaving) {
        // All said; the other side's end of stream, or the deadline, closes.
        boost::system::error_code ignored;
        connection->socket().shutdown(asio::socket_base::shutdown_send, ignored);
        co_return;
      }
      co_await connection->wake.async_wait(as_tuple(use_awaitable));
      continue;
    }
    // The socket is writable only below half of TCP_NOTSENT_LOWAT: what goes next is chosen late.
    const auto [wait_ec] = co_await connection->socket().async_wait(asio::socket_base::wait_write,
                                                                    as_tuple(use_awaitable));
    if (wait_ec || connection->closed) break;
    auto ec = fill(*connection);
    if (!ec) ec = co_await connection->stream.send();
    if (ec) {
      lost(connection, ec.message());
      break;
    }
    observe(*connection);
  }
}

}  // namespace weft::net
