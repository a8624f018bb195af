// Little-endian fields of the data plane's headers. Pure; a reader that runs past its end turns
// bad and stays bad, and every value it gives from then on is zero.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace weft::net {

static_assert(std::endian::native == std::endian::little, "fields are copied as they lie");

class FieldWriter {
 public:
  explicit FieldWriter(std::vector<std::byte>& out) : out_(out) {}

  template <typename T>
  void number(T value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes({reinterpret_cast<const std::byte*>(&value), sizeof value});
  }
  void bytes(std::span<const std::byte> data) { out_.insert(out_.end(), data.begin(), data.end()); }
  // Length in 16 bits, then the bytes; longer text is cut.
  void text(const std::string& value) {
    const auto size = static_cast<uint16_t>(value.size() < 0xffff ? value.size() : 0xffff);
    number(size);
    bytes({reinterpret_cast<const std::byte*>(value.data()), size});
  }

 private:
  std::vector<std::byte>& out_;
};

class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> data) : data_(data) {}

  template <typename T>
  T number() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    const auto from = take(sizeof value);
    if (!from.empty()) std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  std::string text(size_t max_size) {
    const auto size = number<uint16_t>();
    if (size > max_size) bad_ = true;
    const auto from = take(size);
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }
  size_t left() const { return data_.size(); }
  // Everything was there and nothing is left over.
  bool complete() const { return !bad_ && data_.empty(); }
  bool bad() const { return bad_; }

 private:
  std::span<const std::byte> take(size_t size) {
    if (bad_ || size > data_.size()) {
      bad_ = true;
      return {};
    }
    const auto from = data_.first(size);
    data_ = data_.subspan(size);
    return from;
  }

  std::span<const std::byte> data_;
  bool bad_ = false;
};

}  // namespace weft::net
