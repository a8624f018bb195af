#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/os/process.h"
#include "executor/measure.h"
#include "executor/worker.h"
#include "executor/worker_jail.h"
#include "job/json_read.h"

namespace weft::executor {
namespace {

constexpr const char* kUsage =
    "usage: weft-worker measure [--device cpu|cuda:N] [--threads N] [--seconds S]\n";

Result<MeasureOptions> parse(int argc, char** argv) {
  MeasureOptions options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    const bool is_number = !value.empty() && *end == '\0';
    if (flag == "--device" && !value.empty()) {
      options.device = value;
    } else if (flag == "--threads" && is_number && number >= 1 && number <= 1024) {
      options.threads = static_cast<int32_t>(number);
    } else if (flag == "--seconds" && is_number && number > 0 && number <= 600) {
      options.seconds = number;
    } else {
      return make_error(Code::kInvalid, fmt::format("{} {} is not understood", flag, value));
    }
  }
  return options;
}

Result<job::DeviceProfile> measure_jailed(const MeasureOptions& options, os::JailMode jail) {
  // Files of the system that a jailed process does not read.
  const std::string processor = os::processor_name();
  const uint64_t available = os::available_memory_bytes();
  WEFT_TRY_STATUS(enter_command_jail(jail, {}, {}, options.device));
  WEFT_TRY_STATUS(configure_torch(options.threads));
  WEFT_TRY(job::DeviceProfile profile, measure_device(options));
  if (options.device == "cpu") {
    profile.device_name = processor;
    profile.memory_free_bytes = available;
  }
  return profile;
}

}  // namespace

int measure_command(int argc, char** argv, os::JailMode jail) {
  const auto options = parse(argc, argv);
  if (!options.ok()) {
    fmt::print(stderr, "weft-worker measure: {}\n{}", options.error().message, kUsage);
    return kExitUsage;
  }
  const auto profile = measure_jailed(*options, jail);
  if (!profile.ok()) {
    fmt::print(stderr, "weft-worker measure: {}\n", profile.error().text());
    return kExitFailed;
  }
  fmt::print("{}\n", job::json_line(job::profile_to_json(*profile)));
  return kExitFinished;
}

}  // namespace weft::executor
