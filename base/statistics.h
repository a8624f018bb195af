// The middle of numbers that were measured.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace weft {

// The value of which about that share (0 to 1) are smaller; 0 of no values. Not interpolated.
template <typename T>
T quantile(std::vector<T> values, double share) {
  if (values.empty()) return T{};
  const auto at = values.begin() +
                  static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// Of an even number the upper one of the two in the middle.
template <typename T>
T median(std::vector<T> values) {
  return quantile(std::move(values), 0.5);
}

}  // namespace weft
