// AutocastGuard: autocast on this thread while it lives, if there is a type. The weight cache is
// off, because it would keep casts of one micro-batch's graph alive into the next.
#pragma once

#include <optional>

#include "executor/aten.h"

#include <ATen/autocast_mode.h>

namespace weft::executor {

class AutocastGuard {
 public:
  AutocastGuard(std::optional<at::ScalarType> type, at::DeviceType device)
      : on_(type.has_value()), device_(device) {
    if (!on_) return;
    enabled_ = at::autocast::is_autocast_enabled(device_);
    dtype_ = at::autocast::get_autocast_dtype(device_);
    cache_ = at::autocast::is_autocast_cache_enabled();
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, *type);
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~AutocastGuard() {
    if (!on_) return;
    at::autocast::set_autocast_enabled(device_, enabled_);
    at::autocast::set_autocast_dtype(device_, dtype_);
    at::autocast::set_autocast_cache_enabled(cache_);
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  bool on_, enabled_ = false, cache_ = true;
  at::DeviceType device_;
  at::ScalarType dtype_ = at::kFloat;
};

}  // namespace weft::executor
