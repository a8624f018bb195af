// TLS over a TCP socket, for coroutines: many records a system call in both directions, where
// asio::ssl::stream makes one call a record. OpenSSL never sees the socket: it writes records into
// a buffer that goes out in one piece, and reads from a buffer filled by large receives.
// One thread; at most one read and one write at a time, which may overlap.
#pragma once

#include <openssl/ssl.h>

#include <boost/asio.hpp>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace weft::net {

class TlsStream {
 public:
  using ErrorCode = boost::system::error_code;
  template <typename T>
  using Task = boost::asio::awaitable<T>;

  TlsStream(boost::asio::io_context& io, SSL_CTX* context);

  boost::asio::ip::tcp::socket& socket() { return socket_; }
  SSL* native_handle() { return ssl_.get(); }

  // TLS failures are codes of the SSL category, as asio's own.
  Task<ErrorCode> handshake(bool server);
  // Appends at least one byte of plaintext to out, and at most about `most`. End of stream:
  // asio::error::eof after a close_notify, stream_truncated without.
  Task<ErrorCode> read(std::vector<std::byte>& out, size_t most);
  // Seals everything and hands it to the socket in one piece.
  Task<ErrorCode> write(std::span<const std::byte> bytes);

 private:
  struct SslDelete {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  // What OpenSSL reads from: received bytes not yet taken.
  struct Received {
    std::vector<std::byte> bytes;
    size_t begin = 0, end = 0;
  };

  static BIO_METHOD* bio_method();
  static int bio_read(BIO* bio, char* data, int size);
  static int bio_write(BIO* bio, const char* data, int size);
  static long bio_control(BIO* bio, int command, long number, void* pointer);

  Task<ErrorCode> receive();
  Task<ErrorCode> send_pending();

  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<SSL, SslDelete> ssl_;
  Received received_;
  std::vector<std::byte> pending_, sending_;  // sealed: next to go, on its way
};

}  // namespace weft::net
