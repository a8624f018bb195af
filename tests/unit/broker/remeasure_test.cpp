// When a peer is asked to measure itself again, and what its answer changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "broker/coordinator/coordinator.h"
#include "broker/coordinator/planner_inputs.h"

namespace weft::broker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kHour = 3600000;

std::shared_ptr<job::DeviceProfile> profile(double gflops, int64_t measured_ms = 0) {
  auto made = std::make_shared<job::DeviceProfile>();
  made->device = "cpu";
  made->device_name = "a processor";
  made->threads = 4;
  made->measured_ms = measured_ms;
  for (job::MeasuredCosts* measured : {&made->fp32, &made->bf16}) {
    measured->costs = job::plain_costs(1e-9 / gflops, 1e-10, 1e-6);
    measured->errors.fill({0.1, 0.1, 5});
  }
  return made;
}

// One peer, idle, whose real steps take three times as long as its profile says.
struct World {
  World() {
    feed(PeerJoined{"p", "name", "curve", "key"});
    Capabilities capabilities;
    capabilities.cores = 4;
    capabilities.device = "cpu";
    feed(PeerHello{"p", 1, capabilities, {}});
    feed(PeerMeasured{"p", profile(100)});
    peer().correction = {3, 40};
  }
  Peer& peer() { return state.peers.at("p"); }
  // It runs the first of these stages.
  Job& works(std::vector<job::StagePlan> stages) {
    Job job;
    job.id = "j";
    job.phase = JobPhase::kRunning;
    job.steps = 1000;
    job.plan.emplace();
    job.planned_factors = {stages[0].correction};
    job.stages.resize(stages.size());
    job.plan->stages = std::move(stages);
    job.stages[0].peer = "p";
    job.stages[0].phase = StagePhase::kRunning;
    peer().phase = PeerPhase::kRunning;
    peer().assignment = Assignment{"j", 1, 0};
    return state.jobs["j"] = std::move(job);
  }
  void feed(const Event& event) {
    for (const Effect& effect : apply(state, event, now_ms, options)) {
      if (!std::holds_alternative<SendMeasure>(effect)) continue;
      asked_ms.push_back(now_ms);
      if (on_asked) on_asked();
    }
  }
  void run_ms(int64_t duration_ms) {
    for (const int64_t end_ms = now_ms + duration_ms; now_ms < end_ms; now_ms += 1000) {
      if (heard) feed(PeerHeartbeat{"p", 1, ++beats, draining, {}});
      feed(Tick{});
    }
  }
  std::vector<int64_t> pauses_h() const {
    std::vector<int64_t> pauses;
    for (size_t i = 1; i < asked_ms.size(); ++i) {
      pauses.push_back((asked_ms[i] - asked_ms[i - 1] + kHour / 2) / kHour);
    }
    return pauses;
  }
  // Of large products, as plans see it.
  double planned_gflops() { return planner_peers({&peer()}, {}, {}).at(0).promised_gflops(); }

  State state;
  CoordinatorOptions options;
  int64_t now_ms = 1000000;
  std::vector<int64_t> asked_ms;
  std::function<void()> on_asked;
  uint64_t beats = 0;
  bool heard = true, draining = false;
};

TEST(Remeasure, AnIdlePeerThatRealRunsDisagreeWithIsAskedOnceAnHour) {
  World world;
  world.run_ms(1000);
  EXPECT_THAT(world.asked_ms, ElementsAre(1000000));
  world.run_ms(5 * kHour);
  EXPECT_THAT(world.pauses_h(), ElementsAre(1, 1, 1, 1, 1)) << "a lost message is made up for";
}

TEST(Remeasure, NobodyIsAskedBeforeRunsHaveSaidEnough) {
  for (const Correction& enough : {Correction{2, 100}, Correction{0.5, 100}, Correction{8, 19}}) {
    World world;
    world.peer().correction = enough;
    world.run_ms(2 * kHour);
    EXPECT_THAT(world.asked_ms, IsEmpty()) << enough.factor << " " << enough.steps;
  }
  World faster;
  faster.peer().correction = {0.4, 20};
  faster.run_ms(1000);
  EXPECT_EQ(faster.asked_ms.size(), 1u);
}

