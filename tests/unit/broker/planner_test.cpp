#include "broker/planner/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "graphs.h"
#include "job/names.h"

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
