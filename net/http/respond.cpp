#include <boost/asio/write.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <fstream>
#include <vector>

#include "base/os/net.h"
#include "net/http/chunk.h"
#include "net/http/connection.h"

namespace weft::net::http_server {
namespace {

namespace http = beast::http;

constexpr uint64_t kMinBytesPerSecond = 16 << 10;  // slower senders and readers are cut off
constexpr uint64_t kMaxLingerBytes = uint64_t{64} << 20;

bool is_field_text(std::string_view text) {
  return text.find_first_of(std::string_view("\r\n\0", 3)) == std::string_view::npos;
}

template <typename Body>
void fill_header(http::response<Body>& out, const HttpResponse& response, bool keep_alive) {
  out.keep_alive(keep_alive);
  if (response.status != 204) out.set(http::field::content_type, response.content_type);
  for (const auto& [name, value] : response.headers) {
    if (is_field_text(name) && is_field_text(value)) out.set(name, value);
  }
}

asio::awaitable<bool> write_header_only(Connection& c, const HttpResponse& response,
                                        uint64_t length, unsigned version, bool keep_alive) {
  http::response<http::empty_body> out{http::int_to_status(unsigned(response.status)), version};
  fill_header(out, response, keep_alive);
  out.content_length(length);
  http::response_serializer<http::empty_body> serializer{out};
  c.tcp().expires_after(transfer_time(c.core, 0));
  auto [ec, n] = co_await http::async_write_header(c.stream, serializer, kAwait);
  co_return !ec;
}

asio::awaitable<bool> write_file(Connection& c, const HttpResponse& response, std::ifstream& file) {
  std::vector<char> piece(kPieceBytes);
  uint64_t left = response.file_length;
  while (left > 0) {
    const size_t want = size_t(std::min<uint64_t>(left, piece.size()));
    // A file that shrank: the connection ends short, which the client sees.
    if (!file.read(piece.data(), std::streamsize(want))) co_return false;
    c.tcp().expires_after(transfer_time(c.core, 0));
    auto [ec, n] = co_await asio::async_write(c.stream, asio::buffer(piece.data(), want), kAwait);
    if (ec) co_return false;
    left -= want;
  }
  co_return true;
}

asio::awaitable<bool> write_body(Connection& c, HttpResponse& response, unsigned version,
                                 bool keep_alive) {
  http::response<http::string_body> out{http::int_to_status(unsigned(response.status)), version};
  fill_header(out, response, keep_alive);
  out.body() = std::move(response.body);
  if (response.status != 204) out.content_length(out.body().size());
  c.tcp().expires_after(transfer_time(c.core, out.body().size()));
  auto [ec, n] = co_await http::async_write(c.stream, out, kAwait);
  co_return !ec;
}

// A body that is made as it goes, and ends when its source says so.
asio::awaitable<bool> write_source(Connection& c, const HttpResponse& response, bool keep_alive) {
  http::response<http::empty_body> out{http::int_to_status(unsigned(response.status)), 11};
  fill_header(out, response, keep_alive);
  out.chunked(true);
  http::response_serializer<http::empty_body> serializer{out};
  os::set_unsent_limit(c.tcp().socket().native_handle(), kUnsentBytes);
  c.tcp().expires_after(transfer_time(c.core, 0));
  auto [ec, n] = co_await http::async_write_header(c.stream, serializer, kAwait);
  for (ChunkMaker chunks(response.source); !ec && !chunks.ended();) {
    c.tcp().expires_after(transfer_time(c.core, 0));
    std::tie(ec, n) = co_await asio::async_write(c.stream, asio::buffer(chunks.next()), kAwait);
  }
  co_return !ec;
}

}  // namespace

milliseconds transfer_time(const Core& core, uint64_t bytes) {
  return milliseconds(core.options.idle_timeout_ms + int64_t(bytes / kMinBytesPerSecond) * 1000);
}

asio::awaitable<bool> write_response(Connection& c, HttpResponse response, bool head,
                                     unsigned version, bool keep_alive) {
  if (response.status < 200 || response.status > 599) response.status = 500;
  bool written = false;
  if (!response.file.empty()) {
    std::ifstream file(response.file, std::ios::binary);
    if (!file.seekg(std::streamoff(response.file_offset))) {
      HttpResponse failed = problem_response(
          make_error(Code::kIo, "cannot open the file of this answer", "try again"));
      written = co_await write_body(c, failed, version, keep_alive);
    } else {
      written = co_await write_header_only(c, response, response.file_length, version, keep_alive);
      if (written && !head) written = co_await write_file(c, response, file);
    }
  } else if (response.source && version >= 11 && !head) {
    written = co_await write_source(c, response, keep_alive);
  } else if (head) {
    written = co_await write_header_only(c, response, response.body.size(), version, keep_alive);
  } else {
    written = co_await write_body(c, response, version, keep_alive);
  }
  co_return written&& keep_alive;
}

asio::awaitable<void> linger(Connection& c) {
  error_code ignored;
  c.tcp().socket().shutdown(tcp::socket::shutdown_send, ignored);
  c.tcp().expires_after(kLingerTime);
  std::vector<char> sink(kPieceBytes);
  for (uint64_t total = 0; total < kMaxLingerBytes;) {
    auto [ec, n] = co_await c.tcp().async_read_some(asio::buffer(sink), kAwait);
    if (ec) break;
    total += n;
  }
}

}  // namespace weft::net::http_server
