// DeviceProfile: how fast one device runs operators, as `weft-worker measure` found it. Made by a
// worker, kept by its daemon, sent to the broker, planned with. One JSON object.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "job/spec.h"
#include "job/work.h"

namespace weft::job {

// Costs of one precision and how well they fit what was measured.
struct MeasuredCosts {
  OpCosts costs;
  struct Errors {
    double forward = 0, backward = 0;  // medians of |fitted / measured - 1|
    int32_t samples = 0;
  };
  std::array<Errors, kOpClasses> errors;
};

struct DeviceProfile {
  std::string device;       // "cpu", "cuda:0"
  std::string device_name;  // "NVIDIA H100", or the processor's model
  std::string version;      // of weft
  int32_t threads = 1;      // compute threads it was measured with
  uint64_t memory_total_bytes = 0, memory_free_bytes = 0;
  double to_device_gbyte_s = 0, from_device_gbyte_s = 0;  // 0: the device is the host
  double seconds = 0;                                     // the measuring took
  int64_t measured_ms = 0;   // when, Unix time by its daemon's clock; 0: an older daemon's
  MeasuredCosts fp32, bf16;  // bf16: with autocast, per byte of the fp32 export
};

// Whether a device has memory of its own; one that is not told counts as the host.
inline bool is_card(std::string_view device) {
  return !device.empty() && device != "cpu";
}

inline constexpr size_t kMaxProfileBytes = 64 * 1024;

nlohmann::json profile_to_json(const DeviceProfile& profile);
// kInvalid for what is malformed, of another format, or no device could do: the error names the
// member. A class nobody measured costs what the elementwise one does, convolution
// and attention what products do.
Result<DeviceProfile> profile_from_json(const nlohmann::json& json);

// fp16 counts as bf16, fp64 as twice fp32.
PassSeconds seconds_of(const Work& work, const DeviceProfile& profile, Precision precision);

}  // namespace weft::job
