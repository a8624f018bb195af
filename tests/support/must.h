// must: the value of a Result that a test relies on; an error is thrown with its text.
#pragma once

#include <stdexcept>
#include <utility>

#include "base/result.h"

namespace weft::executor::testing {

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().text());
  return std::move(result).value();
}

}  // namespace weft::executor::testing
