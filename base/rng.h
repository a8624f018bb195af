// Seeded randomness that every platform reproduces bit for bit: std::uniform_* are not specified
// exactly by the standard, these are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace weft {

// One step of splitmix64 (Steele, Lea, Flood 2014): a bijective mixer of 64 bits.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// The high 64 bits of a 128-bit product.
constexpr uint64_t high64(uint64_t a, uint64_t b) {
  const uint64_t a_low = a & 0xffffffffu, a_high = a >> 32;
  const uint64_t b_low = b & 0xffffffffu, b_high = b >> 32;
  const uint64_t middle = a_high * b_low + ((a_low * b_low) >> 32);
  const uint64_t middle_low = (middle & 0xffffffffu) + a_low * b_high;
  return a_high * b_high + (middle >> 32) + (middle_low >> 32);
}

// A seed derived from a list of numbers, e.g. (job seed, step, micro-batch, node id); order counts.
constexpr uint64_t derive_seed(std::initializer_list<uint64_t> parts) {
  uint64_t seed = 0;
  for (uint64_t part : parts) seed = mix64(seed ^ mix64(part));
  return seed;
}

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}
  uint64_t next() { return mix64(state_ += 0x9e3779b97f4a7c15ull); }
  // Uniform in [0, bound); bound > 0. Lemire's multiply-shift; bias below bound / 2^64.
  uint64_t below(uint64_t bound) { return high64(next(), bound); }
  // Uniform in [0, 1) with 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  uint64_t state_;
};

}  // namespace weft
