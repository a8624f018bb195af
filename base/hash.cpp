#include "base/hash.h"

#include <openssl/evp.h>
#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // XXH3 with the widest vectors this processor has
#endif

#include <array>

namespace weft {

struct Sha256::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  WEFT_CHECK(EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> data) {
  WEFT_CHECK(EVP_DigestUpdate(impl_->context, data.data(), data.size()) == 1);
}

std::string Sha256::finish_hex() {
  std::array<std::byte, 32> digest{};
  unsigned size = 0;
  WEFT_CHECK(EVP_DigestFinal_ex(impl_->context, reinterpret_cast<unsigned char*>(digest.data()),
                                &size) == 1);
  return to_hex(digest);
}

std::string sha256_hex(std::span<const std::byte> data) {
  Sha256 hash;
  hash.update(data);
  return hash.finish_hex();
}

std::string sha256_hex(std::string_view data) {
  return sha256_hex(std::as_bytes(std::span(data.data(), data.size())));
}

uint64_t xxh3(std::span<const std::byte> data) {
  return XXH3_64bits(data.data(), data.size());
}

uint64_t xxh3(std::span<const std::byte> first, std::span<const std::byte> second) {
  struct Delete {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  thread_local const std::unique_ptr<XXH3_state_t, Delete> state(XXH3_createState());
  WEFT_CHECK(state && XXH3_64bits_reset(state.get()) == XXH_OK);
  WEFT_CHECK(XXH3_64bits_update(state.get(), first.data(), first.size()) == XXH_OK);
  WEFT_CHECK(XXH3_64bits_update(state.get(), second.data(), second.size()) == XXH_OK);
  return XXH3_64bits_digest(state.get());
}

std::string to_hex(std::span<const std::byte> data) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(data.size() * 2);
  for (std::byte b : data) {
    text += kDigits[std::to_integer<unsigned>(b) >> 4];
    text += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return text;
}

bool is_sha256_hex(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace weft
