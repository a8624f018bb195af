// Free memory: read now and then, never while this daemon uses some, and as nvidia-smi tells it.
#include "daemon/free_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

#include "daemon/host_facts.h"

namespace weft::daemon {
namespace {

class FreeMemoryTest : public ::testing::Test {
 protected:
  void make(uint64_t known) {
    memory_.emplace(
        known,
        [this] {
          ++reads_;
          while (held_) std::this_thread::yield();
          return answer_.load();
        },
        events_, clock_);
  }
  ~FreeMemoryTest() override {
    held_ = false;
    memory_.reset();
  }
  // Ticks, and runs events until the reading that began is told.
  void tick_and_read() {
    const int before = reads_;
    memory_->tick(true);
    settle();
    ASSERT_EQ(reads_, before + 1);
  }
  void settle() {
    for (int i = 0; i < 2000 && memory_->reading(); ++i) events_.run_for(10);
    ASSERT_FALSE(memory_->reading());
  }

  EventQueue events_;
  VirtualClock clock_;
  std::atomic<uint64_t> answer_{700};
  std::atomic<int> reads_{0};
  std::atomic<bool> held_{false};
  std::optional<FreeMemory> memory_;
};

TEST_F(FreeMemoryTest, IsReadOnceAMinute) {
  make(500);
  EXPECT_EQ(memory_->bytes(), 500u);
  for (int minute = 1; minute <= 3; ++minute) {
    for (int i = 0; i < 59; ++i) {
      clock_.advance_ms(1000);
      memory_->tick(true);
      events_.run_for(0);
    }
    EXPECT_EQ(reads_, minute - 1);
    clock_.advance_ms(1000);
    answer_ = 700 + static_cast<uint64_t>(minute);
    tick_and_read();
    EXPECT_EQ(memory_->bytes(), 700u + static_cast<uint64_t>(minute));
  }
}

TEST_F(FreeMemoryTest, WhatThisDaemonUsesItselfIsNotInIt) {
  make(500);
  memory_->tick(true);
  memory_->tick(false);
  EXPECT_EQ(memory_->bytes(), 0u) << "nothing is told of others meanwhile";
  for (int i = 0; i < 600; ++i) {
    clock_.advance_ms(1000);
    memory_->tick(false);
  }
  EXPECT_EQ(reads_, 0);
  memory_->tick(true);
  EXPECT_EQ(reads_, 0) << "a worker that has just ended gives back its memory first";
  clock_.advance_ms(2500);
  tick_and_read();
  EXPECT_EQ(memory_->bytes(), 700u);
}

TEST_F(FreeMemoryTest, AReadingThatWorkFallsIntoDoesNotCount) {
  make(500);
  held_ = true;
  clock_.advance_ms(60000);
  memory_->tick(true);
  while (reads_ == 0) std::this_thread::yield();
  memory_->tick(false);  // an assignment, and its end
  memory_->tick(true);
  held_ = false;
  settle();
  EXPECT_EQ(memory_->bytes(), 0u);
  clock_.advance_ms(60000);
  tick_and_read();
  EXPECT_EQ(memory_->bytes(), 700u);
}

TEST_F(FreeMemoryTest, WhatCannotBeToldIsAskedForSeldom) {
  make(0);
  answer_ = 0;
  clock_.advance_ms(60000);
  tick_and_read();
  for (int i = 0; i < 9; ++i) {
    clock_.advance_ms(60000);
    memory_->tick(true);
    settle();
  }
  EXPECT_EQ(reads_, 1);
  clock_.advance_ms(60001);
  answer_ = 700;
  tick_and_read();
  EXPECT_EQ(memory_->bytes(), 700u);
}

constexpr const char* kTwoCards =
    "0, GPU-5a1f0c3e-1111, NVIDIA H100 80GB HBM3, 81559, 81079\n"
    "1, GPU-77b2e9d4-2222, NVIDIA GeForce RTX 3090, Ti, 24576, 1024\n";

TEST(HostFacts, ACardIsALineOfTheList) {
  const Card first = *card_of_list(kTwoCards, "cuda:0", nullptr);
  EXPECT_EQ(first.name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(first.memory_bytes, uint64_t{81559} << 20);
  EXPECT_EQ(first.free_bytes, uint64_t{81079} << 20);
  const Card second = *card_of_list(kTwoCards, "cuda:1", nullptr);
  EXPECT_EQ(second.name, "NVIDIA GeForce RTX 3090, Ti");
  EXPECT_EQ(second.free_bytes, uint64_t{1024} << 20);
  for (const char* any : {"auto", "cuda"}) {
    EXPECT_EQ(card_of_list(kTwoCards, any, nullptr)->name, first.name) << any;
  }
  EXPECT_FALSE(card_of_list(kTwoCards, "cuda:7", nullptr));
  const Card unknown = *card_of_list("0, GPU-1, NVIDIA GB10, [N/A], [N/A]\n", "auto", nullptr);
  EXPECT_EQ(unknown.name, "NVIDIA GB10");
  EXPECT_EQ(unknown.memory_bytes, 0u);
  EXPECT_EQ(unknown.free_bytes, 0u);
  for (const char* none : {"", "\n", "No devices were found\n", "Failed, very, badly\n"}) {
    EXPECT_FALSE(card_of_list(none, "auto", nullptr)) << none;
  }
}

TEST(HostFacts, OfVisibleCardsOnlyTheNthIsMeant) {
  const auto name = [](const char* device, const char* visible) {
    const auto card = card_of_list(kTwoCards, device, visible);
    return card ? card->name.substr(7, 4) : "none";
  };
  EXPECT_EQ(name("cuda:0", "1"), "GeFo");
  EXPECT_EQ(name("cuda:1", "1"), "none");
  EXPECT_EQ(name("cuda:1", "1,0"), "H100");
  EXPECT_EQ(name("cuda:1", "1, 0"), "H100");
  EXPECT_EQ(name("auto", "GPU-77b2"), "GeFo");
  EXPECT_EQ(card_of_list(kTwoCards, "cuda:0", "MIG-5a1f0c3e")->name, "NVIDIA GPU MIG-5a1f0c3e")
      << "there, and not described";
  EXPECT_EQ(name("cuda:0", "GPU-77b2e9d4-2222,GPU-5a1f0c3e-1111"), "GeFo");
  for (const char* nothing : {"", "-1", "7,0", "GPU-", "cuda", ",0"}) {
    EXPECT_EQ(name("auto", nothing), "none") << nothing;
  }
}

TEST(HostFacts, AProcessorsFreeMemoryIsSomeOfAll) {
  const proto::Capabilities facts = host_capabilities("cpu", "");
  EXPECT_GT(facts.free_memory_bytes(), 0u);
  EXPECT_LE(facts.free_memory_bytes(), facts.memory_bytes());
  EXPECT_GT(free_memory_bytes("cpu"), 0u);
}

}  // namespace
}  // namespace weft::daemon
