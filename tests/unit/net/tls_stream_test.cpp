// TlsStream alone, both ends on one thread over loopback.
#include "net/tls/tls_stream.h"

#include <gtest/gtest.h>

#include <boost/asio/ssl/error.hpp>
#include <string>

#include "net/tls/context.h"
#include "tests/unit/net/tls_certificates.h"

// g++ 12 takes Asio's coroutine frame allocation for a mismatch with its own deallocation.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace weft::net {
namespace {

namespace asio = boost::asio;
using asio::use_awaitable;
using asio::ip::tcp;
template <typename T>
using Task = asio::awaitable<T>;

class TlsStreamTest : public ::testing::Test {
 protected:
  TlsStreamTest() {
    const testing::Paths paths = testing::TestCa().issue("p", "job", 1, 0);
    TlsEndpointOptions options;
    options.certificate_path = paths.certificate;
    options.key_path = paths.key;
    options.ca_path = paths.ca;
    context_ = std::move(make_tls_context(options)).value();
    client_ = std::make_unique<TlsStream>(io_, context_->native_handle());
    server_ = std::make_unique<TlsStream>(io_, context_->native_handle());
    tcp::acceptor acceptor(io_, {asio::ip::make_address("127.0.0.1"), 0});
    client_->socket().connect(acceptor.local_endpoint());
    acceptor.accept(server_->socket());
    start([](TlsStream& stream) -> Task<void> { EXPECT_FALSE(co_await stream.handshake(true)); },
          *server_);
    start([](TlsStream& stream) -> Task<void> { EXPECT_FALSE(co_await stream.handshake(false)); },
          *client_);
    io_.run();
    io_.restart();
  }

  void start(Task<void> (*task)(TlsStream&), TlsStream& stream) {
    asio::co_spawn(io_, task(stream), asio::detached);
  }
  // One read of the server.
  TlsStream::ErrorCode read() {
    TlsStream::ErrorCode result;
    asio::co_spawn(
        io_,
        [](TlsStream& stream, TlsStream::ErrorCode* out) -> Task<void> {
          *out = co_await stream.read();
        }(*server_, &result),
        asio::detached);
    io_.run();
    io_.restart();
    return result;
  }
  void write(const std::string& text) {
    asio::co_spawn(
        io_,
        [](TlsStream& stream, const std::string* bytes) -> Task<void> {
          EXPECT_FALSE(co_await stream.write(std::as_bytes(std::span(*bytes))));
        }(*client_, &text),
        asio::detached);
    io_.run();
    io_.restart();
  }
  std::string arrived() const {
    const auto bytes = server_->arrived();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  asio::io_context io_{1};
  std::unique_ptr<asio::ssl::context> context_;
  std::unique_ptr<TlsStream> client_, server_;
};

TEST_F(TlsStreamTest, WhatIsNotConsumedStays) {
  write("hello ");
  write("world");
  ASSERT_FALSE(read());
  server_->consume(6);
  write("!");
  while (arrived().size() < 6) ASSERT_FALSE(read());
  EXPECT_EQ(arrived(), "world!");
}

TEST_F(TlsStreamTest, ManyRecordsAndALongWrapAround) {
  const std::string piece(100000, 'x');
  size_t taken = 0;
  for (int i = 0; i < 50; ++i) {
    write(piece);
    while (taken + arrived().size() < static_cast<size_t>(i + 1) * piece.size()) {
      ASSERT_FALSE(read());
    }
    // An odd remainder stays each time, as of a frame cut in two.
    const size_t take = arrived().size() - static_cast<size_t>(i) % 7;
    EXPECT_EQ(arrived().find_first_not_of('x'), std::string::npos);
    server_->consume(take);
    taken += take;
  }
}

TEST_F(TlsStreamTest, AnEndWithoutCloseNotifyIsTruncation) {
  write("last");
  client_->socket().close();
  ASSERT_FALSE(read());
  EXPECT_EQ(arrived(), "last");
  EXPECT_EQ(read(), asio::ssl::error::stream_truncated);
  EXPECT_EQ(read(), asio::ssl::error::stream_truncated);
}

TEST_F(TlsStreamTest, WhatCameBeforeAForgedRecordIsGivenFirstAndThenTheReason) {
  write("good");
  const std::string forged = std::string("\x17\x03\x03\x00\x20", 5) + std::string(32, 'f');
  asio::write(client_->socket(), asio::buffer(forged));
  ASSERT_FALSE(read());
  EXPECT_EQ(arrived(), "good");
  for (int i = 0; i < 2; ++i) {
    const auto error = read();
    EXPECT_EQ(error.category(), asio::error::get_ssl_category()) << error.message();
    EXPECT_NE(error.message().find("mac"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace weft::net
