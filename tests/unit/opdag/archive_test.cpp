#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/rng.h"
#include "opdag/import.h"
#include "tests/support/zip_writer.h"

namespace weft::opdag {
namespace {

using ::testing::HasSubstr;
using weft::testing::ZipWriter;

std::string path_for(const std::string& name) {
  return ::testing::TempDir() + "archive_" + name;
}

Result<Archive> open_bytes(const std::string& bytes, const std::string& name = "test.pt2") {
  return Archive::open(ZipWriter::write(path_for(name), bytes));
}

std::string text(const Buffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.data()), buffer.size()};
}

// The largest resident size so far.
uint64_t peak_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss);
}

ZipWriter sample() {
  ZipWriter zip;
  zip.add("m/models/model.json", std::string(5000, 'j'), true);
  zip.add("m/data/weights/weight_0", "0123456789abcdef");
  zip.add("m/empty", "");
  return zip;
}

void expect_corrupt(const ZipWriter& zip, const std::string& message) {
  const auto archive = open_bytes(zip.finish());
  ASSERT_FALSE(archive.ok());
  EXPECT_EQ(archive.error().code, Code::kCorrupt);
  EXPECT_THAT(archive.error().message, HasSubstr(message));
}

TEST(Archive, ReadsStoredAndDeflatedEntries) {
  const auto archive = open_bytes(sample().finish());
  ASSERT_TRUE(archive.ok()) << archive.error().text();
  EXPECT_EQ(text(*archive->entry("models/model.json")), std::string(5000, 'j'));
  EXPECT_EQ(text(*archive->entry("data/weights/weight_0")), "0123456789abcdef");
  EXPECT_EQ(archive->entry("empty")->size(), 0u);
  EXPECT_EQ(archive->size_of("models/model.json"), 5000u);
  EXPECT_TRUE(archive->has("empty"));
  EXPECT_FALSE(archive->has("weight_0"));
  EXPECT_EQ(archive->names().size(), 3u);
  EXPECT_EQ(archive->entry("absent").error().code, Code::kNotFound);
}

TEST(Archive, RefusesEveryTruncation) {
  const std::string bytes = sample().finish();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto archive = open_bytes(bytes.substr(0, size));
    ASSERT_FALSE(archive.ok()) << size;
  }
}

TEST(Archive, RefusesNamesThatLeaveIt) {
  for (const char* name :
       {"../x", "m/../../x", "/etc/passwd", "m\\x", "", "m//x", "c:x", "m/./x"}) {
    ZipWriter zip;
    zip.add(name, "x");
    expect_corrupt(zip, "leaves the archive");
  }
}

TEST(Archive, RefusesEntriesThatOverlapOrReachBeyondTheFile) {
  ZipWriter overlap;
  overlap.add("m/a", "aaaa");
  overlap.add("m/b", "bbbb");
  overlap.entries()[0].packed = overlap.entries()[0].size = 30;
  expect_corrupt(overlap, "overlap");

  ZipWriter beyond = sample();
  beyond.entries()[1].packed = beyond.entries()[1].size = 1 << 30;
  expect_corrupt(beyond, "reaches beyond");

  ZipWriter sizes = sample();
  sizes.entries()[1].size = 17;
  expect_corrupt(sizes, "sizes");

  ZipWriter bomb = sample();
  bomb.entries()[0].size = 0xfffffff0u;
  expect_corrupt(bomb, "claims to inflate");

  ZipWriter method = sample();
  method.entries()[0].method = 9;
  expect_corrupt(method, "compression method 9");

  ZipWriter local = sample();
  local.entries()[0].local = 5;
  expect_corrupt(local, "no local header");

  ZipWriter twice = sample();
  twice.add("m/empty", "x");
  expect_corrupt(twice, "two entries");
}

TEST(Archive, ChecksContentsWhenTheyAreRead) {
  ZipWriter crc = sample();
  crc.entries()[1].crc ^= 1;
  auto archive = open_bytes(crc.finish());
  ASSERT_TRUE(archive.ok());
  EXPECT_THAT(archive->entry("data/weights/weight_0").error().message, HasSubstr("checksum"));
  EXPECT_TRUE(archive->entry("models/model.json").ok());

  for (int32_t change : {-1, 1}) {
    ZipWriter size = sample();
    size.entries()[0].size += static_cast<uint32_t>(change);
    archive = open_bytes(size.finish());
    ASSERT_TRUE(archive.ok());
    EXPECT_EQ(archive->entry("models/model.json").error().code, Code::kCorrupt);
  }
}

TEST(Archive, InflatesInPiecesAndClaimsCostNothing) {
  std::string noise(700'001, '\0');  // several growths of the output
  Rng rng(7);
  for (char& c : noise) c = static_cast<char>(rng.below(7));
  ZipWriter zip;
  zip.add("m/noise", noise, true);
  zip.add("m/nothing", "", true);
  auto archive = open_bytes(zip.finish());
  ASSERT_TRUE(archive.ok()) << archive.error().text();
  EXPECT_EQ(text(*archive->entry("noise")), noise);
  EXPECT_EQ(archive->entry("nothing")->size(), 0u);

  // Stays within the ratio that deflate can reach, but the data never comes.
  const uint64_t packed = zip.entries()[0].packed;
  zip.entries()[0].size = static_cast<uint32_t>(packed * 1000);
  archive = open_bytes(zip.finish());
  ASSERT_TRUE(archive.ok()) << archive.error().text();
  const uint64_t before_kib = peak_kib();
  const auto entry = archive->entry("noise");
  ASSERT_FALSE(entry.ok());
  EXPECT_EQ(entry.error().code, Code::kCorrupt);
  EXPECT_THAT(entry.error().message, HasSubstr("does not inflate"));
  EXPECT_LT(peak_kib() - before_kib, 32u << 10);
}

TEST(Archive, SurvivesRandomDamage) {
  const std::string bytes = sample().finish();
  Rng rng(11);
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = bytes;
    for (uint64_t i = 0; i <= rng.below(4); ++i) {
      damaged[rng.below(damaged.size())] = static_cast<char>(rng.below(256));
    }
    const auto archive = open_bytes(damaged);
    if (!archive.ok()) continue;
    for (const char* name : {"models/model.json", "data/weights/weight_0", "empty"}) {
      const auto entry = archive->entry(name);
      if (entry.ok()) {
        EXPECT_LE(entry->size(), 5000u);
      }
    }
  }
}

}  // namespace
}  // namespace weft::opdag
