// What the runs of some peers say of others with the same device.
#include "broker/coordinator/device_lessons.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "broker/coordinator/planner_inputs.h"

namespace weft::broker {
namespace {

std::shared_ptr<const job::DeviceProfile> profile(const std::string& name, int32_t threads = 1,
                                                  const std::string& version = "1") {
  auto made = std::make_shared<job::DeviceProfile>();
  made->device = "cpu";
  made->device_name = name;
  made->threads = threads;
  made->version = version;
  return made;
}

class DeviceLessonsTest : public ::testing::Test {
 protected:
  Peer& add(const std::string& id, std::shared_ptr<const job::DeviceProfile> of,
            Correction learned = {}) {
    Peer& made = peers_[id];
    made.id = made.name = id;
    made.profile = std::move(of);
    made.correction = learned;
    return made;
  }
  double factor(const std::string& id) const { return DeviceLessons(peers_).factor(peers_.at(id)); }
  bool taught(const std::string& id) const { return DeviceLessons(peers_).taught(peers_.at(id)); }

  std::map<std::string, Peer> peers_;
};

TEST_F(DeviceLessonsTest, APeerWithoutRunsTakesTheMiddleOfItsDevice) {
  add("new", profile("card"));
  add("a", profile("card"), {1.1, 5});
  add("b", profile("card"), {1.2, 30});
  add("c", profile("card"), {1.3, 30});
  add("d", profile("card"), {1.34, 30});
  EXPECT_EQ(factor("new"), 1.2);
  EXPECT_TRUE(taught("new"));
  EXPECT_EQ(factor("d"), 1.34) << "its own runs say it";
  add("young", profile("card"), {8, 4});
  EXPECT_EQ(factor("new"), 1.2) << "a run that has just begun may say anything";
}

TEST_F(DeviceLessonsTest, OneMachineAloneSaysNothingOfAnother) {
  add("new", profile("card"));
  Peer& other = add("other", profile("card"), {4, 100});
  EXPECT_EQ(factor("new"), 1);
  EXPECT_FALSE(taught("new"));
  other.correction.factor = 0.25;
  EXPECT_EQ(factor("new"), 1);
  EXPECT_TRUE(taught("other"));
  add("third", profile("card"), {0.5, 100});
  EXPECT_EQ(factor("new"), 0.5);
  EXPECT_TRUE(taught("new"));
}

TEST_F(DeviceLessonsTest, OtherDevicesThreadsAndVersionsSayNothing) {
  for (const char* id : {"a", "b", "c"}) add(id, profile("card"), {2, 30});
  EXPECT_EQ(factor(add("same", profile("card")).id), 2);
  EXPECT_EQ(factor(add("other card", profile("other")).id), 1);
  EXPECT_EQ(factor(add("threads", profile("card", 2)).id), 1);
  EXPECT_EQ(factor(add("version", profile("card", 1, "2")).id), 1);
  EXPECT_EQ(factor(add("unmeasured", nullptr).id), 1);
  for (const char* id : {"other card", "threads", "version", "unmeasured"}) {
    EXPECT_FALSE(taught(id)) << id;
  }
}

// The profile as it is counts as one that shows something else.
RC_GTEST_PROP(DeviceLessons, WhatMostShowHoldsWhateverTheOthersDo, (uint64_t seed)) {
  Rng rng(seed);
  const auto true_ones = static_cast<int>(2 + rng.below(8));
  const auto others = static_cast<int>(rng.below(static_cast<uint64_t>(true_ones - 1)));
  const double truth = std::pow(2, 4 * rng.uniform() - 2);
  std::map<std::string, Peer> peers;
  const auto add = [&](const std::string& id, Correction learned) {
    Peer& made = peers[id];
    made.id = id;
    made.profile = profile("card");
    made.correction = learned;
  };
  add("new", {});
  double least = truth, most = truth;
  for (int i = 0; i < true_ones; ++i) {
    const double near = truth * (0.95 + 0.1 * rng.uniform());
    least = std::min(least, near);
    most = std::max(most, near);
    add("t" + std::to_string(i), {near, 5 + static_cast<int64_t>(rng.below(40))});
  }
  for (int i = 0; i < others; ++i) add("o" + std::to_string(i), {8 * rng.uniform() + 0.125, 5});
  const double taken = DeviceLessons(peers).factor(peers.at("new"));
  RC_ASSERT(taken >= least && taken <= most);
}

TEST_F(DeviceLessonsTest, PlansUseThemUnlessTheOperatorOrADriftSaysMore) {
  for (const char* id : {"a", "b", "c"}) add(id, profile("card"), {2, 30});
  Peer& idle = add("idle", profile("card"));
  Peer& slowed = add("slowed", profile("card"));
  slowed.slowness.factor = 5;
  add("written", profile("card"));
  PlannerWorld known;
  known.peers.emplace_back();
  known.peers[0].id = "written";
  known.peers[0].gflops = 10;
  const auto planned =
      planner_peers({&idle, &slowed, &peers_.at("written")}, known, DeviceLessons(peers_));
  EXPECT_EQ(planned[0].correction, 2);
  EXPECT_EQ(planned[1].correction, 5);
  EXPECT_EQ(planned[2].correction, 1);
  EXPECT_EQ(planner_peers({&idle}, known, {})[0].correction, 1);
}

}  // namespace
}  // namespace weft::broker
