#include "net/frame/buffer_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace weft::net {
namespace {

constexpr size_t kLarge = BufferPool::kMinPooledBytes;

TEST(BufferPool, TheLatestFreedOfItsSizeComesFirst) {
  BufferPool pool;
  auto first = pool.take(kLarge), second = pool.take(kLarge), other = pool.take(2 * kLarge);
  std::byte* const latest = second.get();
  first.reset();
  second.reset();
  other.reset();
  EXPECT_EQ(pool.idle_bytes(), 4 * kLarge);
  EXPECT_EQ(pool.take(kLarge).get(), latest);
}

TEST(BufferPool, NearlyOneSizeSharesStorage) {
  BufferPool pool;
  std::byte* const data = pool.take(10 * kLarge).get();
  EXPECT_EQ(pool.take(10 * kLarge - 1).get(), data);
  EXPECT_NE(pool.take(10 * kLarge + 1).get(), data);
}

TEST(BufferPool, SmallAndHugeStorageIsNotKept) {
  BufferPool pool(4 * kLarge);
  EXPECT_TRUE(pool.take(0));
  EXPECT_TRUE(pool.take(kLarge - 1));
  EXPECT_TRUE(pool.take(4 * kLarge + 1));
  EXPECT_EQ(pool.idle_bytes(), 0u);
}

TEST(BufferPool, IdleStorageIsGivenBackBetweenOneAndTwoTrims) {
  BufferPool pool;
  auto busy = pool.take(kLarge);
  pool.take(2 * kLarge);
  pool.trim();
  EXPECT_EQ(pool.idle_bytes(), 2 * kLarge);
  busy.reset();
  pool.trim();
  EXPECT_EQ(pool.idle_bytes(), kLarge) << "what was freed meanwhile stays";
  pool.trim();
  EXPECT_EQ(pool.idle_bytes(), 0u);
}

TEST(BufferPool, StorageOutlivesThePool) {
  std::shared_ptr<std::byte> storage;
  {
    BufferPool pool;
    storage = pool.take(kLarge);
  }
  std::fill_n(storage.get(), kLarge, std::byte{1});
}

// Whatever is taken and dropped, by two threads: no storage is had twice, and idle stays in bounds.
RC_GTEST_PROP(BufferPool, IsBoundedAndNeverHandsOutStorageInUse, ()) {
  constexpr size_t kMax = 16 * kLarge;
  BufferPool pool(kMax);
  const auto sizes = *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, 9));
  std::vector<std::vector<std::byte*>> wrong(2);
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::shared_ptr<std::byte>> held;
      const std::byte mine{static_cast<unsigned char>(t + 1)};
      for (size_t i = 0; i < sizes.size(); ++i) {
        auto storage = pool.take(sizes[i] * kLarge + 1);
        storage.get()[0] = mine;
        held.push_back(std::move(storage));
        if (i % 3 != 0) {
          if (held.front().get()[0] != mine) wrong[static_cast<size_t>(t)].push_back(nullptr);
          held.erase(held.begin());
        }
        if (i % 5 == 4) pool.trim();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  RC_ASSERT(wrong[0].empty() && wrong[1].empty());
  RC_ASSERT(pool.idle_bytes() <= kMax);
}

}  // namespace
}  // namespace weft::net
