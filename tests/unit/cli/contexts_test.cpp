#include "cli/contexts.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "base/os/file.h"
#include "cli/api_client.h"
#include "cli/app.h"
#include "cli/local/processes.h"

namespace weft::cli {
namespace {

class ContextsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = os::Path(::testing::TempDir()) / "contexts";
    ASSERT_TRUE(os::remove_all(dir_).ok());
    ::setenv("XDG_CONFIG_HOME", dir_.c_str(), 1);
  }
  os::Path dir_;
};

TEST_F(ContextsTest, RemembersTheLastLoginAndForgets) {
  EXPECT_EQ(find_context("").error().code, Code::kNotFound);
  ASSERT_TRUE(remember_context("a", {"host-a", 1, "pin", "token-a"}).ok());
  ASSERT_TRUE(remember_context("b", {"host-b", 2, "pin", "token-b"}).ok());
  EXPECT_EQ(find_context("")->host, "host-b");
  EXPECT_EQ(find_context("a")->token, "token-a");
  ASSERT_TRUE(forget_context("b").ok());
  EXPECT_EQ(find_context("")->host, "host-a");
  ASSERT_TRUE(forget_context("a").ok());
  EXPECT_FALSE(find_context("a").ok());
}

TEST_F(ContextsTest, TokensAreReadableByTheUserOnly) {
  ASSERT_TRUE(remember_context("a", {"host", 1, "pin", "token"}).ok());
  struct stat info {};
  ASSERT_EQ(::stat((dir_ / "weft" / "contexts.json").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
}

TEST_F(ContextsTest, DamageIsReportedNotGuessed) {
  ASSERT_TRUE(os::make_directories(dir_ / "weft").ok());
  ASSERT_TRUE(os::write_file_atomic(dir_ / "weft" / "contexts.json", "{").ok());
  auto contexts = load_contexts();
  ASSERT_FALSE(contexts.ok());
  EXPECT_EQ(contexts.error().code, Code::kCorrupt);
}

TEST(ApiClient, EncodesPathSegments) {
  EXPECT_EQ(path_segment("job-1_a.b"), "job-1_a.b");
  EXPECT_EQ(path_segment("a/b ?"), "a%2Fb%20%3F");
}

TEST(Output, HumanNumbers) {
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_count(1234567), "1.2M");
  EXPECT_EQ(human_duration(59), "59 s");
  EXPECT_EQ(human_duration(3700), "1h01m");
  EXPECT_EQ(human_duration(-1), "-");
}

TEST(LocalProcess, AReusedPidIsNotOurs) {
  LocalProcess self{"peer-0", ::getpid(), "not the start time of this process"};
  EXPECT_FALSE(self.running());
}

}  // namespace
}  // namespace weft::cli