TEST(Remeasure, EachTimeInVainThePauseDoublesUpToADay) {
  World world;
  int64_t answers = 0;
  // It says the same again, and so do real runs.
  world.on_asked = [&] { ++answers; };
  for (int64_t told = 0; world.now_ms < 1000000 + 150 * kHour; world.run_ms(60000)) {
    if (told == answers) continue;
    told = answers;
    world.feed(PeerMeasured{"p", profile(100, world.now_ms)});
    EXPECT_EQ(world.peer().correction.steps, kCarriedSteps);
    EXPECT_NEAR(world.peer().correction.factor, 3, 1e-9);
    world.peer().correction.steps = 40;
  }
  EXPECT_THAT(world.pauses_h(), ElementsAre(2, 4, 8, 16, 24, 24, 24, 24));
  // A profile that agrees: what was in vain before counts no more.
  world.run_ms(kHour);
  world.feed(PeerMeasured{"p", profile(40, world.now_ms)});
  EXPECT_NEAR(world.peer().correction.factor, 1.2, 1e-9);
  world.peer().correction = {3, 40};
  const int64_t agreed_ms = world.now_ms;
  world.asked_ms.clear();
  world.run_ms(3 * kHour + 60000);
  EXPECT_THAT(world.pauses_h(), ElementsAre(1, 1));
  EXPECT_GE(world.asked_ms.front(), agreed_ms + kHour);
}

TEST(Remeasure, OnlyPeersWithoutWorkThatStay) {
  const std::vector<std::pair<const char*, std::function<void(World&)>>> cases = {
      {"works",
       [](World& w) {
         w.peer().assignment = Assignment{"j", 1, 0};
       }},
      {"has a leftover", [](World& w) { w.peer().leftover = true; }},
      {"drains", [](World& w) { w.draining = true; }},
      {"is to drain", [](World& w) { w.feed(DrainPeer{"p"}); }},
      {"left",
       [](World& w) {
         w.feed(PeerLeaving{"p", ""}), w.heard = false;
       }},
      {"has no profile", [](World& w) { w.peer().profile.reset(); }},
      {"has a speed that the operator wrote",
       [](World& w) { w.options.speed_written = [](const Peer&) { return true; }; }},
  };
  for (const auto& [what, prepare] : cases) {
    World world;
    prepare(world);
    if (world.peer().assignment) {
      EXPECT_TRUE(allowed(world.peer().phase, PeerPhase::kAssigned));
      world.peer().phase = PeerPhase::kAssigned;
    }
    const bool leftover = world.peer().leftover;
    if (leftover) world.heard = false;
    world.run_ms(leftover ? 4000 : 1000);
    EXPECT_THAT(world.asked_ms, IsEmpty()) << what;
  }
  World suspect;
  suspect.peer().correction = {};
  suspect.heard = false;
  suspect.run_ms(7000);
  ASSERT_EQ(suspect.peer().phase, PeerPhase::kSuspect);
  suspect.peer().correction = {3, 40};
  suspect.run_ms(2000);
  EXPECT_THAT(suspect.asked_ms, IsEmpty());
  suspect.heard = true;
  suspect.run_ms(1000);
  EXPECT_EQ(suspect.asked_ms.size(), 1u) << "idle again";
}

TEST(Remeasure, TheOperatorsSpeedIsLookedUpOnceAnHour) {
  World world;
  int64_t looks = 0;
  world.options.speed_written = [&](const Peer&) { return ++looks > 0; };
  world.run_ms(3 * kHour);
  EXPECT_EQ(looks, 3);
}

RC_GTEST_PROP(Remeasure, PlansPredictWhatTheyDidBefore, (uint64_t seed)) {
  Rng rng(seed);
  const auto between = [&](double low, double high) {
    return low * std::pow(high / low, rng.uniform());
  };
  World world;
  world.peer().correction = {between(0.5, 2), 30};
  if (rng.below(2) == 0) world.peer().slowness = {between(0.01, 100), world.now_ms + kHour, kHour};
  const double before = world.planned_gflops();
  world.feed(PeerMeasured{"p", profile(100 * between(0.3, 3), 1)});
  RC_ASSERT(std::abs(world.planned_gflops() / before - 1) < 1e-9);
  RC_ASSERT(world.peer().slowness.factor == 0 ||
            world.peer().slowness.until_ms == world.now_ms + kHour);
}

