// Digests. SHA-256 names content (blobs, certificates); XXH3 guards frames and files against
// accidents and is no defence against people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weft {

// 64 lower-case hexadecimal digits.
std::string sha256_hex(std::span<const std::byte> data);
std::string sha256_hex(std::string_view data);

// Incremental SHA-256 over chunks; finish() may be called once.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  void update(std::span<const std::byte> data);
  std::string finish_hex();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

uint64_t xxh3(std::span<const std::byte> data);
// Of the two, one behind the other.
uint64_t xxh3(std::span<const std::byte> first, std::span<const std::byte> second);

std::string to_hex(std::span<const std::byte> data);
bool is_sha256_hex(std::string_view text);

}  // namespace weft
