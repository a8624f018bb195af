#include "base/log_limit.h"

#include <fmt/format.h>

#include <utility>

namespace weft {

std::optional<std::string> LogLimit::admit(int64_t now_ms) {
  const std::lock_guard lock(mutex_);
  if (now_ms >= period_ends_ms_) {
    period_ends_ms_ = now_ms + period_ms_;
    written_ = 0;
  }
  if (written_ == lines_) {
    ++left_out_;
    return std::nullopt;
  }
  ++written_;
  const uint64_t left_out = std::exchange(left_out_, 0);
  return left_out == 0 ? std::string() : fmt::format(" ({} more left out)", left_out);
}

}  // namespace weft
