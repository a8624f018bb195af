#include "net/tls/congestion.h"

#include <gtest/gtest.h>

namespace weft::net {
namespace {

CongestionChoice begun(const std::string& granted) {
  CongestionChoice choice;
  choice.begin(granted);
  return choice;
}

TEST(CongestionChoice, OneMachineNeedsNoSearchForARate) {
  EXPECT_EQ(CongestionChoice::at_first(true), "cubic");
  EXPECT_EQ(CongestionChoice::at_first(false), "");
}

TEST(CongestionChoice, APacedConnectionThatLosesNothingNeedsNoSearchEither) {
  auto choice = begun("bbr");
  EXPECT_EQ(choice.update(10000, false, 7), "");
  EXPECT_EQ(choice.update(10300, true, 7), "");
  EXPECT_EQ(choice.update(10300 + CongestionChoice::kCalmMs - 301, true, 7), "");
  EXPECT_EQ(choice.update(10300 + CongestionChoice::kCalmMs, true, 7), "cubic");
  EXPECT_EQ(choice.current(), "cubic");
  EXPECT_EQ(choice.update(20000, true, 7), "") << "nothing to change";
}

TEST(CongestionChoice, ALossGivesTheSystemsControlBackForAWhile) {
  auto choice = begun("bbr");
  choice.update(10000, true, 0);
  ASSERT_EQ(choice.update(15000, true, 0), "cubic");
  EXPECT_EQ(choice.update(15300, true, 1), "bbr");
  EXPECT_EQ(choice.update(15300 + CongestionChoice::kWaryMs - 1, true, 1), "");
  EXPECT_EQ(choice.update(15300 + CongestionChoice::kWaryMs, true, 1), "cubic");
}

TEST(CongestionChoice, ALinkThatLosesNowAndThenNeverLeavesIt) {
  auto choice = begun("bbr");
  for (int64_t now = 1000; now < 100000; now += 300) {
    EXPECT_EQ(choice.update(now, true, static_cast<uint64_t>(now / 1200)), "");
  }
}

TEST(CongestionChoice, UnpacedItComesBackWithoutBlame) {
  auto choice = begun("bbr");
  choice.update(10000, true, 0);
  ASSERT_EQ(choice.update(15000, true, 0), "cubic");
  EXPECT_EQ(choice.update(15300, false, 0), "bbr");
  EXPECT_EQ(choice.update(15600, true, 0), "");
  EXPECT_EQ(choice.update(20000, true, 0), "cubic");
}

TEST(CongestionChoice, AnotherControlIsLeftAlone) {
  for (const char* name : {"cubic", "reno", ""}) {
    auto choice = begun(name);
    for (int64_t now = 1000; now < 100000; now += 300) EXPECT_EQ(choice.update(now, true, 0), "");
  }
}

}  // namespace
}  // namespace weft::net
