// What the cache drops when it is too large.
#include "daemon/blob_cache.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/hash.h"
#include "tests/unit/daemon/worker_script.h"

namespace weft::daemon {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

class BlobCacheTest : public ::testing::Test {
 protected:
  // 1000 bytes, last used so many minutes ago.
  std::string put(char content, int minutes) {
    const std::string name = blobs_.put(bytes_of(std::string(1000, content))).value();
    age(blobs_.path_of(name), minutes);
    return name;
  }
  std::string put_partial(const std::string& content, size_t bytes, int minutes) {
    const std::string name = sha256_hex(content);
    EXPECT_TRUE(blobs_.append(name, 0, bytes_of(content).first(bytes)).ok());
    age(dir_ / "partial" / name, minutes);
    return name;
  }
  static void age(const os::Path& file, int minutes) {
    std::filesystem::last_write_time(
        file, std::filesystem::file_time_type::clock::now() - std::chrono::minutes(minutes));
  }

  const os::Path dir_ = testing::fresh_dir(
      std::string("cache_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
  net::BlobStore blobs_ = net::BlobStore::open(dir_).value();
};

TEST_F(BlobCacheTest, DropsWhatWasUsedLeastRecently) {
  const auto a = put('a', 50), b = put('b', 40), c = put('c', 30);
  blobs_.touch(a);  // in use again
  trim_cache(blobs_, 2999);
  EXPECT_TRUE(blobs_.has(a));
  EXPECT_FALSE(blobs_.has(b));
  EXPECT_TRUE(blobs_.has(c));
  trim_cache(blobs_, 1000);
  EXPECT_TRUE(blobs_.has(a));
  EXPECT_FALSE(blobs_.has(c));
  trim_cache(blobs_, 0);
  EXPECT_TRUE(blobs_.files().empty());
}

TEST_F(BlobCacheTest, AbandonedDownloadsCountAndGo) {
  const auto whole = put('w', 30);
  const auto old = put_partial("old" + std::string(5000, 'x'), 4000, 60);
  const auto recent = put_partial("new" + std::string(5000, 'x'), 500, 1);
  ASSERT_TRUE(os::write_file_atomic(dir_ / "partial" / "leftover", std::string(100, 'l')).ok());
  age(dir_ / "partial" / "leftover", 90);
  trim_cache(blobs_, 5599);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "partial" / "leftover"));
  EXPECT_EQ(blobs_.partial_size(old), 4000u);
  trim_cache(blobs_, 1500);
  EXPECT_EQ(blobs_.partial_size(old), 0u);
  EXPECT_TRUE(blobs_.has(whole));
  EXPECT_EQ(blobs_.partial_size(recent), 500u);
}

TEST_F(BlobCacheTest, KeepsEverythingWithinTheLimit) {
  put('a', 50);
  put('b', 40);
  trim_cache(blobs_, 2000);
  EXPECT_EQ(blobs_.list().size(), 2u);
}

}  // namespace
}  // namespace weft::daemon
