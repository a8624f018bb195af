// Jobs whose messages a codec makes smaller, for the time it takes their stages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulate/chrome_trace.h"
#include "worlds.h"

namespace weft::simulate {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using testing::played;

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

}  // namespace
}  // namespace weft::simulate
