// Jobs over lines that are shared, lossy or cut, and peers that come and go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "job/checkpoint.h"
#include "worlds.h"

namespace weft::simulate {
namespace {

using ::testing::HasSubstr;
using testing::played;

// Two homes would be too slow among themselves, so each job spans both and sends over one uplink.
TEST(Simulate, JobsShareALine) {
  const auto text = [&](int jobs) {
    return fmt::format(R"(
[[site]]
name = "home"
latency_ms = 1
bandwidth_mbit_s = 2
up_mbit_s = 20
[[site]]
name = "away"
latency_ms = 1
bandwidth_mbit_s = 2
[[link]]
latency_ms = 5
bandwidth_mbit_s = 100
[[peers]]
name = "x"
site = "home"
count = 2
gflops = 1000
[[peers]]
name = "y"
site = "away"
count = 2
gflops = 1000
[[job]]
count = {}
steps = 20
batch = 8
stages = 2
{})",
                       jobs, testing::kTransformer);
  };
  const Outcome alone = played(text(1)), both = played(text(2));
  ASSERT_EQ(both.jobs.size(), 2u);
  ASSERT_EQ(alone.jobs[0].phase, "finished") << alone.jobs[0].reason;
  for (const JobOutcome& job : both.jobs) {
    EXPECT_EQ(job.phase, "finished") << job.reason;
    EXPECT_GT(job.step_s, 1.2 * alone.jobs[0].step_s);
    EXPECT_LT(job.step_s, 2.5 * alone.jobs[0].step_s);
  }
}

TEST(Simulate, LossCostsTimeAndBytes) {
  const auto text = [&](double loss) {
    return fmt::format(R"(
[[site]]
name = "a"
[[site]]
name = "b"
[[link]]
from = "a"
to = "b"
latency_ms = 10
bandwidth_mbit_s = 50
loss = {}
[[peers]]
name = "x"
site = "a"
gflops = 300
[[peers]]
name = "y"
site = "b"
gflops = 300
[[job]]
steps = 10
batch = 8
stages = 2
{})",
                       loss, testing::kTransformer);
  };
  const Outcome clean = played(text(0)), lossy = played(text(0.05));
  EXPECT_GT(lossy.jobs[0].step_s, 1.03 * clean.jobs[0].step_s);
  EXPECT_EQ(lossy.jobs[0].phase, "finished");
}

// Each was wrong once.
std::string two_sites(const std::string& more, const std::string& job) {
  return R"(
[broker]
site = "a"
down_mbit_s = 100
[[site]]
name = "a"
latency_ms = 0.2
bandwidth_mbit_s = 1000
[[site]]
name = "b"
latency_ms = 0.2
bandwidth_mbit_s = 1000
[[link]]
latency_ms = 20
bandwidth_mbit_s = 500
[[peers]]
name = "x"
site = "a"
count = 2
gflops = 100
[[peers]]
name = "y"
site = "b"
count = 2
gflops = 100
)" + more +
         "[[job]]\nname = \"one\"\n" + job + testing::kTransformer;
}

TEST(Simulate, ACutSiteFailsJobsAcrossItAndComesBack) {
  // Four stages need both sites.
  const auto with = [&](int seconds) {
    return played(
        "resume_s = 5\nmost_s = 4000\n" +
        two_sites(fmt::format("[[partition]]\nsite = \"b\"\nat_s = 30\nfor_s = {}\n", seconds),
                  "steps = 600\nbatch = 8\nstages = 4\ncheckpoint_every = 10\n"));
  };
  const Outcome brief = with(8), lasting = with(90);
  EXPECT_EQ(brief.jobs[0].phase, "finished");
  EXPECT_GT(brief.jobs[0].ended_s, 38) << "it ran during the cut";
  EXPECT_EQ(brief.jobs[0].failures, 0) << "messages wait, nobody's patience ends";
  EXPECT_EQ(lasting.jobs[0].phase, "finished") << lasting.jobs[0].reason;
  EXPECT_GE(lasting.jobs[0].failures, 1);
  EXPECT_GE(lasting.recoveries, 1);
}

TEST(Simulate, AStepLongerThanTheBrokersPatienceIsNoStall) {
  std::string text = two_sites("", "steps = 3\nbatch = 64\nstages = 2\n");
  for (size_t at; (at = text.find("gflops = 100\n")) != std::string::npos;) {
    text.replace(at, 12, "gflops = 0.2");
  }
  const JobOutcome job = played(text).jobs.at(0);
  EXPECT_GT(job.step_s, 150);
  EXPECT_EQ(job.phase, "finished") << job.reason;
  EXPECT_EQ(job.failures, 0);
}

TEST(Simulate, CheckpointsAreStoredInOrderWhereTheLineIsSlowerThanTheyCome) {
  std::vector<std::string> stored;
  SimulateOptions options;
  options.on_event = [&](double, const std::string&, const std::string& kind,
                         const std::string& message) {
    if (kind == "checkpoint") stored.push_back(message);
  };
  std::string text = two_sites("", "steps = 60\nbatch = 4\nstages = 2\ncheckpoint_every = 5\n");
  text.replace(text.find("down_mbit_s = 100"), 17, "down_mbit_s = 20");
  const Outcome outcome = played(text, options);
  EXPECT_EQ(outcome.jobs.at(0).phase, "finished") << outcome.jobs.at(0).reason;
  ASSERT_GE(stored.size(), 12u);
  EXPECT_THAT(stored[0], HasSubstr("step 5:"));
  EXPECT_THAT(stored[1], HasSubstr("step 10:"));
}

