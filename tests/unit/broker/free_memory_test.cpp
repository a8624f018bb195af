// What peers tell of their free memory, and when that is news.
#include <gtest/gtest.h>

#include "broker/coordinator/coordinator.h"
#include "broker/messages.h"

namespace weft::broker {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

class FreeMemoryTest : public ::testing::Test {
 protected:
  FreeMemoryTest() {
    capabilities_.cores = 4;
    capabilities_.device = "cpu";
    capabilities_.memory_bytes = 16 * kGiB;
    feed(PeerJoined{"p", "name", "curve", "key"});
    hello(12 * kGiB);
  }
  void feed(const Event& event) { effects_ = apply(state_, event, now_ms_, options_); }
  void hello(uint64_t free) {
    PeerHello said{"p", 1, capabilities_, {}};
    said.free_memory_bytes = free;
    feed(said);
  }
  void beat(uint64_t free) {
    now_ms_ += 1000;
    PeerHeartbeat said{"p", 1, ++beats_, false, {}};
    said.free_memory_bytes = free;
    feed(said);
  }
  Peer& peer() { return state_.peers.at("p"); }

  Capabilities capabilities_;
  State state_;
  CoordinatorOptions options_;
  std::vector<Effect> effects_;
  int64_t now_ms_ = 1000000;
  uint64_t beats_ = 0;
};

TEST_F(FreeMemoryTest, TheLastThatWasToldCounts) {
  EXPECT_EQ(peer().free_memory_bytes, 12 * kGiB);
  beat(11 * kGiB);
  EXPECT_EQ(peer().free_memory_bytes, 11 * kGiB);
  beat(0);  // it works, or measures
  EXPECT_EQ(peer().free_memory_bytes, 11 * kGiB);
  hello(0);
  EXPECT_EQ(peer().free_memory_bytes, 11 * kGiB);
  capabilities_.memory_bytes = 32 * kGiB;
  hello(0);
  EXPECT_EQ(peer().free_memory_bytes, 0u) << "of another machine nothing is known";
}

TEST_F(FreeMemoryTest, LittleChangesMakeNoPlansAndNothingIsStored) {
  beat(0);
  const uint64_t version = state_.idle_version;
  for (int i = 0; i < 1000; ++i) {
    beat(12 * kGiB + static_cast<uint64_t>(i % 5) * kGiB / 6);
    EXPECT_TRUE(effects_.empty());
  }
  EXPECT_EQ(state_.idle_version, version);
  beat(4 * kGiB);
  EXPECT_EQ(state_.idle_version, version + 1);
  EXPECT_TRUE(effects_.empty());
  beat(4 * kGiB + 1);
  EXPECT_EQ(state_.idle_version, version + 1);
  // Slowly is as far.
  for (uint64_t free = 4 * kGiB; free <= 12 * kGiB; free += kGiB / 8) beat(free);
  EXPECT_GE(state_.idle_version, version + 8);
  EXPECT_LE(state_.idle_version, version + 12);
}

// A job that found no room is planned again when there is some.
TEST_F(FreeMemoryTest, AJobThatWaitsForRoomIsPlannedWhenOthersGiveItBack) {
  options_.plan = [](const Job&, const std::vector<const Peer*>& idle) -> Result<job::Plan> {
    if (idle.at(0)->free_memory_bytes < 8 * kGiB) {
      return make_error(Code::kUnavailable, "too little memory");
    }
    job::Plan plan;
    plan.partition = {1, {0}};
    plan.stages.push_back({{idle.at(0)->id}, 0, 0, 0});
    return plan;
  };
  beat(2 * kGiB);
  feed(SubmitJob{"j", "j", 10, 1});
  for (int i = 0; i < 60; ++i) beat(2 * kGiB);
  EXPECT_EQ(state_.jobs.at("j").phase, JobPhase::kQueued);
  beat(10 * kGiB);
  EXPECT_EQ(state_.jobs.at("j").phase, JobPhase::kDeploying);
  // What it told last stands while it works.
  beat(0);
  EXPECT_EQ(peer().free_memory_bytes, 10 * kGiB);
}

TEST(FreeMemory, IsReadFromHelloAndHeartbeat) {
  proto::PeerMessage hello, beat;
  hello.mutable_hello()->mutable_capabilities()->set_free_memory_bytes(5);
  beat.mutable_heartbeat()->set_free_memory_bytes(7);
  EXPECT_EQ(std::get<PeerHello>(event_of("p", hello).value()).free_memory_bytes, 5u);
  EXPECT_EQ(std::get<PeerHeartbeat>(event_of("p", beat).value()).free_memory_bytes, 7u);
}

}  // namespace
}  // namespace weft::broker
