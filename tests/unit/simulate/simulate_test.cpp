#include "simulate/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "broker/coordinator/planner_inputs.h"
#include "simulate/chrome_trace.h"
#include "worlds.h"

namespace weft::simulate {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using testing::one_site;
using testing::play;
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

// Two sites, a stage at each, and what else the top of the scenario says.
std::string two_sites(const std::string& top) {
  return top + fmt::format(R"(
[[site]]
name = "a"
[[site]]
name = "b"
[[link]]
latency_ms = 5
bandwidth_mbit_s = 20
[[peers]]
name = "one"
site = "a"
gflops = 200
[[peers]]
name = "one"
site = "b"
gflops = 200
[[job]]
name = "gpt"
steps = 10
batch = 8
stages = 2
{})",
                           testing::kTransformer);
}

std::string assumed(double ratio, double gbyte_s, double below_mbit_s) {
  return fmt::format(
      "[compression]\npolicy = \"assumed\"\nratio = {}\ngbyte_s = {}\nbelow_mbit_s = {}\n", ratio,
      gbyte_s, below_mbit_s);
}

TEST(Simulate, CompressedMessagesWeighWhatIsOnTheWire) {
  const Outcome plain = played(two_sites("[compression]\npolicy = \"none\"\n"));
  const Outcome tenth = played(two_sites(assumed(0.1, 1000, 100)));
  const Outcome fifth = played(two_sites(assumed(0.2, 1000, 100)));
  const Outcome fast = played(two_sites(assumed(0.1, 1000, 10)));
  EXPECT_EQ(plain.hash, played(two_sites("")).hash);
  EXPECT_EQ(plain.bytes_sent, fast.bytes_sent) << "no way is that slow";
  EXPECT_EQ(plain.jobs[0].step_s, fast.jobs[0].step_s);
  const double messages = (plain.bytes_sent - tenth.bytes_sent) / 0.9;
  EXPECT_GT(messages, 10 * 8 * 2 * 64 * 256 * 4 * 0.99) << "a value there and back at least";
  EXPECT_NEAR((plain.bytes_sent - fifth.bytes_sent) / 0.8, messages, 1e-3 * messages);
  EXPECT_LT(tenth.jobs[0].step_s, fifth.jobs[0].step_s);
  EXPECT_LT(fifth.jobs[0].step_s, 0.5 * plain.jobs[0].step_s);
  for (const Outcome* outcome : {&plain, &tenth, &fifth}) {
    const JobOutcome& job = outcome->jobs[0];
    EXPECT_NEAR(job.step_s / job.predicted_step_s, 1, 0.02);
  }
  EXPECT_EQ(plain.compression, "none");
  EXPECT_TRUE(plain.notes.empty());
  EXPECT_EQ(tenth.compression, "assumed");
  EXPECT_THAT(tenth.notes, Contains(HasSubstr("assumed, not measured: 0.1 of the bytes")));
}

TEST(Simulate, CodecsTakeTheTimeOfTheirStages) {
  const Outcome quick = played(two_sites(assumed(0.1, 1000, 100)));
  double encoding_s = 0, decoding_s = 0;
  SimulateOptions options;
  ChromeTrace trace("", 2);
  options.on_span = [&](const std::string& job, int32_t deployment, const PlaySpan& span) {
    trace.span(job, deployment, span);
    if (span.stage != 0 || span.other >= 0 || span.step != 3) return;
    if (span.kind == job::ActionKind::kSendActivation) encoding_s += span.end_s - span.begin_s;
    if (span.kind == job::ActionKind::kRecvGradient) decoding_s += span.end_s - span.begin_s;
  };
  // A value of 64 KiB takes either end 32.8 ms.
  const Outcome slow = played(two_sites(assumed(0.1, 0.002, 100)), options);
  EXPECT_NEAR(encoding_s, 8 * 64 * 256 * 4 / 0.002e9, 1e-3);
  EXPECT_NEAR(decoding_s, encoding_s, 1e-9);
  EXPECT_GT(slow.jobs[0].step_s, encoding_s + decoding_s);
  EXPECT_LT(quick.jobs[0].step_s, encoding_s);
  EXPECT_GT(slow.jobs[0].busy, 2 * quick.jobs[0].busy);
  EXPECT_NEAR(slow.jobs[0].step_s / slow.jobs[0].predicted_step_s, 1, 0.02);
  const std::string text = trace.finish();
  EXPECT_THAT(text, HasSubstr("encode the activation of micro-batch 0"));
  EXPECT_THAT(text, HasSubstr("decode the gradient of micro-batch 7"));
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
