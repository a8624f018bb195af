// TlsStream alone over loopback, both ends on one thread, each with a loop of its own.
#include "net/tls/tls_stream.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <boost/asio/ssl/error.hpp>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "base/rng.h"
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
    client_ = std::make_unique<TlsStream>(client_io_, context_->native_handle());
    server_ = std::make_unique<TlsStream>(io_, context_->native_handle());
    tcp::acceptor acceptor(io_, {asio::ip::make_address("127.0.0.1"), 0});
    client_->socket().connect(acceptor.local_endpoint());
    acceptor.accept(server_->socket());
    int done = 0;
    const auto handshake = [](TlsStream& stream, bool server, int* count) -> Task<void> {
      EXPECT_FALSE(co_await stream.handshake(server));
      ++*count;
    };
    asio::co_spawn(io_, handshake(*server_, true, &done), asio::detached);
    asio::co_spawn(client_io_, handshake(*client_, false, &done), asio::detached);
    while (done < 2) {
      io_.poll();
      client_io_.poll();
    }
    io_.restart();
    client_io_.restart();
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
  TlsStream::ErrorCode read_into(std::span<std::byte> to) {
    TlsStream::ErrorCode result;
    asio::co_spawn(
        io_,
        [](TlsStream& stream, std::span<std::byte> room, TlsStream::ErrorCode* out) -> Task<void> {
          *out = co_await stream.read_into(room);
        }(*server_, to, &result),
        asio::detached);
    io_.run();
    io_.restart();
    return result;
  }
  void write(const std::string& text) {
    asio::co_spawn(
        client_io_,
        [](TlsStream& stream, const std::string* bytes) -> Task<void> {
          EXPECT_FALSE(co_await stream.write(std::as_bytes(std::span(*bytes))));
        }(*client_, &text),
        asio::detached);
    client_io_.run();
    client_io_.restart();
  }
  void crowd(std::span<const std::byte> bytes);
  // The client's way to the server, and what it would have sent there of a text.
  std::pair<tcp::socket, std::string> catch_sealed(const std::string& text) {
    tcp::socket direct = std::move(client_->socket());
    tcp::acceptor catcher(client_io_, {asio::ip::make_address("127.0.0.1"), 0});
    client_->socket() = tcp::socket(client_io_);
    client_->socket().connect(catcher.local_endpoint());
    tcp::socket caught = catcher.accept();
    client_->socket().non_blocking(true);
    write(text);
    client_->socket().close();
    std::string sealed;
    TlsStream::ErrorCode end;
    asio::read(caught, asio::dynamic_buffer(sealed), end);
    EXPECT_EQ(end, asio::error::eof);
    return {std::move(direct), std::move(sealed)};
  }
  std::string arrived() const {
    const auto bytes = server_->arrived();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  asio::io_context io_{1}, client_io_{1};
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

TEST_F(TlsStreamTest, AReadTakesNoMoreThanItMay) {
  write("hello world");
  asio::co_spawn(
      io_, [](TlsStream& stream) -> Task<void> { EXPECT_FALSE(co_await stream.read(5)); }(*server_),
      asio::detached);
  io_.run();
  io_.restart();
  EXPECT_EQ(arrived(), "hello");
  std::array<std::byte, 6> rest;
  EXPECT_EQ(read_into(rest), asio::error::invalid_argument) << "hello is not consumed";
  server_->consume(5);
  ASSERT_FALSE(read_into(rest));
  EXPECT_EQ(std::memcmp(rest.data(), " world", 6), 0);
  EXPECT_EQ(arrived(), "");
}

TEST_F(TlsStreamTest, RecordsSealedOneByOneArriveInOrderStraightInPlace) {
  std::vector<std::byte> sent(150000), got(sent.size());
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7 >> 3);
  asio::co_spawn(
      client_io_,
      [](TlsStream& stream, std::span<const std::byte> all) -> Task<void> {
        for (size_t at = 0; at < all.size(); at += 10000) {
          EXPECT_FALSE(stream.seal(all.subspan(at, 10000)));
        }
        EXPECT_FALSE(stream.seal({}));
        EXPECT_FALSE(co_await stream.send());
      }(*client_, sent),
      asio::detached);
  client_io_.run();
  ASSERT_FALSE(read_into(got));
  EXPECT_EQ(got, sent);
}

