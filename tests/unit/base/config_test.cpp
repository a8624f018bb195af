#include "base/config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "base/os/file.h"

namespace weft {
namespace {

Config sample() {
  return Config("WEFTTEST", {{"broker", SettingType::kString, "localhost:1", "where"},
                             {"heartbeat_ms", SettingType::kInt, "1000", "how often", 10, 60000},
                             {"json_log", SettingType::kBool, "false", "logs"},
                             {"state_dir", SettingType::kPath, "~/x", "files"},
                             {"token", SettingType::kString, "", "secret", 0, 0, true}});
}

std::string written(const std::string& text) {
  const std::string path = ::testing::TempDir() + fmt::format("/config_{}.toml", ::getpid());
  EXPECT_TRUE(os::write_file_atomic(path, text).ok());
  return path;
}

class ConfigTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"WEFTTEST_HEARTBEAT_MS", "WEFTTEST_JSON_LOG"}) ::unsetenv(name);
  }
};

TEST_F(ConfigTest, PrecedenceDoesNotDependOnTheOrderOfLoading) {
  Config config = sample();
  EXPECT_EQ(config.integer("heartbeat_ms"), 1000);
  EXPECT_EQ(config.origin("heartbeat_ms"), "default");
  ASSERT_TRUE(config.set_flag("--heartbeat-ms", "40").ok());
  ::setenv("WEFTTEST_HEARTBEAT_MS", "30", 1);
  ::setenv("WEFTTEST_JSON_LOG", "yes", 1);
  ASSERT_TRUE(config.load_environment().ok());
  const std::string path = written("heartbeat_ms = 20\njson_log = false\nbroker = \"b:2\"\n");
  ASSERT_TRUE(config.load_file(path).ok());
  EXPECT_EQ(config.integer("heartbeat_ms"), 40);
  EXPECT_EQ(config.origin("heartbeat_ms"), "flag");
  EXPECT_TRUE(config.boolean("json_log"));
  EXPECT_EQ(config.origin("json_log"), "environment WEFTTEST_JSON_LOG");
  EXPECT_EQ(config.text("broker"), "b:2");
  EXPECT_EQ(config.origin("broker"), "file " + path);
}

TEST_F(ConfigTest, UnknownNamesAreRefusedWithTheNearest) {
  Config config = sample();
  const Status flag = config.set_flag("hartbeat-ms", "5");
  ASSERT_FALSE(flag.ok());
  EXPECT_NE(flag.error().text().find("did you mean \"heartbeat_ms\""), std::string::npos);
  const Status file = config.load_file(written("brokre = \"x\"\n"));
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.error().text().find("broker"), std::string::npos);
  EXPECT_FALSE(config.load_file(written("[table]\nbroker = 1\n")).ok());
  const Status syntax = config.load_file(written("broker = \n"));
  ASSERT_FALSE(syntax.ok());
  EXPECT_NE(syntax.error().message.find("line 1"), std::string::npos);
  EXPECT_EQ(config.load_file("/nonexistent.toml").error().code, Code::kNotFound);
}

TEST_F(ConfigTest, ValuesAreCheckedAgainstTypeAndBounds) {
  Config config = sample();
  for (const char* bad : {"9", "60001", "1e3", "", "12x", "99999999999999999999"}) {
    EXPECT_FALSE(config.set_flag("heartbeat_ms", bad).ok()) << bad;
  }
  EXPECT_TRUE(config.set_flag("heartbeat_ms", "60000").ok());
  EXPECT_FALSE(config.set_flag("json_log", "maybe").ok());
  EXPECT_FALSE(config.load_file(written("heartbeat_ms = 1.5\n")).ok());
}

TEST_F(ConfigTest, ShowIsAFileAgainAndHidesSecrets) {
  Config config = sample();
  ::setenv("HOME", "/home/someone", 1);
  ASSERT_TRUE(config.set_flag("state_dir", "~/weft").ok());
  ASSERT_TRUE(config.set_flag("token", "abc").ok());
  ASSERT_TRUE(config.set_flag("broker", "a\"b").ok());
  const std::string text = config.show(true);
  EXPECT_NE(text.find("heartbeat_ms = 1000  # default\n"), std::string::npos);
  EXPECT_NE(text.find("state_dir = \"/home/someone/weft\"  # flag\n"), std::string::npos);
  EXPECT_EQ(text.find("abc"), std::string::npos);
  Config copy = sample();
  ASSERT_TRUE(copy.load_file(written(text)).ok());
  EXPECT_EQ(copy.text("broker"), "a\"b");
  EXPECT_EQ(Config::flag_name("heartbeat_ms"), "--heartbeat-ms");
}

TEST(NearestName, FindsWhatWasMeantAndNothingElse) {
  const std::vector<std::string> names = {"steps", "batch", "lr", "warmup_steps", "weight_decay"};
  EXPECT_EQ(nearest_name("stpes", names), "steps");
  EXPECT_EQ(nearest_name("warmup", names), "warmup_steps");
  EXPECT_EQ(nearest_name("weightdecay", names), "weight_decay");
  EXPECT_EQ(nearest_name("rl", names), "lr");
  EXPECT_EQ(nearest_name("colour", names), std::nullopt);
  EXPECT_EQ(nearest_name("", names), std::nullopt);
  EXPECT_EQ(nearest_name(std::string(1 << 20, 'x'), names), std::nullopt);
}

}  // namespace
}  // namespace weft
