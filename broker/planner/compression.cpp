#include "broker/planner/compression.h"

#include <fmt/format.h>

#include <cmath>

#include "broker/planner/network.h"

namespace weft::broker {
namespace {

constexpr double kMostGrowth = 2, kHeaderBytes = 4096, kMostSeconds = 86400;

bool seconds_hold(double seconds) {
  return std::isfinite(seconds) && seconds >= 0 && seconds <= kMostSeconds;
}

bool bytes_hold(const Coded& coded, double bytes) {
  return std::isfinite(coded.wire_bytes) && coded.wire_bytes > 0 &&
         coded.wire_bytes <= kMostGrowth * bytes + kHeaderBytes;
}

}  // namespace

Compressor::Compressor(const Compression& compression)
    : policy_(compression.policy),
      name_(compression.name),
      status_(std::make_shared<Status>(Status{})) {}

Coded Compressor::ask(const Crossing& crossing) const {
  Coded coded{crossing.bytes, 0, 0, {}};
  if (!policy_ || crossing.bytes <= 0) return coded;
  Coded answer = policy_(crossing);
  if (bytes_hold(answer, crossing.bytes) && seconds_hold(answer.encode_s) &&
      seconds_hold(answer.decode_s)) {
    return answer;
  }
  if (status_->ok()) {
    *status_ = make_error(
        Code::kInvalid,
        fmt::format("compression \"{}\" answers {} wire bytes, {} s to encode and {} s to decode "
                    "for a {} {} of {} bytes",
                    name_, answer.wire_bytes, answer.encode_s, answer.decode_s,
                    dtype_name(crossing.dtype), crossing.gradient ? "gradient" : "activation",
                    crossing.bytes),
        fmt::format("mend it: wire bytes are above 0 and at most {} times the tensor's and {}, "
                    "seconds between 0 and {}",
                    kMostGrowth, kHeaderBytes, kMostSeconds));
  }
  return coded;
}

Status Compressor::status() const {
  return status_ ? *status_ : Status{};
}

Compression assumed_compression(const AssumedCodec& codec) {
  Compression compression;
  compression.name = "assumed";
  compression.assumed = fmt::format(
      "{:g} of the bytes, {}, {}", codec.ratio,
      codec.gbyte_s > 0 ? fmt::format("{:g} GB/s at either end", codec.gbyte_s)
                        : "either end as fast as its memory moves them twice",
      codec.below_mbit_s > 0 ? fmt::format("on ways below {:g} Mbit/s", codec.below_mbit_s)
                             : "wherever a message arrives sooner so");
  const double limit_s = seconds_per_byte_at(codec.below_mbit_s);
  compression.policy = [codec, limit_s](const Crossing& crossing) {
    const Coded plain{crossing.bytes, 0, 0, {}};
    if (!dtype_is_floating(crossing.dtype)) return plain;
    const auto seconds = [&](const MemorySpeed& speed) {
      return codec.gbyte_s > 0 ? crossing.bytes / (1e9 * codec.gbyte_s)
                               : speed.op_s + 2 * crossing.bytes * speed.byte_s;
    };
    const Coded coded{codec.ratio * crossing.bytes, seconds(crossing.sender),
                      seconds(crossing.receiver), "assumed"};
    const double saved_s = (1 - codec.ratio) * crossing.bytes * crossing.byte_s;
    const bool pays =
        limit_s > 0 ? crossing.byte_s > limit_s : coded.encode_s + coded.decode_s < saved_s;
    return pays ? coded : plain;
  };
  return compression;
}

}  // namespace weft::broker