// Pieces of any length, as heads and bodies of frames are; 200000 bytes in all.
std::vector<std::byte> send_packed(TlsStream& stream, asio::io_context& io) {
  std::vector<std::byte> sent(200000);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 11 >> 3);
  std::span<const std::byte> rest = sent;
  for (const size_t count : {36, 65500, 36, 0, 40000, 16384, 1, 50000, 28043}) {
    EXPECT_FALSE(stream.pack(rest.first(count)));
    rest = rest.subspan(count);
  }
  EXPECT_TRUE(rest.empty());
  EXPECT_FALSE(stream.seal_rest());
  EXPECT_FALSE(stream.seal_rest()) << "with nothing left";
  asio::co_spawn(
      io, [](TlsStream& s) -> Task<void> { EXPECT_FALSE(co_await s.send()); }(stream),
      asio::detached);
  return sent;
}

TEST_F(TlsStreamTest, PackedPiecesArriveAsTheyWere) {
  const auto sent = send_packed(*client_, client_io_);
  std::thread sender([&] { client_io_.run(); });
  std::vector<std::byte> got(sent.size());
  EXPECT_FALSE(read_into(got));
  sender.join();
  EXPECT_EQ(got, sent);
}

TEST_F(TlsStreamTest, PackedPiecesMakeFullRecords) {
  const size_t bytes = send_packed(*client_, client_io_).size();
  std::thread sender([&] { client_io_.run(); });
  constexpr size_t kHeader = 5, kAdded = 17;  // content type and tag
  server_->socket().non_blocking(false);
  std::vector<size_t> records;
  for (size_t got = 0; got < bytes;) {
    std::array<unsigned char, kHeader> header;
    asio::read(server_->socket(), asio::buffer(header));
    std::vector<std::byte> record(header[3] * 256u + header[4]);
    asio::read(server_->socket(), asio::buffer(record));
    records.push_back(record.size() - kAdded);
    got += records.back();
  }
  sender.join();
  std::vector<size_t> full(bytes / TlsStream::kRecordBytes, TlsStream::kRecordBytes);
  full.push_back(bytes % TlsStream::kRecordBytes);
  EXPECT_EQ(records, full);
}

TEST_F(TlsStreamTest, WhatIsThereIsTakenWithoutWaiting) {
  EXPECT_FALSE(server_->try_hold(1, 9)) << "nothing was sent";
  write("head and body");
  // An empty socket is not asked again before it was waited for.
  asio::co_spawn(
      io_, [](TlsStream& stream) -> Task<void> { EXPECT_FALSE(co_await stream.read(4)); }(*server_),
      asio::detached);
  io_.run();
  io_.restart();
  EXPECT_TRUE(server_->try_hold(4, 9));
  EXPECT_EQ(arrived(), "head");
  std::array<std::byte, 12> place{};
  std::span<std::byte> rest = place;
  EXPECT_FALSE(server_->try_read_into(rest)) << "head is not consumed";
  EXPECT_EQ(rest.size(), place.size());
  EXPECT_TRUE(server_->try_hold(5, 8));
  EXPECT_EQ(arrived(), "head and");
  server_->consume(8);
  EXPECT_FALSE(server_->try_read_into(rest)) << "there are 5 bytes of 12";
  EXPECT_EQ(rest.size(), 7u);
  write(" follows");
  ASSERT_FALSE(read_into(rest));
  EXPECT_EQ(std::memcmp(place.data(), " body follow", place.size()), 0);
}

