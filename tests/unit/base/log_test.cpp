// Log lines: what a stranger's text can do to them, and how many he can cause.
#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log_limit.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

std::string written(bool json, const std::string& text) {
  log_init("log-test", LogLevel::kInfo, json);
  ::testing::internal::CaptureStderr();
  log_warning("{}", text);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, ARecordIsOneLineWithoutControlCharacters) {
  const std::string text = "a\nb\rc\x1b[2Jd\x7f" + std::string(1, '\0') + "e\t";
  const std::string plain = written(false, text), json = written(true, text);
  EXPECT_THAT(plain, HasSubstr("a b c [2Jd  e "));
  EXPECT_EQ(std::count_if(plain.begin(), plain.end(), [](char c) { return c < 0x20 || c == 0x7f; }),
            1);
  EXPECT_EQ(std::count_if(json.begin(), json.end(), [](char c) { return c < 0x20; }), 1);
  EXPECT_THAT(json, HasSubstr("a\\u000ab"));
}

TEST(LogLimit, ANumberOfLinesAPeriodAndACountOfTheRest) {
  LogLimit limit(2, 1000);
  EXPECT_EQ(limit.admit(-5), "");
  EXPECT_EQ(limit.admit(0), "");
  for (int i = 0; i < 7; ++i) EXPECT_EQ(limit.admit(i), std::nullopt);
  EXPECT_EQ(limit.admit(994), std::nullopt);
  EXPECT_EQ(limit.admit(995), " (8 more left out)");
  EXPECT_EQ(limit.admit(996), "");
  EXPECT_EQ(limit.admit(1000), std::nullopt);
  EXPECT_EQ(limit.admit(9000), " (1 more left out)");
}

}  // namespace
}  // namespace weft
