// Compression costs: what codecs change in the model of a step, in the search and in reports.
#include "broker/planner/compression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "broker/planner/compression_file.h"
#include "broker/planner/cut_codecs.h"
#include "broker/planner/cut_costs.h"
#include "broker/planner/planner.h"
#include "broker/planner/report_json.h"
#include "tests/unit/broker/graphs.h"
#include "tests/unit/planner/problems.h"

namespace weft::broker {
namespace {

using job::PipelineSchedule;
using testing::chain_graph;
using testing::chain_spec;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ProblemShape;
using testing::random_problem;

// Two stages of forward 1 and backward 2 seconds; an edge of 10 bytes over links of a byte a second
// and 4 seconds of latency, sent as 3 bytes and 2; encoding takes .5 and 1, decoding .25 and .125.
struct TwoStages {
  explicit TwoStages(bool compressed) : network(2) {
    pipeline.graph = {2, {{0, 0, 0, 1, true, 10}}, 1};
    pipeline.stages = {{0, 1, 2}, {1, 1, 2}};
    network.set(0, 1, 4, 1);
    network.set(1, 0, 4, 1);
    if (compressed) set_codecs(pipeline, {{{3, 0.5, 0.25, "a"}, {2, 1, 0.125, "b"}}});
  }
  double step(PipelineSchedule kind, int32_t micro_batches, int32_t gap) const {
    return simulate_step(pipeline, network, {kind, micro_batches, gap});
  }
  Pipeline pipeline;
  Network network;
};

TEST(Codecs, AMessageIsEncodedSentAndDecoded) {
  const double forward = 1 + 0.5 + 3 + 4 + 0.25 + 1;
  const double backward = 2 + 1 + 2 + 4 + 0.125 + 2;
  for (const auto kind : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B}) {
    EXPECT_DOUBLE_EQ(TwoStages(true).step(kind, 1, 1), forward + backward);
    EXPECT_DOUBLE_EQ(TwoStages(false).step(kind, 1, 1), 2 * (1 + 2) + 2 * (10 + 4));
  }
}

TEST(Codecs, TakeTheTimeOfTheirStages) {
  TwoStages two(true);
  two.pipeline.stages = {{0, 1, 2}, {1, 1, 2}};
  set_codecs(two.pipeline, {{{1, 1.5, 0, "a"}, {1, 0, 2, "b"}}});
  // Stage 0 works 3 of its own, 1.5 to encode and 2 to decode; links and stage 1 wait for it.
  const double more =
      two.step(PipelineSchedule::k1F1B, 60, 8) - two.step(PipelineSchedule::k1F1B, 20, 8);
  EXPECT_NEAR(more / 40, 3 + 1.5 + 2, 1e-4);
}

TEST(Codecs, ArePredictedAndNamed) {
  const TwoStages two(true);
  const Prediction told = predict(two.pipeline, two.network, {PipelineSchedule::k1F1B, 16, 4});
  ASSERT_EQ(told.ways.size(), 2u);
  const WayPrediction& there = told.ways[0];
  EXPECT_EQ(there.bytes, 10);
  EXPECT_EQ(there.wire_bytes, 3);
  EXPECT_EQ(there.seconds, 3);
  EXPECT_EQ(there.encode_s, 0.5);
  EXPECT_EQ(there.decode_s, 0.25);
  EXPECT_THAT(there.codecs, ElementsAre("a"));
  EXPECT_THAT(told.ways[1].codecs, ElementsAre("b"));
  EXPECT_DOUBLE_EQ(told.stages[0].codec_s, 0.5 + 0.125);
  EXPECT_DOUBLE_EQ(told.stages[0].compute_s, 3 + 0.5 + 0.125);
  EXPECT_DOUBLE_EQ(told.stages[1].codec_s, 0.25 + 1);
  // Without codecs a link of 10 seconds rules; now the stage that encodes most does.
  EXPECT_EQ(told.bottleneck.kind, BottleneckKind::kCompute);
  EXPECT_EQ(told.bottleneck.stage, 1);
  EXPECT_DOUBLE_EQ(told.bottleneck.seconds, 3 + 1.25);
  const TwoStages plain(false);
  const job::ScheduleOptions schedule{PipelineSchedule::k1F1B, 16, 8};
  EXPECT_EQ(bottleneck_of(plain.pipeline, plain.network, schedule).kind, BottleneckKind::kLink);
  EXPECT_LT(choose_gap(two.pipeline, two.network, 16).gap,
            choose_gap(plain.pipeline, plain.network, 16).gap);
}

TEST(Codecs, AreNotRunAgainWhereForwardsAre) {
  TwoStages two(true);
  const double once = two.step(PipelineSchedule::kGPipe, 1, 1);
  two.pipeline.stages[0].recompute = true;
  EXPECT_DOUBLE_EQ(two.step(PipelineSchedule::kGPipe, 1, 1), once + 1);
}

// Whoever answers with what he was asked about has changed nothing.
RC_GTEST_PROP(CodecProperty, ThatLeaveMessagesAsTheyAreChangeNothing, (uint64_t seed)) {
  ProblemShape shape;
  shape.peers = *rc::gen::inRange(1, 8);
  shape.units = *rc::gen::inRange(1, 20);
  shape.tight_memory = *rc::gen::arbitrary<bool>();
  shape.access = *rc::gen::arbitrary<bool>();
  const Problem plain = random_problem(seed, shape);
  Problem same = plain;
  same.compressor = Compressor({"same", {}, [](const Crossing& crossing) {
                                  return Coded{crossing.bytes, 0, 0, {}};
                                }});
  SearchOptions quick;
  quick.operations = 1e6;
  const Found a = search(plain, quick), b = search(same, quick);
  RC_ASSERT(a.layouts.empty() == b.layouts.empty());
  if (a.layouts.empty()) return;
  // The splits try other bounds in another order, so that they may end elsewhere.
  RC_ASSERT(std::abs(a.layouts[0].step_s / b.layouts[0].step_s - 1) < 0.1);
  const Layout& layout = a.layouts[0].layout;
  RC_ASSERT(estimate_layout(plain, layout) == estimate_layout(same, layout));
  // Edges have whole bytes, what is on the wire need not.
  const double step_s = score_layout(plain, layout).step_s;
  RC_ASSERT(std::abs(score_layout(same, layout).step_s / step_s - 1) < 1e-4);
}

// Four equal units of a second. The cut in the middle carries a hundred times what the others do:
// without a codec it is avoided, with one it is the best.
TEST(Codecs, ChooseTheCut) {
  Problem problem;
  problem.chain = Chain(4);
  problem.chain.forward_bytes = problem.chain.backward_bytes = {0, 1e5, 1e7, 1e5, 0};
  for (int peer = 0; peer < 2; ++peer) {
    problem.forward_s.push_back({0, 0.25, 0.5, 0.75, 1});
    problem.backward_s.push_back({0, 0.75, 1.5, 2.25, 3});
    problem.memory_bytes.push_back(std::numeric_limits<double>::infinity());
  }
  problem.network = Network(2);
  problem.network.set(0, 1, 1e-3, 1e-6);
  problem.network.set(1, 0, 1e-3, 1e-6);
  problem.schedule = {PipelineSchedule::k1F1B, 32, 1};
  EXPECT_NE(search(problem).layouts[0].layout.ends, (std::vector<int32_t>{2, 4}));
  problem.compressor = Compressor(assumed_compression({0.01, 10, 0}));
  const Found found = search(problem);
  EXPECT_EQ(found.layouts[0].layout.ends, (std::vector<int32_t>{2, 4}));
  EXPECT_LT(found.layouts[0].step_s, 0.7 * found.single_peer->step_s);
}

// The kinds say of every way and cut what the policy does, where there are few kinds.
TEST(CutCostsTest, AreThePolicysOwnWhereWaysAreFew) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    ProblemShape shape;
    shape.units = 12;
    shape.compress = true;
    const Problem problem = random_problem(seed, shape);
    const CutCosts costs(problem);
    EXPECT_EQ(costs.kinds(), 12u);
    double least_s = 0;
    for (int32_t peer = 0; peer < 4; ++peer) least_s += 1 / problem.work(peer, 0, 12);
    for (int32_t a = 0; a < 4; ++a) {
      for (int32_t b = 0; b < 4; ++b) {
        if (a == b) continue;
        const CutCosts::Kind& kind = costs.kind(costs.kind_of(a, b));
        const auto from = static_cast<size_t>(a), to = static_cast<size_t>(b);
        std::vector<double> counted;
        for (int32_t cut = 1; cut < 12; ++cut) {
          const auto at = static_cast<size_t>(cut);
          const CutMessages asked = messages_over(problem, a, b, cut, 1 / least_s);
          EXPECT_DOUBLE_EQ(kind.there_bytes[at], asked.there);
          EXPECT_DOUBLE_EQ(kind.codec_s[at], asked.sender_s() + asked.receiver_s());
          const double transfer = std::max(asked.there * problem.network.seconds_per_byte(from, to),
                                           asked.back * problem.network.seconds_per_byte(to, from));
          counted.push_back(CutCosts::seconds(kind, costs.coefficient(a, b), cut));
          EXPECT_NEAR(counted.back(), std::max({transfer, asked.sender_s(), asked.receiver_s()}),
                      1e-12);
        }
        const double bound = counted[3];
        const auto within = std::count_if(counted.begin(), counted.end(),
                                          [&](double s) { return s <= bound * (1 + 1e-9); });
        EXPECT_EQ(CutCosts::allowed(kind, costs.coefficient(a, b), bound * (1 + 1e-9)),
                  static_cast<size_t>(within));
      }
    }
  }
}

