// TLS over a TCP socket, for coroutines: many records a system call in both directions, where
// asio::ssl::stream makes one call a record. OpenSSL writes its records into a buffer that goes out
// in one piece, and its own input buffer is large and filled by the socket without a copy between.
// A reader waits for whole records: on a slow line each segment would wake it for nothing.
// One thread; at most one read and one write at a time, which may overlap.
#pragma once

#include <openssl/ssl.h>

#include <boost/asio.hpp>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "net/tls/record_tail.h"

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
  // Plaintext that arrived and was not consumed; valid until the next read.
  std::span<const std::byte> arrived() const { return {plain_.get() + begin_, end_ - begin_}; }
  void consume(size_t bytes) { begin_ += bytes; }
  // Adds at least one byte to what arrived, and `most` at most; all of it may be kMaxArrived. End
  // of stream: asio::error::eof after a close_notify, stream_truncated without.
  static constexpr size_t kMaxArrived = 1024 * 1024;
  Task<ErrorCode> read(size_t most = kMaxArrived);
  // Fills `to` with the next bytes, without a buffer between; nothing may be left of what arrived.
  // Does not touch `to` after the socket was closed.
  Task<ErrorCode> read_into(std::span<std::byte> to);
  // The same with what is here already, where nothing need be waited for. False: not all of it is,
  // or others on this thread are due, or the stream failed; the call above then goes on.
  bool try_hold(size_t least, size_t most);        // of what arrived
  bool try_read_into(std::span<std::byte>& rest);  // shrinks to what is left to fill
  // Seals bytes behind what was sealed before and not sent. At most kRecordBytes make one record.
  static constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
  ErrorCode seal(std::span<const std::byte> bytes);
  // The same in full records whatever pieces the bytes come in; large ones are not copied for it.
  // What does not fill a record waits for more, or for seal_rest.
  ErrorCode pack(std::span<const std::byte> bytes);
  ErrorCode seal_rest();
  // Hands all that is sealed to the socket in one piece.
  Task<ErrorCode> send();
  Task<ErrorCode> write(std::span<const std::byte> bytes);  // seal, send

 private:
  struct SslDelete {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  static BIO_METHOD* bio_method();
  static int bio_read(BIO* bio, char* data, int size);
  static int bio_write(BIO* bio, const char* data, int size);
  static long bio_control(BIO* bio, int command, long number, void* pointer);

  void make_room(size_t bytes);
  bool take(std::span<std::byte> to, size_t least, size_t* count);
  Task<ErrorCode> pull(std::span<std::byte> to, size_t least, size_t* count);
  Task<ErrorCode> others_turn();
  Task<ErrorCode> readable();
  void wake_at(size_t bytes);

  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<SSL, SslDelete> ssl_;
  ErrorCode received_;                  // how the latest receive failed
  ErrorCode failed_;                    // of a read that had plaintext to give first
  std::unique_ptr<std::byte[]> plain_;  // kMaxArrived bytes, once something is read
  size_t begin_ = 0, end_ = 0;
  bool dry_ = false;  // the socket had no more to give
  RecordTail tail_;
  size_t wake_at_ = 1;                        // bytes of the socket for which a wait ends
  size_t in_a_row_ = 0;                       // bytes read since others had their turn
  std::vector<std::byte> packed_;             // the next record
  std::vector<std::byte> pending_, sending_;  // sealed: next to go, on its way
};

}  // namespace weft::net
