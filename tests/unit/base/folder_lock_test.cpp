#include "base/os/folder_lock.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace weft::os {
namespace {

Path fresh_dir(const char* name) {
  const Path dir = Path(::testing::TempDir()) / name;
  EXPECT_TRUE(os::remove_all(dir).ok());
  EXPECT_TRUE(make_directories(dir).ok());
  return dir;
}

TEST(FolderLock, NamesWhoHoldsItAndEndsWithItsObject) {
  const Path dir = fresh_dir("weft_folder_lock");
  {
    const auto held = FolderLock::take(dir);
    ASSERT_TRUE(held.ok());
    const auto second = FolderLock::take(dir);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().code, Code::kExists);
    const std::string text = second.error().text();
    EXPECT_NE(text.find(fmt::format("process {}", ::getpid())), std::string::npos) << text;
    EXPECT_NE(text.find(dir.string()), std::string::npos) << text;
    EXPECT_FALSE(second.error().next.empty());
  }
  EXPECT_TRUE(FolderLock::take(dir).ok());
}

TEST(FolderLock, AStrangeLockFileIsNoHarm) {
  const Path dir = fresh_dir("weft_folder_lock_strange");
  for (const char* text : {"", "-7", "no number", "99999999999999999999"}) {
    ASSERT_TRUE(write_file_atomic(dir / "lock", std::string_view(text)).ok());
    const auto held = FolderLock::take(dir);
    ASSERT_TRUE(held.ok()) << text;
    EXPECT_FALSE(FolderLock::take(dir).ok());
  }
  EXPECT_EQ(FolderLock::take(dir / "absent").error().code, Code::kIo);
}

TEST(TemporaryFolder, IsNewAndPrivate) {
  const auto first = make_temporary_directory("weft-test-");
  const auto second = make_temporary_directory("weft-test-");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(*first, *second);
  EXPECT_EQ(std::filesystem::status(*first).permissions(), std::filesystem::perms::owner_all);
  EXPECT_TRUE(os::remove_all(*first).ok() && os::remove_all(*second).ok());
  EXPECT_FALSE(make_temporary_directory("absent/deeper/").ok());
}

}  // namespace
}  // namespace weft::os
