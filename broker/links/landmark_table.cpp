#include "broker/links/landmark_table.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace weft::broker {

LandmarkTable::LandmarkTable(const Structure& structure, const std::vector<size_t>& landmarks,
                             const std::vector<size_t>& sites)
    : marks_(landmarks.size()),
      seconds_(structure.sites() * landmarks.size(), std::numeric_limits<double>::quiet_NaN()) {
  for (const size_t site : sites) {
    for (size_t k = 0; k < marks_; ++k) {
      const auto latency = structure.site_latency_s(site, landmarks[k]);
      if (latency) seconds_[site * marks_ + k] = *latency;
    }
  }
}

LandmarkTable::Bounds LandmarkTable::bounds(size_t site_a, size_t site_b) const {
  Bounds result{0, 1e9, 0};
  for (size_t k = 0; k < marks_; ++k) {
    const double a = latency_s(site_a, k), b = latency_s(site_b, k);
    if (std::isnan(a) || std::isnan(b)) continue;
    ++result.landmarks;
    result.low_s = std::max(result.low_s, std::abs(a - b));
    result.high_s = std::min(result.high_s, a + b);
  }
  result.low_s = std::min(result.low_s, result.high_s);
  return result;
}

}  // namespace weft::broker