TEST(Remeasure, AnotherDeviceOrThreadCountOrVersionIsKnownNothingOf) {
  const std::vector<std::function<void(job::DeviceProfile&)>> changes = {
      [](auto& p) { p.device = "cuda:0"; },
      [](auto& p) { p.device_name = "another"; },
      [](auto& p) { p.threads = 8; },
      [](auto& p) { p.version = "2"; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    World world;
    world.run_ms(1000);
    world.peer().slowness = {5, world.now_ms + kHour, kHour};
    auto other = profile(100);
    changes[i](*other);
    world.feed(PeerMeasured{"p", other});
    EXPECT_EQ(world.peer().correction.steps, 0) << i;
    EXPECT_EQ(world.peer().correction.factor, 1) << i;
    EXPECT_EQ(world.peer().slowness.factor, 0) << i;
    EXPECT_EQ(world.peer().remeasure.next_ms, 0) << i;
  }
}

TEST(Remeasure, WhatTheOperatorWroteIsAsSlowAsBefore) {
  World world;
  world.options.speed_written = [](const Peer&) { return true; };
  world.peer().slowness = {5, world.now_ms + kHour, kHour};
  world.feed(PeerMeasured{"p", profile(50)});
  EXPECT_EQ(world.peer().slowness.factor, 5);
}

// The profile crosses the Prepare of a plan that was made with the old one.
TEST(Remeasure, StepsOfAPlanOfTheOldProfileTeachOfTheNew) {
  World world;
  world.works({{{"p"}, 1, 1, 1, 0.3, 3}});     // 0.1 s without the correction
  world.feed(PeerMeasured{"p", profile(50)});  // which would have said 0.2 s
  for (int64_t step = 3; step < 200; ++step) {
    StageReport report{"p", "j", 1, 0, StageReport::Kind::kStep, step, {}, {}, 1, 0.4};
    world.feed(report);
  }
  EXPECT_NEAR(world.peer().correction.factor, 2, 0.01);
  EXPECT_NEAR(world.state.jobs.at("j").planned_factors[0], 1.5, 1e-9);
}

// What passes cost of a stage with next to nothing in it says nothing of the next one there.
TEST(Remeasure, AStageWithNextToNothingToDoTeachesNothing) {
  for (const double busiest_s : {0.1, 10.0}) {
    World world;
    world.peer().correction = {};
    Job& job = world.works({{{"p"}, 1, 1, 1, 0.1, 1}, {{"other"}, 1, 1, 1, busiest_s, 1}});
    job.drift.begin(2, 0, 0);
    const auto steps = [&](int64_t from, int64_t to, double usual_s, double spike_s) {
      for (int64_t step = from; step < to; ++step) {
        const double compute_s = step % 5 == 0 ? spike_s : usual_s;
        world.feed(
            StageReport{"p", "j", 1, 0, StageReport::Kind::kStep, step, {}, {}, 1, compute_s});
      }
    };
    steps(3, 200, 0.3, 0.3);
    EXPECT_NEAR(world.peer().correction.factor, busiest_s < 1 ? 3 : 1, 0.01);
    if (busiest_s < 1) continue;
    steps(200, 400, 0.3, 0.9);
    EXPECT_EQ(world.peer().correction.factor, 1) << "outliers alone say nothing";
    // Unless it always takes long enough to matter.
    steps(400, 600, 0.7, 0.7);
    EXPECT_NEAR(world.peer().correction.factor, 7, 0.1);
  }
}

TEST(Remeasure, WhateverProfilesAPeerSendsFactorsStayWithinBounds) {
  World world;
  world.works({{{"p"}, 1, 1, 1, 0.3, 3}});
  world.peer().slowness = {5, world.now_ms + kHour, kHour};
  const auto within = [&](double factor) {
    return factor >= 1 / kMostSlowness && factor <= kMostSlowness;
  };
  for (const auto& [low, high] : {std::pair{1e-3, 1e7}, {1e7, 1e-3}}) {
    for (int i = 0; i < 100; ++i) {
      // Each way back to `low` is one of another device: only the rise counts.
      auto elsewhere = profile(low);
      elsewhere->threads = 1 + i % 2;
      world.feed(PeerMeasured{"p", elsewhere});
      auto here = profile(high);
      here->threads = elsewhere->threads;
      world.feed(PeerMeasured{"p", here});
      const Job& running = world.state.jobs.at("j");
      ASSERT_TRUE(within(running.plan->stages[0].correction));
      ASSERT_TRUE(within(running.planned_factors[0]));
      ASSERT_TRUE(world.peer().slowness.factor == 0 || within(world.peer().slowness.factor));
    }
  }
}

TEST(Remeasure, TheOperatorsWordIsOfThePeersName) {
  PlannerWorld known;
  known.peers = {{.id = "x"}, {.id = "name", .gflops = 5}, {.id = "p", .gflops = 5}};
  Peer peer;
  peer.id = "p";
  peer.name = "name";
  EXPECT_TRUE(speed_written(peer, known));
  peer.name = "x";
  EXPECT_FALSE(speed_written(peer, known)) << "written down, but for its speed";
  peer.name = "nobody";
  EXPECT_FALSE(speed_written(peer, known));
}

}  // namespace
}  // namespace weft::broker
