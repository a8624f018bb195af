#include "base/os/own_process.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "tests/support/sanitized.h"

namespace weft::os {
namespace {

constexpr size_t kBytes = size_t{64} << 20;

int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Pages touched anew when a large block is taken, written and freed for the tenth time.
int64_t faults_of_a_block() {
  int64_t last = 0;
  for (int i = 0; i < 10; ++i) {
    const int64_t before = page_faults();
    const auto block = std::make_unique_for_overwrite<char[]>(kBytes);
    std::memset(block.get(), i + 1, kBytes);
    last = page_faults() - before + (block[kBytes / 2] == 0);
  }
  return last;
}

// In a process of its own: the settings are for good.
TEST(OwnProcess, FreedMemoryIsUsedAgain) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's allocator has settings of its own";
  const pid_t child = fork();
  if (child == 0) {
    const int64_t before = faults_of_a_block();
    keep_freed_memory();
    const int64_t after = faults_of_a_block();
    _exit(before > 1000 && after < 100 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(OwnProcess, ThePeakIsThatOfWhatWasTouched) {
  const int64_t before = peak_resident_bytes();
  const auto block = std::make_unique_for_overwrite<char[]>(4 * kBytes);
  std::memset(block.get(), 1, 4 * kBytes);
  EXPECT_EQ(block[kBytes], 1);
  EXPECT_GE(peak_resident_bytes() - before, static_cast<int64_t>(3 * kBytes));
}

}  // namespace
}  // namespace weft::os