TEST(CutCostsTest, TheSlowestBoundHasAllCuts) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    ProblemShape shape;
    shape.compress = seed % 2 == 0;
    const Problem problem = random_problem(seed, shape);
    const CutCosts costs(problem);
    const CutCosts::Kind& kind = costs.kind(costs.kind_of(0, 1));
    const double coefficient = costs.coefficient(0, 1);
    EXPECT_EQ(CutCosts::allowed(kind, coefficient, CutCosts::slowest(kind, coefficient)), 7u);
  }
}

TEST(CutCostsTest, SpeakForWaysOfAboutTheirRateWhereThereAreMany) {
  ProblemShape shape;
  shape.peers = 40;
  shape.units = 10;
  Problem problem = random_problem(3, shape);
  problem.compressor = Compressor(assumed_compression({0.1, 0, 100}));
  const CutCosts costs(problem);
  EXPECT_LE(costs.kinds(), CutCosts::kMostKinds);
  EXPECT_GT(costs.kinds(), 20u);
  int right = 0, all = 0;
  for (int32_t a = 0; a < 40; ++a) {
    for (int32_t b = 0; b < 40; ++b) {
      if (a == b) continue;
      const double told = costs.kind(costs.kind_of(a, b)).there_bytes[5];
      right += told == messages_over(problem, a, b, 5, 0).there;
      ++all;
    }
  }
  EXPECT_GT(right, 0.85 * all) << "of " << all;
}

