#include "executor/device_memory.h"

#include <fmt/format.h>

#include <cstdlib>
#include <optional>

#include "base/log.h"
#include "base/os/own_process.h"
#include "base/os/process.h"
#include "executor/convert.h"
#include "job/device_profile.h"

// After the others: the allocator of whatever accelerator is there.
#include <ATen/DeviceAccelerator.h>
#include <c10/core/AllocatorConfig.h>

namespace weft::executor {
namespace {

std::optional<at::Device> card_of(const std::string& device) {
  if (!job::is_card(device)) return std::nullopt;
  const c10::Device card(device);
  if (card.is_cpu()) return std::nullopt;
  return at::Device(card.type(), card.has_index() ? card.index() : c10::DeviceIndex{0});
}

}  // namespace

void use_expandable_segments() {
  for (const char* own : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    if (std::getenv(own) != nullptr) return;
  }
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
}

Result<uint64_t> card_memory_bytes(at::Device card) {
  try {
    at::globalContext().lazyInitDevice(card.type());
    return at::getDeviceAllocator(card.type())->getMemoryInfo(card.index()).second;
  } catch (const std::exception& error) {
    return make_error(
        Code::kUnavailable,
        fmt::format("asking {} for its memory: {}", card.str(), exception_text(error)),
        "check that the card works (nvidia-smi), or run on the CPU");
  }
}

Result<uint64_t> total_memory_bytes(const std::string& device, const CardMemory& of_card) {
  try {
    const auto card = card_of(device);
    return card ? of_card(*card) : Result<uint64_t>(os::total_memory_bytes());
  } catch (const std::exception& error) {
    return make_error(Code::kInvalid, fmt::format("device {}: {}", device, exception_text(error)));
  }
}

Result<uint64_t> free_memory_bytes(const std::string& device) {
  try {
    const auto card = card_of(device);
    if (!card) return uint64_t{0};
    at::globalContext().lazyInitDevice(card->type());
    return at::getDeviceAllocator(card->type())->getMemoryInfo(card->index()).first;
  } catch (const std::exception& error) {
    return make_error(Code::kUnavailable, fmt::format("asking {} for its free memory: {}", device,
                                                      exception_text(error)));
  }
}

int64_t peak_memory_bytes(const std::string& device) {
  try {
    if (const auto card = card_of(device)) {
      const auto stats = at::getDeviceAllocator(card->type())->getDeviceStats(card->index());
      constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
      return stats.reserved_bytes[kAll].peak;
    }
  } catch (const std::exception& error) {
    log_debug("no memory statistics of {}: {}", device, exception_text(error));
  }
  return os::peak_resident_bytes();
}

}  // namespace weft::executor
