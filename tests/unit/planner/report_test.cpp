// Plans of graphs over networks, their reports, and plans of others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "broker/planner/planner.h"
#include "job/names.h"
#include "tests/unit/broker/graphs.h"
#include "tests/unit/planner/problems.h"

namespace weft::broker {
namespace {

using testing::chain_graph;
using testing::chain_spec;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two sites of two peers; links of `between` Mbit/s and 20 ms between them.
struct TwoSites {
  explicit TwoSites(double between) {
    for (const char* id : {"a1", "b1", "a2", "b2"}) {
      peers.push_back({id, 4, uint64_t{1} << 30, 100, 20, 0});
    }
    for (const PlannerPeer& from : peers) {
      for (const PlannerPeer& to : peers) {
        if (from.id == to.id) continue;
        const bool near = from.id[0] == to.id[0];
        links.push_back({from.id, to.id, near ? 0.1 : 20, near ? 10000 : between});
      }
    }
  }
  std::vector<PlannerPeer> peers;
  std::vector<PlannerLink> links;
};

TEST(PlanReport, StaysInOneSiteWhereTheWayBetweenIsThin) {
  const opdag::Graph graph = chain_graph(16, 64, 512);
  const TwoSites world(20);
  const auto report = plan_job(graph, chain_spec(64 * 32), world.peers, world.links);
  ASSERT_TRUE(report.ok()) << report.error().text();
  ASSERT_EQ(report->plan.stages.size(), 2u);
  EXPECT_EQ(report->plan.stages[0].replicas[0][0], report->plan.stages[1].replicas[0][0]);
  EXPECT_THAT(report->sites, ElementsAre(ElementsAre("a1", "a2"), ElementsAre("b1", "b2")));
  ASSERT_EQ(report->alternatives.size(), 2u);
  EXPECT_EQ(report->alternatives[0].what, "best single peer");
  EXPECT_GT(report->alternatives[0].step_s, report->prediction.step_s);
  EXPECT_THAT(report->plan.reason, HasSubstr("it is the best single site"));
  EXPECT_THAT(report->plan.reason, HasSubstr("a step predicted"));
  EXPECT_EQ(report->left_out.size(), 2u);
  EXPECT_THAT(report->left_out[0].why, HasSubstr("not get shorter"));
  EXPECT_TRUE(report->timed);
}

TEST(PlanReport, SpansSitesWhereThatPays) {
  const opdag::Graph graph = chain_graph(16, 64, 512);
  const TwoSites world(2000);
  const auto report = plan_job(graph, chain_spec(64 * 256), world.peers, world.links);
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->plan.stages.size(), 4u);
  int crossings = 0;
  for (size_t s = 1; s < 4; ++s) {
    crossings += report->plan.stages[s].replicas[0][0] != report->plan.stages[s - 1].replicas[0][0];
  }
  EXPECT_EQ(crossings, 1) << report->plan.reason;
  EXPECT_GT(report->plan.gap, 1) << "it hides the latency";
  for (const auto& other : report->alternatives) {
    EXPECT_GT(other.step_s, report->prediction.step_s) << other.what;
  }
}

TEST(PlanReport, ASharedUplinkCounts) {
  const opdag::Graph graph = chain_graph(16, 64, 512);
  const TwoSites world(2000);
  PlannerOptions options;
  options.access = {{"site a", {"a1", "a2"}, 10, 10}};
  const auto report = plan_job(graph, chain_spec(64 * 256), world.peers, world.links, options);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->plan.stages.size(), 2u) << report->plan.reason;
}

TEST(PlanReport, PutsTheWorkWhereTheSpeedIs) {
  const opdag::Graph graph = chain_graph(18, 64, 256);
  std::vector<PlannerPeer> peers = {{"slow", 4, 0, 10}, {"fast", 4, 0, 80}};
  job::JobSpec spec = chain_spec(64 * 64);
  spec.pipeline.stages = 2;
  const auto report = plan_job(graph, spec, peers, {});
  ASSERT_TRUE(report.ok());
  double slow = 0, fast = 0;
  for (const auto& stage : report->plan.stages) {
    (stage.replicas[0] == "slow" ? slow : fast) = stage.flops;
  }
  EXPECT_NEAR(fast / slow, 8, 1.5) << report->plan.reason;
  EXPECT_EQ(report->notes.size(), 1u) << "links were not measured";
}

