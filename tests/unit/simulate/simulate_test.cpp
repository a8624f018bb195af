#include "simulate/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "worlds.h"

namespace weft::simulate {
namespace {

using ::testing::HasSubstr;
using testing::one_site;
using testing::played;

TEST(Simulate, AJobRunsToItsEndAsPredicted) {
  const Outcome outcome = played(one_site());
  ASSERT_EQ(outcome.jobs.size(), 1u);
  const JobOutcome& job = outcome.jobs[0];
  EXPECT_EQ(job.phase, "finished") << job.reason;
  EXPECT_EQ(job.steps, 20);
  EXPECT_EQ(job.computed, 20);
  EXPECT_EQ(job.stages, 3);
  EXPECT_EQ(job.failures, 0);
  EXPECT_GT(job.predicted_step_s, 0);
  // The prediction is of one step by itself; steps in a row overlap where stages wait at its ends.
  EXPECT_LE(job.step_s, 1.001 * job.predicted_step_s);
  EXPECT_GT(job.step_s, 0.6 * job.predicted_step_s);
  EXPECT_TRUE(outcome.all_ended);
  EXPECT_EQ(outcome.plans, 1);
}

// Of one step nothing overlaps: what the planner predicts and what is played are one.
RC_GTEST_PROP(Simulate, OneStepTakesWhatThePlannerSays, ()) {
  const auto stages = *rc::gen::inRange(1, 5);
  const auto batch = *rc::gen::inRange(1, 12);
  const auto latency = *rc::gen::element(0.0, 0.1, 5.0, 40.0);
  const auto rate = *rc::gen::element(20.0, 100.0, 1000.0);
  const auto up = *rc::gen::element(10.0, 50.0);
  const auto schedule = *rc::gen::element<std::string>("gpipe", "1f1b", "zb-h1");
  const auto compression = *rc::gen::element<std::string>(
      "", "[compression]\npolicy = 'assumed'\nratio = 0.2\ngbyte_s = 0.05\nbelow_mbit_s = 100\n",
      "[compression]\npolicy = 'assumed'\nratio = 0.1\n");
  const auto seed = *rc::gen::inRange(0, 1000);
  double began = -1, ended = 0;
  SimulateOptions options;
  options.on_span = [&](const std::string&, int32_t, const PlaySpan& span) {
    if (began < 0) began = span.begin_s;
    ended = std::max(ended, span.end_s);
  };
  const std::string text = fmt::format(R"(
seed = {}
{}
[[site]]
name = "a"
latency_ms = {}
bandwidth_mbit_s = {}
[[site]]
name = "b"
latency_ms = 0.3
bandwidth_mbit_s = 800
up_mbit_s = {}
[[link]]
latency_ms = 20
bandwidth_mbit_s = 60
[[peers]]
name = "x"
site = "a"
count = 3
gflops = 150
speed_spread = 0.4
up_mbit_s = 40
[[peers]]
name = "y"
site = "b"
count = 3
gflops = 300
memory_gbyte_s = 10
[[job]]
steps = 1
batch = {}
stages = {}
schedule = "{}"
{})",
                                       seed, compression, latency, rate, up, batch, stages,
                                       schedule, testing::kTransformer);
  const Outcome outcome = played(text, options);
  RC_ASSERT(outcome.jobs.size() == 1u);
  RC_ASSERT(outcome.jobs[0].phase == "finished");
  const double predicted = outcome.jobs[0].predicted_step_s;
  // Stages hear of the start up to 40 ms one after the other, and those that have finished store
  // their checkpoint while others still send gradients, a piece of 20 ms in turn.
  RC_ASSERT(ended - began >= 0.99 * predicted - 0.045);
  RC_ASSERT(ended - began <= 1.01 * predicted + 0.045 + 0.025 * batch * stages);
}

TEST(Simulate, OneSeedIsOneResultAndAnotherIsAnother) {
  const std::string tables = "[[churn]]\nlife_s = 40\naway_s = 10\nleave_share = 0.5\n";
  const auto run = [&](int seed) {
    return played(one_site(fmt::format("seed = {}\nresume_s = 1\ncompute_jitter = 0.1\n"
                                       "measure_error = 0.2\nmost_s = 3000\n",
                                       seed),
                           tables, "checkpoint_every = 5\n"));
  };
  const Outcome first = run(1), again = run(1), other = run(2);
  EXPECT_EQ(first.hash, again.hash);
  EXPECT_EQ(first.events, again.events);
  EXPECT_NE(first.hash, other.hash);
}

TEST(Simulate, WhatWasLostIsWhatWasDoneAfterTheLastCheckpoint) {
  // A job long enough to be running when its peers go; spares take over.
  const std::string text = fmt::format(R"(
resume_s = 2
[[site]]
name = "lan"
latency_ms = 0.5
bandwidth_mbit_s = 1000
[[peers]]
name = "first"
site = "lan"
count = 2
gflops = 400
[[peers]]
name = "spare"
site = "lan"
count = 2
gflops = 100
[[churn]]
group = "first"
trace = "given"
[[job]]
steps = 4000
batch = 8
stages = 2
checkpoint_every = 100
{})",
                                       testing::kTransformer);
  SimulateOptions options;
  options.traces = {{{0, true, "a"}, {0, true, "b"}, {60, false, "a"}}};
  std::map<std::string, int> kinds;
  double failed_s = -1;
  options.on_event = [&](double time_s, const std::string& job, const std::string& kind,
                         const std::string& message) {
    ++kinds[kind];
    if (job == "job" && kind == "state" && message.find("failed") != std::string::npos) {
      failed_s = time_s;
    }
  };
  const Outcome outcome = played(text, options);
  const JobOutcome& job = outcome.jobs[0];
  EXPECT_EQ(job.phase, "finished") << job.reason;
  EXPECT_EQ(job.failures, 1);
  EXPECT_EQ(outcome.recoveries, 1);
  EXPECT_EQ(job.deployments, 2);
  EXPECT_GT(job.computed, job.steps);
  EXPECT_LT(job.computed, job.steps + 200) << "no more than a checkpoint under way";
  // Nobody says that it went: its neighbour waits 15 s, the broker 15 s and a tick.
  EXPECT_GE(failed_s, 60 + 14.9);
  EXPECT_LE(failed_s, 60 + 20);
  EXPECT_GT(kinds["checkpoint"], 30);
}

