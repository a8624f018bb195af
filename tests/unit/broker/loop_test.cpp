#include "broker/loop.h"

#include <gtest/gtest.h>

#include <vector>

namespace weft::broker {
namespace {

TEST(Loop, WhatWasPostedBeforeTheStartRunsFirstAndInOrder) {
  std::vector<int> seen;
  Loop loop("weft-test");
  for (int i = 0; i < 3; ++i) loop.post([&seen, i] { seen.push_back(i); });
  EXPECT_TRUE(seen.empty());
  loop.start();
  loop.post([&seen] { seen.push_back(3); });
  loop.stop();
  EXPECT_EQ(seen, (std::vector<int>{0, 1, 2, 3}));
}

TEST(Loop, OneThatNeverStartedRunsNothing) {
  bool ran = false;
  {
    Loop loop("weft-test");
    loop.post([&ran] { ran = true; });
  }
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace weft::broker
