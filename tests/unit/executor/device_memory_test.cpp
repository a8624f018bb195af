#include "executor/device_memory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/os/process.h"
#include "executor/local_cluster.h"
#include "executor/worker_stage.h"
#include "opdag/text.h"
#include "tests/support/graph_builder.h"
#include "tests/support/must.h"

namespace weft::executor {
namespace {

TEST(DeviceMemory, IsTheCardsWhereTheStageIsOnACard) {
  const CardMemory of_card = [](at::Device card) -> Result<uint64_t> {
    return uint64_t{100} + static_cast<uint64_t>(card.index());
  };
  EXPECT_EQ(*total_memory_bytes("cuda:3", of_card), 103u);
  EXPECT_EQ(*total_memory_bytes("cuda", of_card), 100u);
  EXPECT_EQ(*total_memory_bytes("cpu", of_card), os::total_memory_bytes());
  EXPECT_EQ(*total_memory_bytes("", of_card), os::total_memory_bytes());
  EXPECT_EQ(total_memory_bytes("card 7", of_card).error().code, Code::kInvalid);
  const CardMemory broken = [](at::Device) -> Result<uint64_t> {
    return make_error(Code::kUnavailable, "gone");
  };
  EXPECT_EQ(total_memory_bytes("cuda:0", broken).error().code, Code::kUnavailable);
  EXPECT_GT(*total_memory_bytes("cpu", broken), 0u);
}

// 4 layers of 8 x 8 floats: a stage on a card is held against the card's memory, not the machine's.
TEST(DeviceMemory, AStageTooLargeForItsCardIsRefused) {
  const opdag::Graph graph = testing::must(opdag::testing::chain_graph(4));
  const os::Path path = os::Path(::testing::TempDir()) / fmt::format("graph_{}.txt", ::getpid());
  ASSERT_TRUE(os::write_file_atomic(path, std::string_view(opdag::to_text(graph))).ok());
  job::WorkerSpec spec;
  spec.graph.path = spec.eval_graph.path = path.string();
  spec.plan =
      local_plan({1, std::vector<int32_t>(graph.nodes.size(), 0)}, job::PipelineSchedule::k1F1B);
  spec.spec.train.batch = 4;
  spec.spec.data.bindings = {{"x", "x", "", 1}};
  spec.device = "cuda:0";
  const auto with = [&](uint64_t bytes) {
    return load_stage_files(spec, [bytes](at::Device) -> Result<uint64_t> { return bytes; });
  };
  EXPECT_TRUE(with(2048).ok()) << with(2048).error().text();
  const auto refused = with(1023);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kTooLarge);
  spec.device = "cpu";
  EXPECT_TRUE(with(1023).ok());
}

TEST(DeviceMemory, IsCounted) {
  EXPECT_GT(peak_memory_bytes("cpu"), 1 << 20);
}

}  // namespace
}  // namespace weft::executor
