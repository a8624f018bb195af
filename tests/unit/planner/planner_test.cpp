#include "broker/planner/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "job/names.h"
#include "job/schedule.h"
#include "tests/unit/broker/graphs.h"

namespace weft::broker {
namespace {

using testing::chain_graph;
using testing::chain_spec;
using ::testing::HasSubstr;

std::vector<PlannerPeer> peers_of(size_t count, uint64_t memory_bytes = uint64_t{8} << 30) {
  std::vector<PlannerPeer> peers;
  for (size_t i = 0; i < count; ++i) peers.push_back({"p-" + std::to_string(i), 4, memory_bytes});
  return peers;
}

TEST(Planner, TakesTheStagesAskedForAndNamesTheBottleneck) {
  const opdag::Graph graph = chain_graph(8, 4, 16);
  job::JobSpec spec = chain_spec(32);
  spec.pipeline.stages = 3;
  const auto plan = make_plan(graph, spec, peers_of(5), {});
  ASSERT_TRUE(plan.ok()) << plan.error().text();
  EXPECT_EQ(plan->stages.size(), 3u);
  EXPECT_TRUE(opdag::check_partition(graph, plan->partition).ok());
  EXPECT_EQ(plan->schedule, job::PipelineSchedule::k1F1B);
  EXPECT_THAT(plan->reason, HasSubstr("3 stages as asked over 5 idle peers"));
  EXPECT_THAT(plan->reason, HasSubstr("2 spares"));
  for (const auto& stage : plan->stages) EXPECT_GT(stage.memory_bytes, stage.parameter_bytes);
}

TEST(Planner, AutoUsesOneStageWhereThereIsOneMicroBatch) {
  const opdag::Graph graph = chain_graph(8, 4, 16);
  const auto one = make_plan(graph, chain_spec(4), peers_of(4), {});
  ASSERT_TRUE(one.ok()) << one.error().text();
  EXPECT_EQ(one->stages.size(), 1u);
  const auto many = make_plan(graph, chain_spec(4 * 64), peers_of(4), {});
  ASSERT_TRUE(many.ok());
  EXPECT_GT(many->stages.size(), 2u);
}

TEST(Planner, AutoSplitsTheBackwardWhereThatIsPredictedFaster) {
  const opdag::Graph graph = chain_graph(8, 64, 512);
  std::vector<PlannerPeer> peers = peers_of(4);
  const auto step = [&](int32_t stages, job::PipelineSchedule schedule) {
    job::JobSpec spec = chain_spec(64 * 8);
    spec.pipeline = {stages, schedule, 0};
    const auto report = plan_job(graph, spec, peers, {});
    EXPECT_TRUE(report.ok()) << report.error().text();
    return std::pair(report->plan.schedule, report->prediction.step_s);
  };
  using enum job::PipelineSchedule;
  EXPECT_EQ(step(4, kAuto).first, k1F1B) << "nobody knows how fast they are";
  for (size_t i = 0; i < peers.size(); ++i) peers[i].gflops = 100 + 10 * static_cast<double>(i);
  const auto chosen = step(4, kAuto);
  EXPECT_EQ(chosen.first, kZbH1);
  EXPECT_LT(chosen.second, 0.95 * step(4, k1F1B).second);
  EXPECT_EQ(step(1, kAuto).first, k1F1B) << "nothing waits";
  for (const int32_t stages : {0, 2, 3}) {
    EXPECT_LE(step(stages, kAuto).second, 1.02 * step(stages, k1F1B).second) << stages;
  }
}

TEST(Planner, TheGapIsAsAskedOrAsLinksAndMemoryHaveIt) {
  const opdag::Graph graph = chain_graph(6, 64, 256);
  std::vector<PlannerPeer> peers = peers_of(2);
  for (PlannerPeer& peer : peers) peer.gflops = 100;
  std::vector<PlannerLink> links = {{"p-0", "p-1", 20, 1000}, {"p-1", "p-0", 20, 1000}};
  job::JobSpec spec = chain_spec(64 * 32);
  spec.pipeline = {2, job::PipelineSchedule::k1F1B, 0};
  const auto ruled = plan_job(graph, spec, peers, links);
  ASSERT_TRUE(ruled.ok()) << ruled.error().text();
  const auto stored = job::plan_from_json(job::plan_to_json(ruled->plan));
  ASSERT_TRUE(stored.ok()) << stored.error().text();
  EXPECT_EQ(stored->step_s, ruled->prediction.step_s);
  for (size_t s = 0; s < 2; ++s) {
    EXPECT_EQ(stored->stages[s].send_s, 32 * ruled->prediction.stages[s].send_s);
    EXPECT_EQ(stored->stages[s].receive_s, 32 * ruled->prediction.stages[s].receive_s);
    EXPECT_EQ(stored->stages[s].in_flight, ruled->prediction.stages[s].in_flight);
    EXPECT_GT(stored->stages[s].send_s, 0);
  }
  EXPECT_GT(ruled->plan.gap, 4);
  spec.pipeline.gap = 1;
  const auto textbook = plan_job(graph, spec, peers, links);
  ASSERT_TRUE(textbook.ok());
  EXPECT_EQ(textbook->plan.gap, 1);
  EXPECT_GT(textbook->prediction.step_s, 1.5 * ruled->prediction.step_s);
  EXPECT_LT(textbook->prediction.stages[0].memory_bytes, ruled->prediction.stages[0].memory_bytes);
  spec.pipeline.gap = 3;
  const auto three = plan_job(graph, spec, peers, links);
  ASSERT_TRUE(three.ok());
  EXPECT_EQ(three->plan.gap, 3);
  EXPECT_THAT(three->plan.reason, HasSubstr("gap 3 as asked"));
  spec.pipeline.gap = 4096;
  EXPECT_EQ(plan_job(graph, spec, peers, links)->plan.gap, 32) << "there are no more micro-batches";
}

std::shared_ptr<const job::DeviceProfile> profile(double fp32_gflops, double bf16_gflops) {
  auto made = std::make_shared<job::DeviceProfile>();
  made->fp32.costs = job::plain_costs(1e-9 / fp32_gflops, 0, 0);
  made->bf16.costs = job::plain_costs(1e-9 / bf16_gflops, 0, 0);
  return made;
}

TEST(Planner, TheProfileInTheJobsPrecisionChoosesThePeer) {
  const opdag::Graph graph = chain_graph(8, 4, 64);
  job::JobSpec spec = chain_spec(8);
  spec.pipeline.stages = 1;
  std::vector<PlannerPeer> peers = peers_of(3);
  peers[0].profile = profile(0.1, 0.1);
  peers[1].profile = profile(0.2, 0.2);
  peers[2].profile = profile(0.15, 2);
  const auto single = plan_job(graph, spec, peers, {});
  ASSERT_TRUE(single.ok()) << single.error().text();
  EXPECT_TRUE(single->timed);
  const job::StagePlan& stage = single->plan.stages[0];
  EXPECT_EQ(stage.replicas[0], "p-1");
  EXPECT_EQ(stage.correction, 1);
  // Two micro-batches of the whole graph's FLOPs.
  EXPECT_NEAR(stage.compute_s, 2 * stage.flops / 0.2e9, 1e-6 * stage.compute_s);
  spec.train.precision = job::Precision::kBf16;
  EXPECT_EQ(plan_job(graph, spec, peers, {})->plan.stages[0].replicas[0], "p-2");
  spec.train.precision = job::Precision::kFp32;
  peers[1].correction = 4;  // real runs were that much slower
  const auto learned = plan_job(graph, spec, peers, {});
  EXPECT_EQ(learned->plan.stages[0].replicas[0], "p-2");
  peers[0].gflops = 1;  // the operator's word
  const auto told = plan_job(graph, spec, peers, {});
  EXPECT_EQ(told->plan.stages[0].replicas[0], "p-0");
  EXPECT_EQ(told->plan.stages[0].correction, 0);
  EXPECT_GT(told->plan.stages[0].compute_s, 0);
}

TEST(Planner, LibrariesTakeMemoryOfACardWhateverTheStage) {
  const opdag::Graph graph = chain_graph(8, 4, 64);
  job::JobSpec spec = chain_spec(8);
  spec.pipeline.stages = 1;
  const auto on = [&](bool card, uint64_t memory) {
    std::vector<PlannerPeer> peers = peers_of(1);
    peers[0].card = card;
    peers[0].memory_bytes = memory;
    return plan_job(graph, spec, peers, {});
  };
  constexpr uint64_t kMebibyte = 1 << 20;
  const auto host = on(false, 2048 * kMebibyte), card = on(true, 2048 * kMebibyte);
  ASSERT_TRUE(host.ok() && card.ok());
  EXPECT_EQ(card->plan.stages[0].memory_bytes,
            host->plan.stages[0].memory_bytes + static_cast<int64_t>(kLibraryBytes));
  EXPECT_LT(host->plan.stages[0].memory_bytes, 8 * static_cast<int64_t>(kMebibyte));
  EXPECT_TRUE(on(false, 280 * kMebibyte).ok());
  const auto small = on(true, 280 * kMebibyte);
  ASSERT_FALSE(small.ok());
  EXPECT_THAT(small.error().message, HasSubstr("too little memory for 1 stage"));
  EXPECT_TRUE(on(true, 300 * kMebibyte).ok());
}

TEST(Planner, APeerWithoutAProfileCountsAsTheMiddleOneButIsNotTimed) {
  const opdag::Graph graph = chain_graph(8, 4, 64);
  job::JobSpec spec = chain_spec(8);
  spec.pipeline.stages = 3;
  std::vector<PlannerPeer> peers = peers_of(3);
  peers[0].profile = profile(0.1, 0.1);
  peers[1].profile = profile(0.2, 0.2);
  const auto plan = plan_job(graph, spec, peers, {});
  ASSERT_TRUE(plan.ok()) << plan.error().text();
  EXPECT_FALSE(plan->timed);
  for (const job::StagePlan& stage : plan->plan.stages) {
    EXPECT_EQ(stage.compute_s > 0, stage.replicas[0] != "p-2");
  }
}

TEST(Planner, KeepsTheScheduleAskedForAndRefusesAnUnknownOne) {
  const opdag::Graph graph = chain_graph(8, 4, 16);
  job::JobSpec spec = chain_spec(32);
  spec.pipeline.stages = 2;
  for (const auto& [name, schedule] : job::Names<job::PipelineSchedule>::kAll) {
    spec.pipeline.schedule = schedule;
    const auto plan = make_plan(graph, spec, peers_of(2), {});
    ASSERT_TRUE(plan.ok()) << plan.error().text();
    EXPECT_EQ(plan->schedule,
              schedule == job::PipelineSchedule::kAuto ? job::PipelineSchedule::k1F1B : schedule);
    EXPECT_THAT(plan->reason, HasSubstr(job::name_of(plan->schedule)));
  }
  spec.pipeline.schedule = static_cast<job::PipelineSchedule>(99);
  const Error refused = make_plan(graph, spec, peers_of(2), {}).error();
  EXPECT_EQ(refused.code, Code::kInvalid);
  EXPECT_THAT(refused.text(), HasSubstr("pipeline.schedule 99"));
  EXPECT_THAT(refused.text(), HasSubstr("auto, gpipe, 1f1b"));
}

// Two stages of a chain on two peers of known speed.
class PlannerGap : public ::testing::Test {
 protected:
  PlannerGap() : spec_(chain_spec(4 * 32)), peers_(peers_of(2)) {
    spec_.pipeline.stages = 2;
    for (PlannerPeer& peer : peers_) peer.gflops = 0.01;
  }
  job::Plan plan(const std::vector<PlannerLink>& links) const {
    const auto made = make_plan(graph_, spec_, peers_, links);
    EXPECT_TRUE(made.ok()) << made.error().text();
    return made.ok() ? *made : job::Plan{};
  }
  // Of the slowest stage, as the plan counts its work.
  static double compute_s(const job::Plan& made) {
    return std::max(made.stages[0].flops, made.stages[1].flops) / (0.01 * 1e9);
  }
  double compute_s() const { return compute_s(plan({})); }