TEST(PlanReport, SaysWhatItAssumedAndWhatItLeftOut) {
  const opdag::Graph graph = chain_graph(8, 4, 64);
  std::vector<PlannerPeer> peers = {
      {"p0", 4, 0, 100}, {"p1", 4, 0, 0}, {"p2", 4, 0, 50}, {"tiny", 4, 1000, 100}};
  const auto report =
      plan_job(graph, chain_spec(4 * 64), peers, {{"p0", "p1", 1, 100}, {"p0", "p2", -3, 100}});
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(report->notes, Contains(HasSubstr("the speed of 1 of 4 peers is unknown")));
  EXPECT_THAT(report->notes, Contains(HasSubstr("1 link with a negative or missing number")));
  EXPECT_THAT(report->notes, Contains(HasSubstr("5 of 6 pairs of peers were never measured")));
  bool tiny = false;
  for (const auto& left : report->left_out) {
    if (left.peer != "tiny") continue;
    tiny = true;
    EXPECT_THAT(left.why, HasSubstr("too small"));
  }
  EXPECT_TRUE(tiny);
}

TEST(PlanReport, MemoryThatOthersUseIsNotPlannedWith) {
  const opdag::Graph graph = chain_graph(8, 4, 64);
  constexpr uint64_t kWhole = 4 << 20;
  std::vector<PlannerPeer> peers = {{"idle", 4, kWhole, 50}, {"gamer", 4, kWhole, 100}};
  job::JobSpec spec = chain_spec(4 * 64);
  spec.pipeline.stages = 1;
  const auto runs_on = [&]() -> std::string {
    const auto report = plan_job(graph, spec, peers, {});
    return report.ok() ? report->plan.stages[0].replicas[0] : report.error().message;
  };
  const auto first = plan_job(graph, spec, peers, {});
  ASSERT_TRUE(first.ok()) << first.error().text();
  ASSERT_EQ(first->plan.stages[0].replicas[0], "gamer");
  const auto needs = static_cast<double>(first->plan.stages[0].memory_bytes);
  ASSERT_LT(needs, 0.8 * kWhole);
  // The stage and the reserve fit into what is free, or do not.
  peers[1].free_memory_bytes = static_cast<uint64_t>(1.1 * needs + 0.05 * kWhole);
  EXPECT_EQ(runs_on(), "gamer");
  peers[1].free_memory_bytes = static_cast<uint64_t>(0.9 * needs + 0.05 * kWhole);
  EXPECT_EQ(runs_on(), "idle");
  const auto report = plan_job(graph, spec, peers, {});
  ASSERT_EQ(report->left_out.size(), 1u);
  EXPECT_THAT(report->left_out[0].why, HasSubstr("others use its memory: "));
  EXPECT_THAT(report->plan.reason, HasSubstr("(gamer: others use its memory: "));
  EXPECT_THAT(report->plan.reason, HasSubstr("of 4 MiB are free"));
  // All of it free is as if nothing were known of it, and so is more than there is.
  for (const uint64_t all : {kWhole, 2 * kWhole}) {
    peers[1].free_memory_bytes = all;
    EXPECT_EQ(runs_on(), "gamer");
  }
  peers[0].free_memory_bytes = peers[1].free_memory_bytes = 1;
  EXPECT_THAT(runs_on(), HasSubstr("too little memory"));
  EXPECT_THAT(runs_on(), HasSubstr("are free"));
}

TEST(PlanReport, TooLittleMemoryIsExplained) {
  const opdag::Graph graph = chain_graph(8, 4, 64);
  const auto report = plan_job(graph, chain_spec(8), {{"p0", 1, 9000}, {"p1", 1, 8000}}, {});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Code::kUnavailable);
  EXPECT_THAT(report.error().message, HasSubstr("too little memory for any number of stages"));
  EXPECT_THAT(report.error().message, HasSubstr("the largest (p0)"));
}

