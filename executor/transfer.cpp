#include "executor/transfer.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <utility>
#include <vector>

namespace weft::executor {
namespace {

class PassedMark final : public Transfer::Mark {
 public:
  bool passed() override { return true; }
};

class HostTransfer final : public Transfer {
 public:
  at::Tensor host_bytes(int64_t size) override { return at::empty({size}, at::kByte); }
  at::Tensor to_host(const at::Tensor& dense) override { return dense; }
  void copy_to_host(const at::Tensor& row, const at::Tensor& host) override { host.copy_(row); }
  std::unique_ptr<Mark> mark() override { return std::make_unique<PassedMark>(); }
  at::Tensor to_device(const at::Tensor& host) override { return host; }
};

class EventMark final : public Transfer::Mark {
 public:
  EventMark(const c10::Stream& stream, std::vector<at::Tensor> sources)
      : event_(stream.device_type()), sources_(std::move(sources)) {
    event_.record(stream);
  }
  bool passed() override {
    if (!passed_ && event_.query()) {
      passed_ = true;
      sources_.clear();
    }
    return passed_;
  }

 private:
  c10::Event event_;
  bool passed_ = false;
  std::vector<at::Tensor> sources_;
};

class CardTransfer final : public Transfer {
 public:
  explicit CardTransfer(at::Device device)
      : device_(device),
        guard_(device.type()),
        out_(guard_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
        in_(guard_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)) {
    // Pinned memory is made in the context of the thread's card: a second context on card 0 would
    // cost its memory.
    guard_.setDevice(device);
  }

  at::Tensor host_bytes(int64_t size) override {
    return at::empty({size}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  }

  at::Tensor to_host(const at::Tensor& dense) override {
    const at::Tensor bytes = host_bytes(static_cast<int64_t>(dense.nbytes()));
    copy_to_host(byte_row(dense), bytes);
    return bytes.view(dense.scalar_type()).as_strided(dense.sizes(), dense.strides());
  }

  void copy_to_host(const at::Tensor& row, const at::Tensor& host) override {
    if (row.numel() == 0) return;
    order(compute(), out_);
    const c10::StreamGuard stream(out_);
    host.copy_(row, /*non_blocking=*/true);
    // The allocator would give the memory of a source away as soon as it is dropped.
    sources_.push_back(row);
  }

  std::unique_ptr<Mark> mark() override {
    return std::make_unique<EventMark>(out_, std::exchange(sources_, {}));
  }

  at::Tensor to_device(const at::Tensor& host) override {
    if (!host.device().is_cpu()) return host.to(device_);
    const auto options = host.options().device(device_).pinned_memory(false);
    at::Tensor moved;
    {
      // Made on the copy stream: memory last used by the compute stream could still be read there.
      const c10::StreamGuard stream(in_);
      moved = at::empty_strided(host.sizes(), host.strides(), options);
      if (host.numel() > 0) byte_row(moved).copy_(pinned(host), /*non_blocking=*/true);
    }
    order(in_, compute());
    moved.record_stream(compute());
    return moved;
  }

 private:
  c10::Stream compute() const { return guard_.getStream(device_); }

  at::Tensor pinned(const at::Tensor& host) {
    const at::Tensor row = byte_row(host);
    if (row.is_pinned()) return row;
    const at::Tensor bytes = host_bytes(row.numel());
    std::memcpy(bytes.mutable_data_ptr(), row.const_data_ptr(), row.nbytes());
    return bytes;
  }

  at::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream out_, in_;
  std::vector<at::Tensor> sources_;  // of copies begun since the last mark
};

}  // namespace

std::unique_ptr<Transfer> Transfer::make(at::Device device) {
  if (device.is_cpu()) return std::make_unique<HostTransfer>();
  return std::make_unique<CardTransfer>(device);
}

void order(const c10::Stream& first, const c10::Stream& then) {
  c10::Event event(first.device_type());
  event.record(first);
  event.block(then);
}

Transfer& host_transfer() {
  static HostTransfer transfer;
  return transfer;
}

at::Tensor byte_row(const at::Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1}).view(at::kByte);
}

}  // namespace weft::executor