  opdag::Graph graph_ = chain_graph(8, 4, 16);
  const double message_bits_ = 8.0 * 4 * 16 * 4;  // the cut's tensor: 4 x 16 floats
  job::JobSpec spec_;
  std::vector<PlannerPeer> peers_;
};

TEST_F(PlannerGap, IsOneWhereNothingWasMeasured) {
  EXPECT_EQ(plan({}).gap, 1);
  EXPECT_EQ(plan({{"p-7", "p-8", 1000, 1}}).gap, 1) << "nobody's way";
  EXPECT_EQ(plan({{"p-0", "p-1", 0, 0}}).gap, 1);
  EXPECT_EQ(plan({{"p-0", "p-1", std::nan(""), std::nan("")}}).gap, 1);
  EXPECT_EQ(plan({{"p-0", "p-1", -5, -5}}).gap, 1);
  peers_[1].gflops = 0;
  EXPECT_EQ(plan({{"p-0", "p-1", 1000, 1}}).gap, 1) << "the speed of p-1 is unknown";
}

TEST_F(PlannerGap, FollowsLatencyTransferAndWorkOfEitherWay) {
  const double work_s = compute_s();
  ASSERT_GT(work_s, 0);
  for (const auto& [from, to] : {std::pair{"p-0", "p-1"}, std::pair{"p-1", "p-0"}}) {
    for (const double factor : {0.1, 0.6, 1.1, 2.7}) {
      const job::Plan far = plan({{from, to, 1e3 * factor * work_s, 0}});
      EXPECT_EQ(far.gap, job::gap_for(factor * work_s, 0, work_s)) << factor;
      EXPECT_THAT(far.reason, HasSubstr(fmt::format("gap {} (from {} to {}", far.gap, from, to)));
      const job::Plan narrow = plan({{from, to, 0, message_bits_ / (factor * work_s) / 1e6}});
      // Where the link is the bottleneck, stages need not be even.
      EXPECT_EQ(narrow.gap, job::gap_for(0, factor * work_s, compute_s(narrow))) << factor;
    }
  }
  // The worst way counts.
  EXPECT_EQ(plan({{"p-0", "p-1", 1.1e3 * work_s, 0}, {"p-1", "p-0", 3.2e3 * work_s, 0}}).gap,
            job::gap_for(3.2 * work_s, 0, work_s));
  EXPECT_EQ(plan({{"p-0", "p-1", 1e9, 0}}).gap, 32) << "there are no more micro-batches";
}

TEST_F(PlannerGap, CountsItsActivationsAndGivesWayToMemory) {
  spec_.pipeline.recompute = job::Recompute::kNever;
  spec_.pipeline.schedule = job::PipelineSchedule::k1F1B;
  graph_ = chain_graph(1, 4, 16);  // there is one place to cut
  const std::vector<PlannerLink> far = {{"p-0", "p-1", 3.9e3 * compute_s(), 0}};
  const job::Plan near = plan({}), wide = plan(far);
  ASSERT_EQ(wide.gap, 9);
  EXPECT_GT(wide.stages[0].memory_bytes, near.stages[0].memory_bytes);
  EXPECT_EQ(wide.stages[1].memory_bytes, near.stages[1].memory_bytes) << "the loss has no warm-up";
  const auto room = [&](int64_t bytes) {
    for (PlannerPeer& peer : peers_) {
      peer.memory_bytes = static_cast<uint64_t>(static_cast<double>(bytes) / 0.9) + 16;
    }
  };
  room((near.stages[0].memory_bytes + wide.stages[0].memory_bytes) / 2);
  const job::Plan less = plan(far);
  EXPECT_EQ(less.gap, 4);
  EXPECT_THAT(less.reason, HasSubstr("4 for want of memory instead of 9"));
  room(near.stages[0].memory_bytes);
  EXPECT_EQ(plan(far).gap, 1);
  EXPECT_THAT(plan(far).reason, HasSubstr("1 for want of memory instead of 9"));
}

// With other places to cut, a smaller first stage keeps more micro-batches instead.
TEST_F(PlannerGap, MakesRoomForItselfWhereThatIsFaster) {
  spec_.pipeline.recompute = job::Recompute::kNever;
  const std::vector<PlannerLink> far = {{"p-0", "p-1", 3.9e3 * compute_s(), 0}};
  const job::Plan near = plan({}), wide = plan(far);
  for (PlannerPeer& peer : peers_) {
    const double room =
        static_cast<double>(near.stages[0].memory_bytes + wide.stages[0].memory_bytes) / 2;
    peer.memory_bytes = static_cast<uint64_t>(room / 0.9) + 16;
  }
  const job::Plan moved = plan(far);
  EXPECT_GT(moved.gap, 4);
  EXPECT_LT(moved.stages[0].parameter_bytes, wide.stages[0].parameter_bytes);
  for (const auto& stage : moved.stages) {
    EXPECT_LE(static_cast<double>(stage.memory_bytes),
              0.9 * static_cast<double>(peers_[0].memory_bytes));
  }
}

TEST(Planner, APlanWhoseScheduleCannotRunIsRefused) {
  const opdag::Graph graph = chain_graph(8, 4, 16);
  job::JobSpec spec = chain_spec(32);
  for (const int32_t stages : {0, 3}) {
    spec.pipeline.stages = stages;
    PlannerOptions options;
    int32_t played = 0;
    options.make_schedule = [&](const opdag::StageGraph& stage_graph,
                                const job::ScheduleOptions& schedule) {
      played = schedule.micro_batches;
      auto actions = job::make_schedule(stage_graph, schedule);
      std::swap(actions[1][0], actions[1][1]);  // forward before its input
      return actions;
    };
    const auto refused = make_plan(graph, spec, peers_of(5), {}, options);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::kInternal);
    EXPECT_THAT(refused.error().message, HasSubstr("under 1f1b cannot run: deadlock: stage"));
    EXPECT_EQ(played, 8);
  }
}

TEST(Planner, ChecksSchedulesOfVeryManyMicroBatchesInBoundedWork) {
  const opdag::Graph graph = chain_graph(8, 4, 16);
  job::JobSpec spec = chain_spec(4 * 65536);
  spec.pipeline.stages = 8;
  size_t actions = 0;
  PlannerOptions options;
  options.make_schedule = [&](const opdag::StageGraph& stage_graph,
                              const job::ScheduleOptions& schedule) {
    auto made = job::make_schedule(stage_graph, schedule);
    for (const auto& stage : made) actions += stage.size();
    return made;
  };
  for (const auto schedule : {job::PipelineSchedule::kGPipe, job::PipelineSchedule::k1F1B}) {
    actions = 0;
    spec.pipeline.schedule = schedule;
    ASSERT_TRUE(make_plan(graph, spec, peers_of(8, 0), {}, options).ok());
    EXPECT_GT(actions, 100000u);
    EXPECT_LT(actions, 2500000u);
  }
}

TEST(Planner, SaysWhatIsMissing) {
  const opdag::Graph graph = chain_graph(4, 4, 16);
  job::JobSpec spec = chain_spec(8);
  EXPECT_EQ(make_plan(graph, spec, {}, {}).error().code, Code::kUnavailable);
  EXPECT_THAT(make_plan(graph, spec, {}, {}).error().message, HasSubstr("no peers"));
  spec.pipeline.stages = 3;
  EXPECT_THAT(make_plan(graph, spec, peers_of(2), {}).error().message,
              HasSubstr("3 stages need 3 peers, 2 are idle"));
  spec.pipeline.stages = 1000;
  const Error many = make_plan(graph, spec, peers_of(2), {}).error();
  EXPECT_EQ(many.code, Code::kInvalid);
  EXPECT_THAT(many.message, HasSubstr("more stages than nodes"));
  spec.pipeline.stages = 2;
  const Error memory = make_plan(graph, spec, peers_of(2, 100), {}).error();
  EXPECT_EQ(memory.code, Code::kUnavailable);
  EXPECT_THAT(memory.message, HasSubstr("too little memory"));
  spec = chain_spec(7);
  EXPECT_THAT(make_plan(graph, spec, peers_of(2), {}).error().message,
              HasSubstr("not a multiple of the exported batch 4"));
  spec = chain_spec(8);
  spec.train.micro_batch = 4;
  EXPECT_TRUE(make_plan(graph, spec, peers_of(2), {}).ok());
  spec.train.micro_batch = 2;
  EXPECT_THAT(make_plan(graph, spec, peers_of(2), {}).error().text(),
              HasSubstr("the export's batch is fixed at 4"));
}

RC_GTEST_PROP(PlannerProperty, EveryPlanIsLegalAndUsesEachPeerOnce, ()) {
  const int layers = *rc::gen::inRange(2, 10);
  const auto count = static_cast<size_t>(*rc::gen::inRange(1, 7));
  const opdag::Graph graph = chain_graph(layers, 4, 8);
  job::JobSpec spec = chain_spec(4 * *rc::gen::inRange(1, 20));
  spec.pipeline.stages = *rc::gen::inRange(0, 5);
  const auto plan = make_plan(graph, spec, peers_of(count), {});
  if (!plan.ok()) {
    RC_ASSERT(spec.pipeline.stages > static_cast<int32_t>(count) ||
              plan.error().code == Code::kInvalid);
    return;
  }
  RC_ASSERT(opdag::check_partition(graph, plan->partition).ok());
  std::set<std::string> used;
  for (const auto& stage : plan->stages) RC_ASSERT(used.insert(stage.replicas.at(0)).second);
  RC_ASSERT(make_plan(graph, spec, peers_of(count), {})->reason == plan->reason);
}

}  // namespace
}  // namespace weft::broker