TEST(PlanReport, PeersTooSmallForAnyOfTheStagesAskedForAreNamed) {
  const opdag::Graph graph = chain_graph(8, 4, 64);
  job::JobSpec spec = chain_spec(8);
  spec.pipeline.stages = 2;
  std::vector<PlannerPeer> peers{{"large", 1, 1 << 30}, {"tiny", 1, 1000}};
  const auto report = plan_job(graph, spec, peers, {});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Code::kUnavailable);
  EXPECT_THAT(report.error().message, HasSubstr("2 stages need as many peers with room"));
  EXPECT_THAT(report.error().message, HasSubstr("1 of 2 is too small: tiny with 1 MiB"));
  EXPECT_THAT(report.error().next, HasSubstr("at most 1 stage, or"));
  for (int i = 0; i < 5; ++i) peers.push_back({"tiny-" + std::to_string(i), 1, 1000});
  EXPECT_THAT(plan_job(graph, spec, peers, {}).error().message, HasSubstr(" and 3 more"));
  // With none that holds a piece the whole is told.
  peers.erase(peers.begin());
  EXPECT_THAT(plan_job(graph, spec, peers, {}).error().message, HasSubstr("too little memory"));
}

TEST(PlanReport, LooksAtTheFastestOfVeryManyPeers) {
  const opdag::Graph graph = chain_graph(8, 4, 16);
  std::vector<PlannerPeer> peers;
  for (int i = 0; i < 40; ++i) peers.push_back({"p" + std::to_string(i), 4, 0, 1.0 + i});
  PlannerOptions options;
  options.most_peers = 10;
  const auto report = plan_job(graph, chain_spec(4 * 64), peers, {}, options);
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(report->notes, Contains(HasSubstr("only the 10 fastest with room of 40 peers")));
  EXPECT_EQ(report->plan.stages.size() + report->left_out.size(), 10u);
  EXPECT_THAT(report->plan.reason, HasSubstr("over 40 idle peers"));
}

TEST(PlanReport, OfVeryManyPeersThoseWithoutRoomComeLast) {
  const opdag::Graph graph = chain_graph(8, 4, 16);
  constexpr uint64_t kMemory = uint64_t{1} << 30;
  std::vector<PlannerPeer> peers;
  for (int i = 0; i < 40; ++i) {
    PlannerPeer peer{"p" + std::to_string(i), 4, kMemory, 1.0 + i};
    if (i >= 10) peer.free_memory_bytes = kMemory / 50;  // the fast ones are in use
    peers.push_back(peer);
  }
  PlannerOptions options;
  options.most_peers = 10;
  const auto plan = make_plan(graph, chain_spec(4 * 64), peers, {}, options);
  ASSERT_TRUE(plan.ok()) << plan.error().text();
  EXPECT_EQ(plan->stages[0].replicas[0].size(), 2u) << "one of p0 to p9";
}

TEST(EvaluatePlan, JudgesAsThePlannerDoes) {
  const opdag::Graph graph = chain_graph(16, 64, 512);
  const TwoSites world(200);
  const job::JobSpec spec = chain_spec(64 * 32);
  const auto made = plan_job(graph, spec, world.peers, world.links);
  ASSERT_TRUE(made.ok());
  const auto judged = evaluate_plan(graph, spec, made->plan, world.peers, world.links);
  ASSERT_TRUE(judged.ok()) << judged.error().text();
  EXPECT_DOUBLE_EQ(judged->prediction.step_s, made->prediction.step_s);
  job::Plan worse;
  worse.partition = *opdag::split_at(graph, {8, 17});
  worse.stages.resize(2);
  worse.stages[0].replicas = {"a1"};
  worse.stages[1].replicas = {"b1"};
  const auto crossing = evaluate_plan(graph, spec, worse, world.peers, world.links);
  ASSERT_TRUE(crossing.ok());
  EXPECT_GT(crossing->prediction.step_s, made->prediction.step_s);
  EXPECT_THAT(crossing->plan.reason, HasSubstr("evaluated: 2 stages"));
}

TEST(EvaluatePlan, RefusesWhatCannotBe) {
  const opdag::Graph graph = chain_graph(4, 4, 16);
  const job::JobSpec spec = chain_spec(16);
  const std::vector<PlannerPeer> peers = {{"p0", 1, 4000}, {"p1"}};
  job::Plan plan;
  plan.partition = *opdag::split_at(graph, {2, 5});
  plan.stages.resize(2);
  const auto error = [&] {
    const auto judged = evaluate_plan(graph, spec, plan, peers, {});
    return judged.ok() ? std::string("accepted") : judged.error().message;
  };
  EXPECT_THAT(error(), HasSubstr("stage 0 of the plan has no peer"));
  plan.stages[0].replicas = plan.stages[1].replicas = {"p1"};
  EXPECT_THAT(error(), HasSubstr("p1 runs two stages"));
  plan.stages[0].replicas = {"p9"};
  EXPECT_THAT(error(), HasSubstr("runs on p9, which is no peer"));
  plan.stages[0].replicas = {"p0"};
  const auto judged = evaluate_plan(graph, spec, plan, peers, {});
  ASSERT_TRUE(judged.ok());
  EXPECT_THAT(judged->notes, Contains(HasSubstr("stage 0 needs")));
  plan.partition.stage_of[0] = 1;
  EXPECT_NE(error(), "accepted");
  plan.stages.pop_back();
  EXPECT_THAT(error(), HasSubstr("cuts 2 stages and gives peers to 1"));
}