// Whatever the line takes, what a failure costs stays bounded: of a stage no more than two shards
// are on their way when it goes on.
TEST(Simulate, NoStageRunsAheadOfItsCheckpoints) {
  constexpr int64_t kEvery = 5;
  for (const double rate : {1.0, 4.0, 20.0, 100.0}) {
    int64_t complete = 0, most_ahead = 0;
    SimulateOptions options;
    options.on_event = [&](double, const std::string&, const std::string& kind,
                           const std::string& message) {
      if (kind == "checkpoint" && message.starts_with("step "))
        complete = std::stoll(message.substr(5));
    };
    options.on_span = [&](const std::string&, int32_t, const PlaySpan& span) {
      if (span.other < 0) most_ahead = std::max(most_ahead, span.step - complete);
    };
    std::string text = two_sites("", "steps = 60\nbatch = 4\nstages = 2\ncheckpoint_every = 5\n");
    text.replace(text.find("down_mbit_s = 100"), 17, fmt::format("down_mbit_s = {}", rate));
    const Outcome outcome = played(text, options);
    EXPECT_EQ(outcome.jobs.at(0).phase, "finished") << outcome.jobs.at(0).reason;
    EXPECT_LE(most_ahead, (static_cast<int64_t>(job::kMaxStoredShards) + 1) * kEvery + 1) << rate;
    if (rate < 2) {
      EXPECT_GT(most_ahead, 2 * kEvery) << "the line must matter";
    }
  }
}

TEST(Simulate, WhatWaitsForACutSiteTakesNoLineFromOthers) {
  // Job "one" lives at the broker's site; "two" stores its checkpoints from the other one.
  std::string text = two_sites("[[partition]]\nsite = \"b\"\nat_s = 30\nfor_s = 600\n",
                               "steps = 4000\nbatch = 4\nstages = 2\ncheckpoint_every = 50\n");
  text +=
      "[[job]]\nname = \"two\"\nsteps = 4000\nbatch = 4\nstages = 2\ncheckpoint_every = "
      "50\n" +
      std::string(testing::kTransformer);
  const Outcome outcome = played(text);
  EXPECT_EQ(outcome.jobs.at(0).phase, "finished") << outcome.jobs.at(0).reason;
  EXPECT_EQ(outcome.jobs.at(0).failures, 0);
  EXPECT_EQ(outcome.jobs.at(1).phase, "failed");
  const JobOutcome& two = outcome.jobs.at(1);
  EXPECT_EQ(two.steps % 50, 0) << "what a resume would go on from";
  EXPECT_GT(two.computed, two.steps);
}

TEST(Simulate, APeerThatSaidGoodbyeWhileCutOffIsThereAgainAfterwards) {
  SimulateOptions options;
  options.traces = {{{0, true, "a"},
                     {0, true, "b"},
                     {100, false, "a"},
                     {100, false, "b"},
                     {130, true, "a"},
                     {130, true, "b"}}};
  const std::string text = two_sites(
      "[[partition]]\nsite = \"b\"\nat_s = 60\nfor_s = 300\n"
      "[[churn]]\ngroup = \"y\"\nleave_share = 1\ntrace = \"given\"\n",
      "steps = 10\nbatch = 4\nstages = 4\nsubmit_s = 400\n");
  const Outcome outcome = played(text, options);
  EXPECT_EQ(outcome.farewells, 2);
  EXPECT_EQ(outcome.jobs.at(0).phase, "finished") << outcome.jobs.at(0).reason;
}

RC_GTEST_PROP(Simulate, TheBooksAddUpUnderChurnAndCuts, ()) {
  const auto seed = *rc::gen::inRange(0, 100000);
  const auto life = *rc::gen::element(20, 60, 300);
  const auto resume = *rc::gen::element(0, 3, 30);
  const auto every = *rc::gen::element(1, 7, 50);
  const std::string text =
      fmt::format("seed = {}\nresume_s = {}\nmost_s = 1500\ncompute_jitter = 0.1\n", seed, resume) +
      two_sites(
          fmt::format("[[churn]]\nlife_s = {}\naway_s = 20\nleave_share = 0.5\n"
                      "[[partition]]\nsite = \"b\"\nat_s = 50\nfor_s = 40\n",
                      life),
          fmt::format("count = 2\nsteps = 500\nbatch = 8\nstages = 2\ncheckpoint_every = {}\n",
                      every));
  const Outcome outcome = played(text);
  double steps = 0;
  for (const JobOutcome& job : outcome.jobs) {
    RC_ASSERT(job.busy >= 0 && job.busy <= 1 + 1e-9);
    RC_ASSERT(job.computed >= job.steps);
    RC_ASSERT(job.steps <= job.wanted);
    if (job.phase == "finished") RC_ASSERT(job.steps == job.wanted);
    steps += static_cast<double>(job.computed);
  }
  RC_ASSERT(outcome.steps_lost >= 0);
  RC_ASSERT(outcome.utilization <= 1 + 1e-9);
  // A step sends 8 messages of 64 KiB each way, a deployment or checkpoint 70 MB of weights and
  // state at most; both are counted as often as there are steps.
  const double deployments = static_cast<double>(outcome.plans);
  RC_ASSERT(outcome.bytes_sent <= 75e6 * (steps + deployments + 2));
}

}  // namespace
}  // namespace weft::simulate
