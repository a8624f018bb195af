// What a stage is sent to resume from, and whether a checkpoint is whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "broker/worker_spec_builder.h"
#include "graphs.h"

namespace weft::broker {
namespace {

using ::testing::HasSubstr;

std::string sha(char digit) {
  return std::string(64, digit);
}

// Four layers on two stages, resumed from a checkpoint of another cut.
class Resume : public ::testing::Test {
 protected:
  Resume() {
    graphs_.graph = graphs_.eval_graph = testing::chain_graph(4, 4, 8);
    submission_.spec = testing::chain_spec(16);
    job_.id = "j";
    job_.steps = 20;
    job_.resume_step = 10;
    job::Plan plan;
    plan.partition = {2, {0, 0, 1, 1, 1}};
    plan.stages.resize(2);
    job_.plan = plan;
    Checkpoint point;
    point.step = 10;
    point.stages = 3;
    point.complete = true;
    point.shards[0] = {0, sha('a'), 1, {"layer0.weight", "optimizer/exp_avg/layer0.weight"}};
    point.shards[1] = {1, sha('b'), 1, {"layer1.weight", "layer2.weight"}};
    point.shards[2] = {2, sha('c'), 1, {"layer3.weight", "optimizer/exp_avg/layer3.weight"}};
    job_.checkpoints[10] = point;
  }
  std::vector<std::string> shards_of(int32_t stage) {
    const auto spec = build_worker_spec(job_, submission_, graphs_, stage);
    EXPECT_TRUE(spec.ok()) << spec.error().text();
    std::vector<std::string> names;
    if (spec.ok()) {
      for (const job::BlobRef& shard : spec->resume.shards) names.push_back(shard.sha256);
    }
    return names;
  }

  JobGraphs graphs_;
  Submission submission_;
  Job job_;
};

TEST_F(Resume, AStageGetsTheShardsThatHoldItsTensors) {
  EXPECT_EQ(shards_of(0), (std::vector<std::string>{sha('a'), sha('b')}));
  EXPECT_EQ(shards_of(1), (std::vector<std::string>{sha('b'), sha('c')}));
}

TEST_F(Resume, OptimizerStateCountsUnderItsParameter) {
  job_.checkpoints[10].shards[0].tensors = {"optimizer/exp_avg/layer3.weight"};
  EXPECT_EQ(shards_of(1), (std::vector<std::string>{sha('a'), sha('b'), sha('c')}));
}

TEST_F(Resume, AStageWithoutWeightsTakesTheLossScalerOfTheSmallestShard) {
  job_.plan->partition = {2, {0, 0, 0, 0, 1}};  // stage 1 has the loss alone
  EXPECT_TRUE(shards_of(1).empty());
  submission_.spec.train.precision = job::Precision::kFp16;
  job_.checkpoints[10].shards[0].bytes = 3;
  job_.checkpoints[10].shards[2].bytes = 2;
  EXPECT_EQ(shards_of(1), (std::vector<std::string>{sha('b')}));
  EXPECT_EQ(shards_of(0).size(), 3u);
}

TEST_F(Resume, StartingWeightsAreSentOnlyWhereTheyAreTaken) {
  submission_.init = {sha('d'), 1u << 30, ""};
  const auto sent = [&](int32_t stage) {
    const auto spec = build_worker_spec(job_, submission_, graphs_, stage);
    EXPECT_TRUE(spec.ok()) << spec.error().text();
    const auto blobs = blobs_of(*spec);
    const bool fetched = std::any_of(blobs.begin(), blobs.end(), [](const job::BlobRef& blob) {
      return blob.sha256 == sha('d');
    });
    EXPECT_EQ(fetched, spec->init.sha256 == sha('d'));
    return fetched;
  };
  for (int32_t stage : {0, 1}) EXPECT_FALSE(sent(stage)) << "the checkpoint has them";
  job_.resume_step = 0;
  job_.checkpoints.clear();
  for (int32_t stage : {0, 1}) EXPECT_TRUE(sent(stage));
  job_.plan->partition = {2, {0, 0, 0, 0, 1}};  // stage 1 has the loss alone, no weight
  EXPECT_TRUE(sent(0));
  EXPECT_FALSE(sent(1));
}

TEST_F(Resume, ATiedWeightIsFoundUnderItsOtherName) {
  for (opdag::Graph* graph : {&graphs_.graph, &graphs_.eval_graph}) {
    graph->leaves[0].tied_group = graph->leaves[3].tied_group = 7;
  }
  EXPECT_EQ(shards_of(1), (std::vector<std::string>{sha('a'), sha('b'), sha('c')}));
  job_.checkpoints[10].shards[2].tensors.clear();
  EXPECT_TRUE(check_resume_point(job_, graphs_.graph).ok());
}

TEST_F(Resume, ACheckpointThatMissesATensorIsRefusedByName) {
  EXPECT_TRUE(check_resume_point(job_, graphs_.graph).ok());
  job_.checkpoints[10].shards[1].tensors = {"layer1.weight"};
  const Status refused = check_resume_point(job_, graphs_.graph);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kCorrupt);
  EXPECT_THAT(refused.error().message, HasSubstr("layer2.weight"));
  job_.resume_step = 0;
  EXPECT_TRUE(check_resume_point(job_, graphs_.graph).ok());
  job_.resume_step = 5;
  EXPECT_EQ(check_resume_point(job_, graphs_.graph).error().code, Code::kInternal);
}

}  // namespace
}  // namespace weft::broker
