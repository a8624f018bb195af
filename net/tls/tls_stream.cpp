#include "net/tls/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>

#include <algorithm>
#include <boost/asio/ssl/error.hpp>
#include <cstring>
#include <new>
#include <tuple>
#include <utility>

// g++ 12 takes Asio's coroutine frame allocation for a mismatch with its own deallocation.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace weft::net {
namespace {

namespace asio = boost::asio;
using asio::as_tuple;
using asio::use_awaitable;

constexpr size_t kReceiveBytes = 64 * 1024;  // larger ones leave the inner caches
constexpr size_t kReadBytes = 256 * 1024;    // of plaintext, before others get their turn

// Why a call of OpenSSL did not succeed. received: how the socket failed below it, if it did.
boost::system::error_code failure(int reason, boost::system::error_code received = {}) {
  if (reason == SSL_ERROR_ZERO_RETURN) return asio::error::eof;
  if (received == asio::error::eof) return asio::ssl::error::stream_truncated;
  if (received) return received;
  if (const unsigned long code = ERR_get_error(); code != 0) {
    return {static_cast<int>(code), asio::error::get_ssl_category()};
  }
  return asio::ssl::error::unexpected_result;
}

}  // namespace

BIO_METHOD* TlsStream::bio_method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "weft buffers");
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  return method;
}

int TlsStream::bio_read(BIO* bio, char* data, int size) {
  auto& stream = *static_cast<TlsStream*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  stream.received_ = {};
  const size_t count =
      stream.socket_.read_some(asio::buffer(data, static_cast<size_t>(size)), stream.received_);
  if (!stream.received_) {
    stream.tail_.received(std::as_bytes(std::span(data, count)));
    return static_cast<int>(count);
  }
  if (stream.received_ == asio::error::would_block) {
    stream.received_ = {};
    BIO_set_retry_read(bio);
  }
  return -1;
}

int TlsStream::bio_write(BIO* bio, const char* data, int size) {
  auto& to = static_cast<TlsStream*>(BIO_get_data(bio))->pending_;
  BIO_clear_retry_flags(bio);
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  to.insert(to.end(), bytes, bytes + size);
  return size;
}

