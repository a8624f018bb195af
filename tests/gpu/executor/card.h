// What tests on a card have in common: they skip where there is none.
#pragma once

#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace weft::executor::testing {

// Base: ::testing::Test, or ::testing::TestWithParam. A SetUp of its own asks IsSkipped().
template <typename Base = ::testing::Test>
class OnCard : public Base {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) {
      GTEST_SKIP()
          << "no CUDA device, or built with WEFT_CUDA=OFF: scripts/gpu_check.sh runs these";
    }
  }
};

}  // namespace weft::executor::testing