TEST(Simulate, AFailedJobStaysFailedWhereNobodyResumes) {
  SimulateOptions options;
  options.traces = {{{0, true, "a"},
                     {0, true, "b"},
                     {0, true, "c"},
                     {0, true, "d"},
                     {0, true, "e"},
                     {0, true, "f"},
                     {20, false, "a"},
                     {20, false, "b"},
                     {20, false, "c"},
                     {20, false, "d"},
                     {20, false, "e"},
                     {20, false, "f"}}};
  std::string text = one_site("", "[[churn]]\ntrace = \"given\"\n");
  text.replace(text.find("steps = 20"), 10, "steps = 9999");
  const Outcome outcome = played(text, options);
  EXPECT_EQ(outcome.jobs[0].phase, "failed");
  EXPECT_EQ(outcome.recoveries, 0);
  EXPECT_TRUE(outcome.all_ended);
}

TEST(Simulate, AJobThatFitsNowhereWaitsAndSaysWhy) {
  std::string text = one_site("most_s = 100\n");
  text.replace(text.find("memory_gib = 4"), 14, "memory_gib = 0.001");
  const Outcome outcome = played(text);
  EXPECT_FALSE(outcome.all_ended);
  EXPECT_EQ(outcome.jobs[0].phase, "queued");
  EXPECT_THAT(outcome.jobs[0].reason, HasSubstr("too little memory"));
  EXPECT_GT(outcome.plans_refused, 0);
  EXPECT_LT(outcome.plans_refused, 20) << "a refused plan is not tried again at once";
}

}  // namespace
}  // namespace weft::simulate