// Fills the server's receive buffer; nobody reads.
void TlsStreamTest::crowd(std::span<const std::byte> bytes) {
  server_->socket().set_option(asio::socket_base::receive_buffer_size(4 << 20));
  asio::co_spawn(
      client_io_,
      [](TlsStream& stream, std::span<const std::byte> all) -> Task<void> {
        EXPECT_FALSE(co_await stream.write(all));
      }(*client_, bytes),
      asio::detached);
  while (client_io_.poll() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

struct Pieces {
  size_t got = 0;
  std::vector<std::byte> piece = std::vector<std::byte>(16384);
  TlsStream::ErrorCode ec;
};

Task<void> read_pieces(TlsStream& stream, size_t end, Pieces* to) {
  while (to->got < end && !to->ec) {
    std::ranges::fill(to->piece, std::byte{0});
    to->ec = co_await stream.read_into(to->piece);
    if (!to->ec) to->got += to->piece.size();
  }
}

// A reader that always finds bytes lets others on its thread have their turn; one of them may close
// the connection, and what is decrypted by then must not reach storage it no longer owns.
TEST_F(TlsStreamTest, ALongReadLetsOthersHaveTheirTurn) {
  const std::vector<std::byte> sent(1 << 20, std::byte{'x'});
  crowd(sent);
  const size_t here = server_->socket().available();
  if (here < 600000) GTEST_SKIP() << "this system buffers only " << here << " bytes";
  Pieces pieces;
  asio::co_spawn(io_, read_pieces(*server_, sent.size(), &pieces), asio::detached);
  for (int i = 0; pieces.got == 0 && i < 100; ++i) io_.poll_one();
  EXPECT_GT(pieces.got, 0u);
  EXPECT_LT(pieces.got, 400000u) << "all that was there in one go";
  server_->socket().close();
  io_.run();
  EXPECT_EQ(pieces.ec, asio::error::operation_aborted);
  EXPECT_EQ(pieces.piece, std::vector<std::byte>(pieces.piece.size()));
}

TEST_F(TlsStreamTest, PiecesOfARecordWakeNobody) {
  const std::string text(16000, 'x');
  auto [direct, sealed] = catch_sealed(text);
  TlsStream::ErrorCode ended = asio::error::would_block;
  asio::co_spawn(
      io_,
      [](TlsStream& stream, TlsStream::ErrorCode* out) -> Task<void> {
        *out = co_await stream.read();
      }(*server_, &ended),
      asio::detached);
  size_t given = 0;
  const auto give = [&](size_t bytes) {
    asio::write(direct, asio::buffer(sealed) + given, asio::transfer_exactly(bytes));
    given += bytes;
  };
  give(3);  // of the header: how long it is cannot be known
  while (io_.poll() == 0) continue;
  give(997);
  while (server_->socket().available() < 997) continue;
  while (server_->socket().available() > 0) io_.poll();
  for (size_t there = 1400; there + 1000 < sealed.size(); there += 1400) {
    give(1400);
    while (server_->socket().available() < there) continue;
    ASSERT_EQ(io_.poll(), 0U) << "woken for " << there << " bytes of a record";
  }
  EXPECT_EQ(ended, asio::error::would_block);
  const size_t left = sealed.size() - 1000 - server_->socket().available();
  give(left);
  io_.run();
  EXPECT_FALSE(ended);
  EXPECT_EQ(arrived(), text);
}

TEST_F(TlsStreamTest, AnEndWithinARecordIsToldAtOnce) {
  auto [direct, sealed] = catch_sealed(std::string(16000, 'x'));
  asio::write(direct, asio::buffer(sealed, 5000));
  direct.close();
  EXPECT_EQ(read(), asio::ssl::error::stream_truncated);
}

RC_GTEST_PROP(RecordTail, IsWhatIsLeftOfTheRecordThatBegan, ()) {
  Rng rng(*rc::gen::arbitrary<uint32_t>());
  std::vector<std::byte> stream;
  std::vector<size_t> left;  // behind each byte
  for (uint64_t records = rng.below(6); records > 0; --records) {
    const size_t length = rng.below(3) == 0 ? rng.below(4) : rng.below(16641);
    for (const size_t byte : {size_t{23}, size_t{3}, size_t{3}, length >> 8, length & 0xff}) {
      stream.push_back(static_cast<std::byte>(byte));
      left.push_back(0);
    }
    left.back() = length;
    for (size_t i = length; i > 0; --i) {
      stream.push_back(static_cast<std::byte>(rng.below(256)));
      left.push_back(i - 1);
    }
  }
  RecordTail tail;
  for (size_t at = 0; at < stream.size();) {
    const size_t part =
        std::min<size_t>(stream.size() - at, 1 + rng.below(rng.below(2) ? 8 : 4000));
    tail.received(std::span(stream).subspan(at, part));
    at += part;
    RC_ASSERT(tail.bytes_to_come() == left[at - 1]);
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