RC_GTEST_PROP(PlanProperty, IsNeverWorseThanItsAlternativesNorOverMemory, (uint64_t seed)) {
  Rng rng(seed);
  const opdag::Graph graph = chain_graph(static_cast<int>(2 + rng.below(12)), 8, 32);
  std::vector<PlannerPeer> peers;
  std::vector<PlannerLink> links;
  const size_t count = 1 + rng.below(6);
  for (size_t i = 0; i < count; ++i) {
    peers.push_back(
        {"p" + std::to_string(i), 1, 20000 + rng.below(300000), std::exp(3 * rng.uniform())});
  }
  for (const PlannerPeer& from : peers) {
    for (const PlannerPeer& to : peers) {
      if (from.id == to.id || rng.below(4) == 0) continue;
      links.push_back({from.id, to.id, 50 * rng.uniform(), std::exp(7 * rng.uniform())});
    }
  }
  const job::JobSpec spec = chain_spec(8 * static_cast<int64_t>(1 + rng.below(64)));
  PlannerOptions options;
  if (rng.below(2) == 0) options.compression = testing::random_compression(seed);
  const auto report = plan_job(graph, spec, peers, links, options);
  if (!report.ok()) {
    RC_ASSERT(report.error().code == Code::kUnavailable);
    return;
  }
  for (const auto& other : report->alternatives) {
    RC_ASSERT(report->prediction.step_s <= other.step_s * (1 + 1e-12));
  }
  for (const auto& stage : report->plan.stages) {
    for (const PlannerPeer& peer : peers) {
      if (peer.id != stage.replicas[0]) continue;
      RC_ASSERT(static_cast<double>(stage.memory_bytes) <=
                0.9 * static_cast<double>(peer.memory_bytes) + 1);
    }
  }
  const auto again = plan_job(graph, spec, peers, links, options);
  RC_ASSERT(again->plan.reason == report->plan.reason);
  RC_ASSERT(again->plan.partition == report->plan.partition);
}

// Sites of one to four peers with fast links inside and slow ones between.
TEST(PlanAuto, IsAsGoodAsTheSchedulesAndSitesItMayChoose) {
  const PlannerOptions options;
  const double slack = 1 / (1 - options.least_gain) + 1e-9;
  int zero_bubble = 0, counted = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Rng rng(seed);
    const auto one_of = [&](std::vector<double> values) {
      return values[rng.below(values.size())];
    };
    const opdag::Graph graph = chain_graph(static_cast<int>(4 + rng.below(12)), 32, 32);
    std::vector<std::vector<PlannerPeer>> sites(3);
    std::vector<PlannerPeer> peers;
    for (auto& site : sites) {
      for (uint64_t more = 1 + rng.below(4); more > 0; --more) {
        site.push_back({"p" + std::to_string(peers.size()), 1, 400000 + rng.below(4000000),
                        1e-3 * std::exp(2 * rng.uniform())});
        peers.push_back(site.back());
      }
    }
    std::vector<PlannerLink> links;
    for (const auto& a : sites) {
      for (const auto& b : sites) {
        const double latency_ms = one_of({1, 10, 50}), mbit_s = one_of({8, 50, 500});
        for (const PlannerPeer& from : a) {
          for (const PlannerPeer& to : b) {
            if (from.id == to.id) continue;
            links.push_back(&a == &b ? PlannerLink{from.id, to.id, 0.1, 1000}
                                     : PlannerLink{from.id, to.id, latency_ms, mbit_s});
          }
        }
      }
    }
    job::JobSpec spec = chain_spec(32 * static_cast<int64_t>(2 + rng.below(10)));
    const auto step_s = [&](job::PipelineSchedule schedule, const std::vector<PlannerPeer>& of) {
      spec.pipeline.schedule = schedule;
      const auto report = plan_job(graph, spec, of, links, options);
      if (!report.ok()) return std::numeric_limits<double>::infinity();
      zero_bubble += report->plan.schedule == job::PipelineSchedule::kZbH1 ? 1 : 0;
      return report->prediction.step_s;
    };
    const double chosen = step_s(job::PipelineSchedule::kAuto, peers);
    if (!std::isfinite(chosen)) continue;
    ++counted;
    for (const auto schedule : {job::PipelineSchedule::k1F1B, job::PipelineSchedule::kZbH1}) {
      EXPECT_LE(chosen, slack * step_s(schedule, peers)) << seed << job::name_of(schedule);
    }
    for (const auto& site : sites) {
      EXPECT_LE(chosen, slack * step_s(job::PipelineSchedule::kAuto, site)) << seed;
    }
  }
  EXPECT_GT(counted, 8);
  EXPECT_GT(zero_bubble, 12 + 3) << "beside those asked for";
}

