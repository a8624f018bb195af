// Sets of cuts as words of bits, which are intersected a word at a time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::broker {

inline constexpr size_t kWordBits = 64;

inline size_t words_for(size_t cuts) {
  return (cuts + kWordBits - 1) / kWordBits;
}

inline void set_cut(uint64_t* words, int32_t cut) {
  const auto at = static_cast<size_t>(cut);
  words[at / kWordBits] |= uint64_t{1} << (at % kWordBits);
}

inline bool has_cut(const uint64_t* words, int32_t cut) {
  const auto at = static_cast<size_t>(cut);
  return (words[at / kWordBits] >> (at % kWordBits) & 1) != 0;
}

}  // namespace weft::broker
