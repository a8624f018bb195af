#include "net/frame/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <new>
#include <vector>

namespace weft::net {
namespace {

constexpr std::align_val_t kAlignment{64};  // what vector units and torch like

std::byte* allocate(size_t size) {
  return static_cast<std::byte*>(::operator new(size, kAlignment, std::nothrow));
}

void free_bytes(std::byte* data) {
  ::operator delete(data, kAlignment);
}

// Sizes are rounded up to an eighth of their power of two, so that messages of nearly one size
// share storage and at most an eighth is wasted.
size_t rounded(size_t size) {
  const size_t step = std::bit_floor(size) / 8;
  return (size + step - 1) / step * step;
}

}  // namespace

struct BufferPool::State {
  explicit State(size_t max) : max_idle_bytes(max) {}
  ~State() {
    for (const Idle& idle : free) free_bytes(idle.data);
  }

  std::byte* find(size_t capacity) {
    const std::lock_guard lock(mutex);
    const auto found = std::find_if(free.rbegin(), free.rend(),
                                    [&](const Idle& idle) { return idle.capacity == capacity; });
    if (found == free.rend()) return nullptr;
    std::byte* data = found->data;
    idle_bytes -= capacity;
    free.erase(std::next(found).base());
    return data;
  }

  void keep(std::byte* data, size_t capacity) {
    std::vector<Idle> dropped;
    {
      const std::lock_guard lock(mutex);
      free.push_back({data, capacity, trims});
      idle_bytes += capacity;
      while (idle_bytes > max_idle_bytes) drop_oldest(dropped);
    }
    for (const Idle& idle : dropped) free_bytes(idle.data);
  }

  void trim() {
    std::vector<Idle> dropped;
    {
      const std::lock_guard lock(mutex);
      // In order of age: the list is only pushed to at its end.
      while (!free.empty() && free.front().since < trims) drop_oldest(dropped);
      ++trims;
    }
    for (const Idle& idle : dropped) free_bytes(idle.data);
  }

  struct Idle {
    std::byte* data = nullptr;
    size_t capacity = 0;
    uint64_t since = 0;  // trims before it was freed
  };
  void drop_oldest(std::vector<Idle>& dropped) {
    dropped.push_back(free.front());
    idle_bytes -= free.front().capacity;
    free.erase(free.begin());
  }

  const size_t max_idle_bytes;
  mutable std::mutex mutex;
  std::vector<Idle> free;
  size_t idle_bytes = 0;
  uint64_t trims = 0;
};

BufferPool::BufferPool(size_t max_idle_bytes) : state_(std::make_shared<State>(max_idle_bytes)) {}

std::shared_ptr<std::byte> BufferPool::take(uint64_t size) {
  if (size < kMinPooledBytes || size > state_->max_idle_bytes) {
    return {allocate(size), free_bytes};
  }
  const size_t capacity = rounded(size);
  std::byte* data = state_->find(capacity);
  if (!data) data = allocate(capacity);
  if (!data) return nullptr;
  return {data, [state = state_, capacity](std::byte* p) { state->keep(p, capacity); }};
}

void BufferPool::trim() {
  state_->trim();
}

size_t BufferPool::idle_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->idle_bytes;
}

}  // namespace weft::net