long TlsStream::bio_control(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

TlsStream::TlsStream(asio::io_context& io, SSL_CTX* context) : socket_(io), ssl_(SSL_new(context)) {
  BIO* bio = BIO_new(bio_method());
  if (!ssl_ || !bio) throw std::bad_alloc();
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  // Many records a receive, rather than header and body of each.
  SSL_set_read_ahead(ssl_.get(), 1);
  SSL_set_default_read_buffer_len(ssl_.get(), kReceiveBytes);
}

// Where the system knows no such mark, every segment wakes the reader. An end, a failure or a full
// buffer end the wait whatever it is.
void TlsStream::wake_at(size_t bytes) {
  bytes = std::clamp<size_t>(bytes, 1, kRecordBytes);
  if (bytes == wake_at_) return;
  wake_at_ = bytes;
  ErrorCode ignored;
  socket_.set_option(asio::socket_base::receive_low_watermark(static_cast<int>(bytes)), ignored);
}

TlsStream::Task<TlsStream::ErrorCode> TlsStream::readable() {
  wake_at(tail_.bytes_to_come());
  const auto [ec] =
      co_await socket_.async_wait(asio::socket_base::wait_read, as_tuple(use_awaitable));
  in_a_row_ = 0;
  dry_ = false;
  // Closed after the wait had ended well: what is decrypted already must not be given out either.
  co_return ec || socket_.is_open() ? ec : asio::error::operation_aborted;
}

TlsStream::Task<TlsStream::ErrorCode> TlsStream::send() {
  std::swap(sending_, pending_);
  ErrorCode ec;
  // Not asio::async_write, which hands over 64 KiB a call.
  for (size_t sent = 0; !ec && sent < sending_.size();) {
    sent += socket_.write_some(asio::buffer(sending_) + sent, ec);
    if (ec != asio::error::would_block) continue;
    std::tie(ec) =
        co_await socket_.async_wait(asio::socket_base::wait_write, as_tuple(use_awaitable));
    if (!ec && !socket_.is_open()) ec = asio::error::operation_aborted;
  }
  sending_.clear();
  // What is sealed next finds the same storage, still in the cache.
  if (pending_.empty()) std::swap(sending_, pending_);
  co_return ec;
}

TlsStream::Task<TlsStream::ErrorCode> TlsStream::handshake(bool server) {
  ErrorCode ec;
  socket_.non_blocking(true, ec);
  if (ec) co_return ec;
  if (server) {
    SSL_set_accept_state(ssl_.get());
  } else {
    SSL_set_connect_state(ssl_.get());
  }
  for (;;) {
    ERR_clear_error();
    const int done = SSL_do_handshake(ssl_.get());
    const int reason = SSL_get_error(ssl_.get(), done);
    const ErrorCode failed =
        done == 1 || reason == SSL_ERROR_WANT_READ ? ErrorCode() : failure(reason, received_);
    // An alert tells the other side why.
    const ErrorCode sent = co_await send();
    if (failed) co_return failed;
    if (sent) co_return sent;
    if (done == 1) co_return ErrorCode();
    if (const ErrorCode ec = co_await readable()) co_return ec;
  }
}

void TlsStream::make_room(size_t bytes) {
  if (!plain_) plain_ = std::make_unique_for_overwrite<std::byte[]>(kMaxArrived);
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (kMaxArrived - end_ < bytes) {
    std::memmove(plain_.get(), plain_.get() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
}

// A sender as fast as this reader would else keep the thread for itself.
TlsStream::Task<TlsStream::ErrorCode> TlsStream::others_turn() {
  in_a_row_ = 0;
  co_await asio::post(socket_.get_executor(), use_awaitable);
  co_return socket_.is_open() ? ErrorCode() : asio::error::operation_aborted;
}

TlsStream::Task<TlsStream::ErrorCode> TlsStream::read(size_t most) {
  most = std::min({most, kReadBytes, kMaxArrived - (end_ - begin_)});
  if (most == 0) co_return asio::error::no_buffer_space;
  make_room(most);
  size_t count = 0;
  const ErrorCode ec = co_await pull({plain_.get() + end_, most}, 1, &count);
  end_ += count;
  co_return ec;
}

TlsStream::Task<TlsStream::ErrorCode> TlsStream::read_into(std::span<std::byte> to) {
  if (begin_ != end_) co_return asio::error::invalid_argument;
  size_t count = 0;
  co_return co_await pull(to, to.size(), &count);
}

bool TlsStream::try_hold(size_t least, size_t most) {
  const size_t have = end_ - begin_;
  if (have >= least) return true;
  if (in_a_row_ >= kReadBytes) return false;
  most = std::min(most, kMaxArrived) - have;
  make_room(most);
  size_t count = 0;
  const bool enough = take({plain_.get() + end_, most}, least - have, &count);
  end_ += count;
  return enough;
}

bool TlsStream::try_read_into(std::span<std::byte>& rest) {
  if (begin_ != end_ || in_a_row_ >= kReadBytes) return false;
  size_t count = 0;
  const bool all = take(rest, rest.size(), &count);
  rest = rest.subspan(count);
  return all;
}

// Takes what is there; true: the count is `least` or more then.
bool TlsStream::take(std::span<std::byte> to, size_t least, size_t* count) {
  while (!failed_ && !dry_ && *count < to.size()) {
    size_t more = 0;
    ERR_clear_error();
    const int done = SSL_read_ex(ssl_.get(), to.data() + *count, to.size() - *count, &more);
    if (done != 1) {
      const int reason = SSL_get_error(ssl_.get(), done);
      dry_ = reason == SSL_ERROR_WANT_READ;
      if (!dry_) failed_ = failure(reason, received_);  // OpenSSL would not say why again
      break;
    }
    *count += more;
    in_a_row_ += more;
  }
  return *count >= least;
}

// Reads at least `least` bytes and more while they are there.
TlsStream::Task<TlsStream::ErrorCode> TlsStream::pull(std::span<std::byte> to, size_t least,
                                                      size_t* count) {
  if (in_a_row_ >= kReadBytes) {
    if (const ErrorCode ec = co_await others_turn()) co_return ec;
  }
  for (;;) {
    if (take(to, least, count)) co_return ErrorCode();
    if (failed_) co_return failed_;
    if (const ErrorCode ec = co_await readable()) co_return ec;
  }
}

TlsStream::ErrorCode TlsStream::seal(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  size_t count = 0;
  ERR_clear_error();
  const int done = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &count);
  return done == 1 ? ErrorCode() : failure(SSL_get_error(ssl_.get(), done));
}

TlsStream::ErrorCode TlsStream::pack(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), kRecordBytes - packed_.size());
    const auto next = bytes.first(count);
    bytes = bytes.subspan(count);
    if (count == kRecordBytes) {
      if (const ErrorCode ec = seal(next)) return ec;
      continue;
    }
    packed_.insert(packed_.end(), next.begin(), next.end());
    if (packed_.size() < kRecordBytes) continue;
    if (const ErrorCode ec = seal_rest()) return ec;
  }
  return {};
}

TlsStream::ErrorCode TlsStream::seal_rest() {
  const ErrorCode ec = seal(packed_);
  packed_.clear();
  return ec;
}

TlsStream::Task<TlsStream::ErrorCode> TlsStream::write(std::span<const std::byte> bytes) {
  if (const ErrorCode ec = seal(bytes)) co_return ec;
  co_return co_await send();
}

}  // namespace weft::net