struct World {
  World() : graph(chain_graph(16, 64, 512)), spec(chain_spec(64 * 64)) {
    for (const char* id : {"a1", "a2", "b1", "b2"}) {
      peers.push_back({id, 4, uint64_t{1} << 30, 100, 20, 5});
    }
    for (const PlannerPeer& from : peers) {
      for (const PlannerPeer& to : peers) {
        const bool near = from.id[0] == to.id[0];
        if (from.id != to.id) links.push_back({from.id, to.id, near ? 0.1 : 20, near ? 1e4 : 40.0});
      }
    }
  }
  Result<PlanReport> plan(const Compression& compression) const {
    PlannerOptions options;
    options.compression = compression;
    return plan_job(graph, spec, peers, links, options);
  }
  opdag::Graph graph;
  job::JobSpec spec;
  std::vector<PlannerPeer> peers;
  std::vector<PlannerLink> links;
};

TEST(PlanCompressed, SpansSitesThatAThinLineKeepsApart) {
  const World world;
  const auto plain = world.plan({});
  const auto compressed = world.plan(assumed_compression({0.02, 4, 500}));
  ASSERT_TRUE(plain.ok() && compressed.ok());
  EXPECT_EQ(plain->plan.stages.size(), 2u) << plain->plan.reason;
  EXPECT_EQ(compressed->plan.stages.size(), 4u) << compressed->plan.reason;
  EXPECT_LT(compressed->prediction.step_s, plain->prediction.step_s);
  EXPECT_THAT(compressed->plan.reason, HasSubstr("2 of 6 ways are compressed (assumed)"));
  EXPECT_THAT(compressed->notes, Contains(HasSubstr("assumed, not measured: 0.02 of the bytes")));
  const nlohmann::json json = report_to_json(*compressed, world.graph);
  EXPECT_EQ(json.at("compression"), "assumed");
  int ways = 0;
  for (const auto& way : json.at("ways")) {
    if (way.at("codecs").empty()) {
      EXPECT_EQ(way.at("wire_bytes"), way.at("bytes"));
      continue;
    }
    ++ways;
    EXPECT_NEAR(way.at("wire_bytes").get<double>(), 0.02 * way.at("bytes").get<double>(), 1e-6);
    EXPECT_NEAR(way.at("encode_s").get<double>(), way.at("bytes").get<double>() / 4e9, 1e-12);
  }
  EXPECT_EQ(ways, 2);
  EXPECT_EQ(report_to_json(*plain, world.graph).at("compression"), "none");
  EXPECT_THAT(plain->plan.reason, Not(HasSubstr("compress")));
}

