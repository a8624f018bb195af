#include "executor/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace weft::executor {
namespace {

os::Path fresh_dir(const char* name) {
  const os::Path dir = os::Path(::testing::TempDir()) / name;
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  return dir;
}

TEST(Checkpoint, KeepsValuesShapesAndTypes) {
  const os::Path dir = fresh_dir("weft-checkpoint-values");
  const std::map<std::string, at::Tensor> state{
      {"weight", at::rand({3, 4}, at::kDouble).t()},  // not contiguous
      {"half", at::rand({5}).to(at::kBFloat16)},
      {"steps", at::tensor(int64_t{7})},
      {"empty", at::empty({0, 3})},
      {"mask", at::ones({3}, at::kBool)}};
  const ShardInfo info{"job-1", 2, 1, 40};
  const os::Path path = dir / shard_name(info);
  ASSERT_TRUE(write_shard(path, state, info).ok());
  const auto read = read_shards({path}, "job-1", 40);
  ASSERT_TRUE(read.ok()) << read.error().text();
  ASSERT_EQ(read->size(), state.size());
  for (const auto& [name, tensor] : state) {
    EXPECT_EQ(read->at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(read->at(name).equal(tensor.contiguous())) << name;
  }
}

TEST(Checkpoint, MergesShardsAndRefusesStrangers) {
  const os::Path dir = fresh_dir("weft-checkpoint-merge");
  const auto write = [&](int32_t stage, int64_t step, const std::string& job,
                         const std::map<std::string, at::Tensor>& state) {
    const ShardInfo info{job, 1, stage, step};
    const os::Path path = dir / (job + shard_name(info));
    EXPECT_TRUE(write_shard(path, state, info).ok());
    return path;
  };
  const auto a = write(0, 5, "j", {{"w", at::ones({2})}, {"tied", at::zeros({3})}});
  const auto b = write(1, 5, "j", {{"v", at::ones({4})}, {"tied", at::zeros({3})}});
  const auto merged = read_shards({a, b}, "j", 5);
  ASSERT_TRUE(merged.ok()) << merged.error().text();
  EXPECT_EQ(merged->size(), 3u);

  const auto later = write(1, 6, "j", {{"v", at::ones({4})}});
  EXPECT_EQ(read_shards({a, later}, "j", 5).error().code, Code::kInvalid);
  const auto other = write(1, 5, "k", {{"v", at::ones({4})}});
  EXPECT_EQ(read_shards({a, other}, "j", 5).error().code, Code::kInvalid);
  const auto torn = write(2, 5, "j", {{"tied", at::zeros({4})}});
  EXPECT_EQ(read_shards({a, torn}, "j", 5).error().code, Code::kCorrupt);
  EXPECT_FALSE(read_shards({dir / "absent"}, "j", 5).ok());
}

}  // namespace
}  // namespace weft::executor
