#include "net/tls/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>

#include <algorithm>
#include <boost/asio/ssl/error.hpp>
#include <cstring>
#include <new>

// g++ 12 takes Asio's coroutine frame allocation for a mismatch with its own deallocation.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace weft::net {
namespace {

namespace asio = boost::asio;
using asio::as_tuple;
using asio::use_awaitable;

constexpr size_t kReceiveBytes = 256 * 1024;
constexpr size_t kRecordBytes = 16 * 1024;

// Why a call of OpenSSL did not succeed.
boost::system::error_code failure(int reason) {
  if (reason == SSL_ERROR_ZERO_RETURN) return asio::error::eof;
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
  Received& from = static_cast<TlsStream*>(BIO_get_data(bio))->received_;
  BIO_clear_retry_flags(bio);
  if (from.begin == from.end) {
    BIO_set_retry_read(bio);
    return -1;
  }
  const size_t count = std::min(from.end - from.begin, static_cast<size_t>(size));
  std::memcpy(data, from.bytes.data() + from.begin, count);
  from.begin += count;
  return static_cast<int>(count);
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
  // Whole receives at once into OpenSSL's buffer, rather than header and body of each record.
  SSL_set_read_ahead(ssl_.get(), 1);
}

TlsStream::Task<TlsStream::ErrorCode> TlsStream::receive() {
  if (received_.bytes.empty()) received_.bytes.resize(kReceiveBytes);
  received_.begin = received_.end = 0;  // OpenSSL asked for more: all is taken
  const auto [ec, count] =
      co_await socket_.async_read_some(asio::buffer(received_.bytes), as_tuple(use_awaitable));
  received_.end = count;
  co_return ec == asio::error::eof ? ErrorCode(asio::ssl::error::stream_truncated) : ec;
}

TlsStream::Task<TlsStream::ErrorCode> TlsStream::send_pending() {
  sending_.clear();
  std::swap(sending_, pending_);
  if (sending_.empty()) co_return ErrorCode();
  const auto [ec, count] =
      co_await asio::async_write(socket_, asio::buffer(sending_), as_tuple(use_awaitable));
  co_return ec;
}

TlsStream::Task<TlsStream::ErrorCode> TlsStream::handshake(bool server) {
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
        done == 1 || reason == SSL_ERROR_WANT_READ ? ErrorCode() : failure(reason);
    // An alert tells the other side why.
    const ErrorCode sent = co_await send_pending();
    if (failed) co_return failed;
    if (sent) co_return sent;
    if (done == 1) co_return ErrorCode();
    if (const ErrorCode ec = co_await receive()) co_return ec;
  }
}

TlsStream::Task<TlsStream::ErrorCode> TlsStream::read(std::vector<std::byte>& out, size_t most) {
  const size_t before = out.size();
  for (;;) {
    size_t size = out.size();
    int reason = SSL_ERROR_NONE;
    while (size - before < most) {
      out.resize(size + kRecordBytes);
      size_t count = 0;
      ERR_clear_error();
      const int done = SSL_read_ex(ssl_.get(), out.data() + size, kRecordBytes, &count);
      if (done != 1) {
        reason = SSL_get_error(ssl_.get(), done);
        break;
      }
      size += count;
    }
    const ErrorCode failed =
        reason == SSL_ERROR_NONE || reason == SSL_ERROR_WANT_READ ? ErrorCode() : failure(reason);
    out.resize(size);
    // What came before the failure is delivered first; the failure comes again.
    if (size > before) co_return ErrorCode();
    if (failed) co_return failed;
    if (const ErrorCode ec = co_await receive()) co_return ec;
  }
}

TlsStream::Task<TlsStream::ErrorCode> TlsStream::write(std::span<const std::byte> bytes) {
  size_t count = 0;
  ERR_clear_error();
  if (!bytes.empty()) {
    const int done = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &count);
    if (done != 1) co_return failure(SSL_get_error(ssl_.get(), done));
  }
  co_return co_await send_pending();
}

}  // namespace weft::net
