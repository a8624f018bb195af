// BufferPool: storage for messages that arrive. A large message freed is kept for the next of its
// size, the latest first: its pages are mapped and likely still in a cache, where fresh ones cost a
// fault each. What trim() finds unused since the trim before is given back to the system.
//
// A handle: copies share one pool, and storage may outlive them all. Any thread may drop storage
// (the compute thread drops what it consumed), so a mutex is inside, held for list operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace weft::net {

class BufferPool {
 public:
  static constexpr size_t kMinPooledBytes = 256 * 1024;  // below, the allocator is as good
  // Free storage kept at most, a pool: larger messages are not pooled.
  static constexpr size_t kMaxIdleBytes = size_t{128} << 20;

  explicit BufferPool(size_t max_idle_bytes = kMaxIdleBytes);

  // Uninitialised, aligned to 64 bytes; null: no memory. Fresh pages become resident only as they
  // are written.
  std::shared_ptr<std::byte> take(uint64_t size);
  void trim();
  size_t idle_bytes() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::net