TEST(PlanCompressed, IsJudgedAndPlayedAlike) {
  const World world;
  PlannerOptions options;
  options.compression = assumed_compression({0.02, 4, 500});
  const auto made = plan_job(world.graph, world.spec, world.peers, world.links, options);
  ASSERT_TRUE(made.ok());
  const auto judged =
      evaluate_plan(world.graph, world.spec, made->plan, world.peers, world.links, options);
  ASSERT_TRUE(judged.ok());
  EXPECT_EQ(judged->prediction.step_s, made->prediction.step_s);
  std::vector<PlannerPeer> holders;
  std::vector<std::string> ids;
  for (const job::StagePlan& stage : made->plan.stages) {
    ids.push_back(stage.replicas[0]);
    for (const PlannerPeer& peer : world.peers) {
      if (peer.id == ids.back()) holders.push_back(peer);
    }
  }
  const auto pipeline =
      pipeline_of_plan(world.graph, world.spec, made->plan, holders, world.links, options);
  ASSERT_TRUE(pipeline.ok());
  EXPECT_EQ(simulate_step(*pipeline, Network(ids, world.links, {}),
                          {made->plan.schedule, made->micro_batches, made->plan.gap}),
            made->prediction.step_s);
}

TEST(PlanCompressed, TellsThePolicyWhatIsSent) {
  World world;
  world.spec.train.precision = job::Precision::kBf16;
  world.spec.pipeline.stages = 4;
  world.spec.pipeline.schedule = job::PipelineSchedule::k1F1B;  // "auto" asks from two threads
  std::vector<Crossing> asked;
  const auto report = world.plan({"spy", {}, [&](const Crossing& crossing) {
                                    asked.push_back(crossing);
                                    return Coded{crossing.bytes, 0, 0, {}};
                                  }});
  ASSERT_TRUE(report.ok()) << report.error().text();
  bool forward = false, backward = false, far = false;
  for (const Crossing& crossing : asked) {
    EXPECT_EQ(crossing.bytes, 2 * 64 * 512) << "a matrix product's result under autocast";
    EXPECT_EQ(crossing.dtype, DType::kBFloat16);
    EXPECT_GT(crossing.slowest_stage_s, 0);
    EXPECT_DOUBLE_EQ(crossing.sender.byte_s, 1e-9 / 20);
    EXPECT_DOUBLE_EQ(crossing.receiver.op_s, 5e-6);
    (crossing.gradient ? backward : forward) = true;
    far = far || (crossing.latency_s == 0.02 && crossing.byte_s == seconds_per_byte_at(40));
  }
  EXPECT_TRUE(forward && backward && far);
}