TEST(PlanAuto, OverManyPeersIsAsGoodAsTheSchedulesItMayChoose) {
  const PlannerOptions options;
  const double slack = 1 / (1 - options.least_gain) + 1e-9;
  const opdag::Graph graph = chain_graph(24, 32, 64);
  job::JobSpec spec = chain_spec(32 * 16);
  for (const int count : {16, 130}) {
    Rng rng(static_cast<uint64_t>(count));
    std::vector<PlannerPeer> peers;
    for (int i = 0; i < count; ++i) {
      peers.push_back({"p" + std::to_string(i), 1, 400000 + rng.below(1000000),
                       1e-3 * std::exp(2 * rng.uniform())});
    }
    std::vector<PlannerLink> links;
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j < count; ++j) {
        if (i == j) continue;
        const bool near = i % 5 == j % 5;
        links.push_back(
            {peers[size_t(i)].id, peers[size_t(j)].id, near ? 0.1 : 20.0, near ? 1000.0 : 50.0});
      }
    }
    const auto step_s = [&](job::PipelineSchedule schedule) {
      spec.pipeline.schedule = schedule;
      const auto report = plan_job(graph, spec, peers, links, options);
      EXPECT_TRUE(report.ok()) << report.error().text();
      return report->prediction.step_s;
    };
    const double chosen = step_s(job::PipelineSchedule::kAuto);
    EXPECT_LE(chosen, slack * step_s(job::PipelineSchedule::kZbH1)) << count;
    EXPECT_LE(chosen, slack * step_s(job::PipelineSchedule::k1F1B)) << count;
  }
}

// ZB-H1 keeps more in stages near the loss; that something fits all the same, on a slow peer, is no
// reason not to look.
TEST(PlanAuto, OverManyPeersIs1F1BWhereMemorySuitsItOnly) {
  const opdag::Graph graph = chain_graph(8, 64, 64);
  job::JobSpec spec = chain_spec(64 * 16);
  spec.pipeline.recompute = job::Recompute::kNever;
  using enum job::PipelineSchedule;
  const auto plan_of = [&](uint64_t room, bool giant, job::PipelineSchedule schedule) {
    std::vector<PlannerPeer> peers;
    for (int i = 0; i < 70; ++i) {
      peers.push_back({"p" + std::to_string(i), 1, i == 0 ? 2 * room : room, 100});
    }
    if (giant) peers.push_back({"giant", 1, uint64_t{1} << 40, 1});
    spec.pipeline.stages = giant ? 0 : 4;
    spec.pipeline.schedule = schedule;
    return plan_job(graph, spec, peers, {});
  };
  for (uint64_t room = 1 << 16; room < 1 << 26; room += room / 8) {
    if (!plan_of(room, false, k1F1B).ok() || plan_of(room, false, kZbH1).ok()) continue;
    const auto report = plan_of(room, false, kAuto);
    ASSERT_TRUE(report.ok()) << report.error().text();
    EXPECT_EQ(report->plan.schedule, k1F1B);
    const auto beside = plan_of(room, true, kAuto), asked = plan_of(room, true, k1F1B);
    ASSERT_TRUE(beside.ok() && asked.ok());
    EXPECT_GT(beside->plan.stages.size(), 1u);
    EXPECT_LE(beside->prediction.step_s, 1.001 * asked->prediction.step_s);
    EXPECT_LT(asked->prediction.step_s, 0.5 * plan_of(room, true, kZbH1)->prediction.step_s)
        << "else this says nothing";
    return;
  }
  FAIL() << "no memory suits 1F1B only";
}

}  // namespace
}  // namespace weft::broker
