// ChunkMaker: a body of unknown length as chunks (RFC 9112, 7.1), each in one piece of memory that
// fills one TLS record: written apart, the few bytes around a chunk would be records of their own.
// One thread. Private to net/http.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string_view>
#include <vector>

#include "net/http/http.h"

namespace weft::net {

// Of bytes the kernel has not sent yet: a source that stops has stopped soon on a slow line, too.
inline constexpr size_t kUnsentBytes = 128 << 10;

class ChunkMaker {
 public:
  explicit ChunkMaker(const HttpSource& source) : source_(source), buffer_(kRecordBytes) {}

  bool ended() const { return ended_; }
  // The next chunk, or the end of the body; good until the next call.
  std::string_view next() {
    const std::span<char> room(buffer_.data() + kHead, buffer_.size() - kHead - kTail);
    const size_t bytes = source_(room);
    if (bytes == 0) {
      ended_ = true;
      return "0\r\n\r\n";
    }
    fmt::format_to_n(buffer_.data(), kHead, "{:04x}\r\n", bytes);
    room[bytes] = '\r', room[bytes + 1] = '\n';
    return {buffer_.data(), kHead + bytes + kTail};
  }

 private:
  static constexpr size_t kRecordBytes = 16 << 10, kHead = 6, kTail = 2;

  const HttpSource& source_;
  std::vector<char> buffer_;
  bool ended_ = false;
};

}  // namespace weft::net