TEST(PlanCompressed, RefusesWhatNoCodecCanDo) {
  World world;
  world.spec.pipeline.stages = 2;
  const double infinite = std::numeric_limits<double>::infinity();
  const std::vector<Coded> wrong = {{0, 0, 0, "x"},
                                    {-1, 0, 0, "x"},
                                    {1e9, 0, 0, "x"},
                                    {std::nan(""), 0, 0, "x"},
                                    {100, -1e-9, 0, "x"},
                                    {100, 0, infinite, "x"},
                                    {100, std::nan(""), 0, "x"}};
  for (const Coded& answer : wrong) {
    const Compression compression{"broken", {}, [&](const Crossing&) { return answer; }};
    const auto report = world.plan(compression);
    ASSERT_FALSE(report.ok()) << answer.wire_bytes << " " << answer.encode_s;
    EXPECT_EQ(report.error().code, Code::kInvalid);
    EXPECT_THAT(report.error().message, HasSubstr("compression \"broken\" answers"));
    EXPECT_THAT(report.error().next, HasSubstr("wire bytes are above 0 and at most 2 times"));
  }
  // A codec's header may make a small message larger.
  const auto header = [](const Crossing& c) { return Coded{c.bytes + 64, 0, 0, "h"}; };
  EXPECT_TRUE(world.plan({"header", {}, header}).ok());
}

TEST(AssumedCodecTest, CompressesFloatsOnSlowWaysOrWhereItPays) {
  const auto bytes = [](const AssumedCodec& codec, const Crossing& crossing) {
    return assumed_compression(codec).policy(crossing).wire_bytes;
  };
  const MemorySpeed memory{1e-5, 1e-10};
  Crossing slow{1e6, DType::kFloat16, false, 0.02, seconds_per_byte_at(100), memory, memory, 1};
  Crossing fast = slow;
  fast.byte_s = seconds_per_byte_at(1000);
  EXPECT_EQ(bytes({0.1, 4, 500}, slow), 1e5);
  EXPECT_EQ(bytes({0.1, 4, 500}, fast), 1e6);
  // 7.2 ms are saved on the fast way; two ends at .2 GB/s take 10, at .5 GB/s 4.
  EXPECT_EQ(bytes({0.1, 0.2, 0}, fast), 1e6);
  EXPECT_EQ(bytes({0.1, 0.5, 0}, fast), 1e5);
  EXPECT_EQ(bytes({0.1, 0.2, 0}, slow), 1e5);
  const Coded by_memory = assumed_compression({0.1, 0, 0}).policy(slow);
  EXPECT_DOUBLE_EQ(by_memory.encode_s, 1e-5 + 2e6 * 1e-10);
  slow.dtype = DType::kInt64;
  EXPECT_EQ(bytes({0.1, 4, 500}, slow), 1e6);
}

TEST(CompressionFile, SaysWhatExistsAndWhatIsWrong) {
  const auto error = [](const char* text) {
    const auto read = parse_compression(text, "codec.toml");
    return read.ok() ? std::string("accepted") : read.error().text();
  };
  const auto read =
      parse_compression("policy = 'assumed'\nratio = 0.1\ngbyte_s = 4\nbelow_mbit_s = 500", "c");
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(read->assumed, "0.1 of the bytes, 4 GB/s at either end, on ways below 500 Mbit/s");
  const auto none = parse_compression("policy = 'none'", "c");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->policy, nullptr);
  EXPECT_THAT(error("policy = 'adatopk'\nratio = 0.1"),
              AllOf(HasSubstr("codec.toml: there is no policy \"adatopk\""),
                    HasSubstr("none (everything"), HasSubstr("assumed (")));
  EXPECT_THAT(error("ratio = 0.1"), HasSubstr("codec.toml: it names no policy"));
  EXPECT_THAT(error("policy = 3"), HasSubstr("policy must be a text"));
  EXPECT_THAT(error("policy = 'assumed'"), HasSubstr("has no ratio"));
  EXPECT_THAT(error("policy = 'assumed'\nratio = 1.5"), HasSubstr("ratio must be a number"));
  EXPECT_THAT(error("policy = 'assumed'\nratio = 0.1\nlevel = 3"), HasSubstr("level"));
  EXPECT_THAT(error("policy = 'none'\nratio = 0.1"), HasSubstr("ratio"));
}

}  // namespace
}  // namespace weft::broker
