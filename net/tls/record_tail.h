// RecordTail: how much of the TLS record that has begun to arrive is still to come. A record is a
// header of five bytes, whose last two are the length of what follows (RFC 8446, 5.1).
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace weft::net {

class RecordTail {
 public:
  // All that arrives, from the first byte of the connection on, in pieces of any size.
  void received(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      if (left_ > 0) {
        const size_t part = std::min(left_, bytes.size());
        left_ -= part;
        bytes = bytes.subspan(part);
        continue;
      }
      length_ = (length_ << 8 | std::to_integer<size_t>(bytes.front())) & 0xffff;
      bytes = bytes.subspan(1);
      if (++header_ < kHeaderBytes) continue;
      left_ = length_;
      header_ = length_ = 0;
    }
  }

  // 0 between records and where the length is not known yet.
  size_t bytes_to_come() const { return left_; }

 private:
  static constexpr size_t kHeaderBytes = 5;
  size_t header_ = 0, length_ = 0, left_ = 0;
};

}  // namespace weft::net
