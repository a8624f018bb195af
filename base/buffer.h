// Buffer: bytes with shared ownership, so that a tensor's storage, a received frame and a mapped
// file travel between folders without a copy. The bytes are not written while any Buffer holds
// them ("storage handed to a send is not written until acknowledged").
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace weft {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::vector<std::byte> bytes) {
    auto owner = std::make_shared<std::vector<std::byte>>(std::move(bytes));
    data_ = owner->data();
    size_ = owner->size();
    owner_ = std::move(owner);
  }
  // owner keeps data alive.
  Buffer(std::shared_ptr<const void> owner, const void* data, size_t size)
      : owner_(std::move(owner)), data_(static_cast<const std::byte*>(data)), size_(size) {}

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::shared_ptr<const void>& owner() const { return owner_; }

 private:
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace weft
