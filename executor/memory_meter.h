// MemoryMeter: bytes of tensor memory allocated by the calling thread while a meter is active,
// through libtorch's own allocator reports (CPU and CUDA). Lets several stages of one process be
// measured apart. One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include <c10/util/ThreadLocalDebugInfo.h>
#include "executor/aten.h"

namespace weft::executor {

class MemoryMeter final : public c10::MemoryReportingInfoBase {
 public:
  // Counts what happens while it lives. A memory freed outside is not noticed.
  class Scope {
   public:
    explicit Scope(std::shared_ptr<MemoryMeter> meter)
        : guard_(c10::DebugInfoKind::PROFILER_STATE, std::move(meter)) {}

   private:
    c10::DebugInfoGuard guard_;
  };

  void reportMemoryUsage(void* /*pointer*/, int64_t bytes, size_t /*total_allocated*/,
                         size_t /*total_reserved*/, c10::Device /*device*/) override {
    current_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, current_bytes_);
  }
  void reportOutOfMemory(int64_t, size_t, size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return true; }

  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  int64_t current_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace weft::executor
