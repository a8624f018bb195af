#include "job/device_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "job/json_read.h"

namespace weft::job {
namespace {

using nlohmann::json;

constexpr int64_t kFormat = 1;
// No device does more, none that is of use does less.
constexpr double kMostOpUs = 1e6, kLeastOpUs = 1e-6, kMostGflops = 1e7, kLeastGflops = 1e-3;
constexpr double kMostGbyteS = 1e5, kLeastGbyteS = 1e-4;
constexpr double kMostError = 1e6;

// So many digits that writing what was read gives the same text.
double rounded(double value) {
  return std::strtod(fmt::format("{:.9g}", value).c_str(), nullptr);
}

// A rate as people read it; null where the coefficient is zero, or what a fit leaves of noise
// beyond what any device does: the term costs nothing.
json rate(double seconds_each, double least, double most) {
  const double billions = seconds_each > 0 ? 1e-9 / seconds_each : most + 1;
  return billions <= most ? json(rounded(std::max(billions, least))) : json(nullptr);
}

json cost_to_json(const OpCost& cost, double error) {
  // A pass too short to be timed takes something all the same.
  const double op_us = std::clamp(cost.op_s * 1e6, kLeastOpUs, kMostOpUs);
  return {{"op_us", rounded(op_us)},
          {"gflops", rate(cost.flop_s, kLeastGflops, kMostGflops)},
          {"gbyte_s", rate(cost.byte_s, kLeastGbyteS, kMostGbyteS)},
          {"error", std::min(error, kMostError)}};
}

json costs_to_json(const MeasuredCosts& measured) {
  json classes = json::object();
  for (size_t i = 0; i < kOpClasses; ++i) {
    const MeasuredCosts::Errors& errors = measured.errors[i];
    if (errors.samples == 0) continue;
    const ClassCost& cost = measured.costs[i];
    classes[std::string(op_class_name(static_cast<OpClass>(i)))] = {
        {"forward", cost_to_json(cost.forward, errors.forward)},
        {"backward", cost_to_json(cost.backward, errors.backward)},
        {"samples", errors.samples}};
  }
  return classes;
}

// A number within bounds; absent or null: `otherwise`.
double bounded(JsonReader& reader, const json& object, const char* name, double least, double most,
               double otherwise) {
  double value = std::nan("");
  reader.number(name, value);
  if (std::isnan(value)) {
    const auto found = object.find(name);
    if (found == object.end() || found->is_null()) return otherwise;
  }
  if (!(value >= least && value <= most)) {
    reader.fail(make_error(
        Code::kInvalid, fmt::format("{} is {}, expected {:g} to {:g}", name, value, least, most)));
    return otherwise;
  }
  return value;
}

Status cost_from_json(const json* object, const std::string& what, OpCost& cost, double& error) {
  if (object == nullptr) return make_error(Code::kInvalid, fmt::format("{} is missing", what));
  JsonReader reader(*object, what);
  cost.op_s = bounded(reader, *object, "op_us", 0, kMostOpUs, 0) * 1e-6;
  const double gflops = bounded(reader, *object, "gflops", kLeastGflops, kMostGflops, 0);
  const double gbyte_s = bounded(reader, *object, "gbyte_s", kLeastGbyteS, kMostGbyteS, 0);
  if (gflops > 0) cost.flop_s = 1e-9 / gflops;
  if (gbyte_s > 0) cost.byte_s = 1e-9 / gbyte_s;
  error = bounded(reader, *object, "error", 0, kMostError, 0);
  if (reader.ok() && cost.op_s == 0 && gflops == 0 && gbyte_s == 0) {
    reader.fail(make_error(Code::kInvalid, fmt::format("{} costs nothing at all", what)));
  }
  return reader.status();
}

Status class_from_json(const json& object, const std::string& what, ClassCost& cost,
                       MeasuredCosts::Errors& errors) {
  JsonReader reader(object, what);
  reader.integer("samples", errors.samples, 1, 10000);
  const json* forward = reader.object("forward");
  const json* backward = reader.object("backward");
  WEFT_TRY_STATUS(reader.status());
  WEFT_TRY_STATUS(cost_from_json(forward, what + ".forward", cost.forward, errors.forward));
  return cost_from_json(backward, what + ".backward", cost.backward, errors.backward);
}

Status costs_from_json(const json* classes, const std::string& what, MeasuredCosts& measured) {
  if (classes == nullptr) return make_error(Code::kInvalid, fmt::format("{} is missing", what));
  for (size_t i = 0; i < kOpClasses; ++i) {
    const std::string name(op_class_name(static_cast<OpClass>(i)));
    const auto found = classes->find(name);
    if (found == classes->end()) continue;
    WEFT_TRY_STATUS(
        class_from_json(*found, what + "." + name, measured.costs[i], measured.errors[i]));
    if (measured.errors[i].samples == 0) {
      return make_error(Code::kInvalid, fmt::format("{}.{} has no samples", what, name));
    }
  }
  const auto common = static_cast<size_t>(OpClass::kElementwise);
  if (measured.errors[common].samples == 0 ||
      measured.errors[static_cast<size_t>(OpClass::kMatrix)].samples == 0) {
    return make_error(Code::kInvalid,
                      fmt::format("{} lacks the classes matrix and elementwise", what));
  }
  for (size_t i = 0; i < kOpClasses; ++i) {
    if (measured.errors[i].samples > 0) continue;
    measured.costs[i] =
        measured.costs[is_product(static_cast<OpClass>(i)) ? static_cast<size_t>(OpClass::kMatrix)
                                                           : common];
  }
  return {};
}

}  // namespace

json profile_to_json(const DeviceProfile& profile) {
  const auto speed = [](double gbyte_s) { return gbyte_s > 0 ? json(gbyte_s) : json(nullptr); };
  return {{"format", kFormat},
          {"device", profile.device},
          {"device_name", profile.device_name},
          {"version", profile.version},
          {"threads", profile.threads},
          {"memory_total_bytes", profile.memory_total_bytes},
          {"memory_free_bytes", profile.memory_free_bytes},
          {"to_device_gbyte_s", speed(profile.to_device_gbyte_s)},
          {"from_device_gbyte_s", speed(profile.from_device_gbyte_s)},
          {"seconds", profile.seconds},
          {"measured_ms", profile.measured_ms},
          {"fp32", costs_to_json(profile.fp32)},
          {"bf16", costs_to_json(profile.bf16)}};
}

Result<DeviceProfile> profile_from_json(const json& object) {
  DeviceProfile profile;
  JsonReader reader(object, "the profile");
  int64_t format = 0;
  reader.integer("format", format);
  if (reader.ok() && format != kFormat) {
    reader.fail(make_error(Code::kInvalid,
                           fmt::format("the profile has format {}, expected {}", format, kFormat)));
  }
  reader.text("device", profile.device, 256);
  reader.text("device_name", profile.device_name, 1024);
  reader.text("version", profile.version, 256);
  reader.integer("threads", profile.threads, 1, 4096);
  reader.integer("memory_total_bytes", profile.memory_total_bytes, 0);
  reader.integer("memory_free_bytes", profile.memory_free_bytes, 0);
  reader.integer("measured_ms", profile.measured_ms, 0);
  WEFT_TRY_STATUS(reader.status());
  profile.to_device_gbyte_s =
      bounded(reader, object, "to_device_gbyte_s", kLeastGbyteS, kMostGbyteS, 0);
  profile.from_device_gbyte_s =
      bounded(reader, object, "from_device_gbyte_s", kLeastGbyteS, kMostGbyteS, 0);
  profile.seconds = bounded(reader, object, "seconds", 0, 86400, 0);
  const json* fp32 = reader.object("fp32");
  const json* bf16 = reader.object("bf16");
  WEFT_TRY_STATUS(reader.status());
  WEFT_TRY_STATUS(costs_from_json(fp32, "fp32", profile.fp32));
  WEFT_TRY_STATUS(costs_from_json(bf16, "bf16", profile.bf16));
  return profile;
}

PassSeconds seconds_of(const Work& work, const DeviceProfile& profile, Precision precision) {
  const bool half = precision == Precision::kBf16 || precision == Precision::kFp16;
  PassSeconds seconds = seconds_of(work, half ? profile.bf16.costs : profile.fp32.costs);
  if (precision == Precision::kFp64) {
    seconds.forward *= 2;
    seconds.backward *= 2;
  }
  return seconds;
}

}  // namespace weft::job
