// Measuring with a script in the worker's place: profiles kept, shared, interrupted and refused.
#include "daemon/measurement.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/unit/daemon/worker_script.h"

namespace weft::daemon {
namespace {

using testing::fresh_dir;
using testing::script;

job::DeviceProfile profile() {
  job::DeviceProfile p;
  p.device = "cpu";
  p.seconds = 3;
  for (job::MeasuredCosts* measured : {&p.fp32, &p.bf16}) {
    measured->costs = job::plain_costs(1e-11, 1e-10, 1e-6);
    measured->errors.fill({0.1, 0.1, 5});
  }
  return p;
}

class MeasurementTest : public ::testing::Test {
 protected:
  std::string says_profile() { return "echo '" + job::profile_to_json(profile()).dump() + "'"; }

  std::unique_ptr<Measurement> make(const std::string& worker, const std::string& name = "model") {
    MeasurementOptions options;
    options.folder = dir_ / "profiles";
    options.worker_program = script(dir_, worker).string();
    options.jail = "auto";
    options.device = "cpu";
    options.device_name = name;
    options.threads = 2;
    options.enabled = enabled_;
    return std::make_unique<Measurement>(options, events_, clock_,
                                         [this](const job::DeviceProfile&) { ++done_; });
  }
  // Runs events and ticks until it holds, or for 20 s.
  template <typename Holds>
  bool until(Measurement& measurement, Holds holds) {
    for (int i = 0; i < 400; ++i) {
      if (holds()) return true;
      events_.run_for(50);
      measurement.tick(true);
    }
    return false;
  }

  const os::Path dir_ = fresh_dir(std::string("measure_") +
                                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
  bool enabled_ = true;
  EventQueue events_;
  VirtualClock clock_;
  int done_ = 0;
};

TEST_F(MeasurementTest, MeasuresOnceForADeviceModel) {
  auto first = make(R"(echo "$*" > )" + (dir_ / "arguments").string() + "; " + says_profile());
  EXPECT_FALSE(first->profile());
  ASSERT_TRUE(until(*first, [&] { return first->profile().has_value(); }));
  EXPECT_EQ(done_, 1);
  EXPECT_EQ(first->profile()->device_name, "model");
  EXPECT_EQ(*os::read_file(dir_ / "arguments", 1000),
            "measure --device cpu --threads 2 --jail auto\n");
  // Another life: the file is there, no worker runs.
  auto second = make("exit 1");
  ASSERT_TRUE(second->profile());
  EXPECT_EQ(done_, 2);
  second->tick(true);
  EXPECT_FALSE(second->measuring());
  // Another card in the same machine is another device.
  auto third = make("exit 1", "other model");
  EXPECT_FALSE(third->profile());
}

TEST_F(MeasurementTest, WaitsUntilIdleAndEndsAtOnceForAnAssignment) {
  auto measurement = make("exec sleep 6000");
  measurement->tick(false);
  EXPECT_FALSE(measurement->measuring());
  measurement->tick(true);
  ASSERT_TRUE(measurement->measuring());
  measurement->interrupt("a job");
  EXPECT_FALSE(measurement->measuring());
  EXPECT_EQ(done_, 0);
  measurement->tick(true);
  EXPECT_TRUE(measurement->measuring()) << "begins again when idle";
}

TEST_F(MeasurementTest, FailuresAreTriedAgainLaterAFewTimes) {
  auto measurement = make("echo nonsense");
  for (const int64_t pause_ms : {10000, 40000, 160000, 600000, 600000}) {
    measurement->tick(true);
    ASSERT_TRUE(measurement->measuring()) << pause_ms;
    ASSERT_TRUE(until(*measurement, [&] { return !measurement->measuring(); }));
    measurement->tick(true);
    EXPECT_FALSE(measurement->measuring()) << "not at once";
    clock_.advance_ms(pause_ms - 1);
    measurement->tick(true);
    EXPECT_FALSE(measurement->measuring()) << "not before its time";
    clock_.advance_ms(2);
  }
  measurement->tick(true);
  EXPECT_FALSE(measurement->measuring()) << "given up";
  EXPECT_EQ(done_, 0);
}

TEST_F(MeasurementTest, AWorkerThatHangsIsKilled) {
  auto measurement = make("exec sleep 6000");
  measurement->tick(true);
  ASSERT_TRUE(measurement->measuring());
  clock_.advance_ms(MeasurementOptions{}.timeout_ms - 1);
  measurement->tick(true);
  EXPECT_TRUE(measurement->measuring()) << "it has its time";
  clock_.advance_ms(2);
  measurement->tick(true);
  EXPECT_FALSE(measurement->measuring());
}

TEST_F(MeasurementTest, DaemonsThatShareAFolderMeasureOneAfterTheOther) {
  auto slow = make("read line; " + says_profile());
  auto other = make("read line; " + says_profile());
  slow->tick(true);
  other->tick(true);
  EXPECT_TRUE(slow->measuring());
  EXPECT_FALSE(other->measuring());
  slow->interrupt("a job");
  clock_.advance_ms(3000);
  other->tick(true);
  EXPECT_TRUE(other->measuring());
}

TEST_F(MeasurementTest, AFileThatIsNoProfileIsMeasuredAnew) {
  {
    auto first = make(says_profile());
    ASSERT_TRUE(until(*first, [&] { return first->profile().has_value(); }));
  }
  for (const auto& entry : std::filesystem::directory_iterator(dir_ / "profiles")) {
    if (entry.path().extension() == ".json") {
      ASSERT_TRUE(os::write_file_atomic(entry.path(), "{}").ok());
    }
  }
  auto second = make(says_profile());
  EXPECT_FALSE(second->profile());
  EXPECT_TRUE(until(*second, [&] { return second->profile().has_value(); }));
}

TEST_F(MeasurementTest, CanBeSwitchedOff) {
  enabled_ = false;
  auto measurement = make(says_profile());
  measurement->tick(true);
  EXPECT_FALSE(measurement->measuring());
  measurement->again("the broker asks");
  measurement->tick(true);
  EXPECT_FALSE(measurement->measuring());
}

// ---- again -------------------------------------------------------------------------------------

class MeasuredAgainTest : public MeasurementTest {
 protected:
  // With a profile in the file, an hour old.
  std::unique_ptr<Measurement> known() {
    auto measurement = make(says_profile());
    EXPECT_TRUE(until(*measurement, [&] { return measurement->profile().has_value(); }));
    clock_.advance_ms(3600000);
    return measurement;
  }
  void worker(const std::string& body) { script(dir_, body); }
  std::string says_another() {
    job::DeviceProfile other = profile();
    other.seconds = 7;
    return "echo '" + job::profile_to_json(other).dump() + "'";
  }
  double kept_seconds() {
    auto reader = make("exit 1");
    --done_;
    return reader->profile()->seconds;
  }
};

TEST_F(MeasuredAgainTest, TheOldProfileHoldsUntilTheNewOneIsThere) {
  auto measurement = known();
  const int64_t before_ms = measurement->profile()->measured_ms;
  worker("read line; " + says_another());
  measurement->tick(true);
  EXPECT_FALSE(measurement->measuring()) << "nobody asked";
  measurement->again("real runs disagree");
  EXPECT_FALSE(measurement->measuring());
  measurement->tick(false);
  EXPECT_FALSE(measurement->measuring()) << "not beside work";
  measurement->tick(true);
  ASSERT_TRUE(measurement->measuring());
  measurement->interrupt("a job");
  EXPECT_EQ(measurement->profile()->seconds, 3);
  EXPECT_EQ(kept_seconds(), 3);
  worker(says_another());
  measurement->tick(true);
  ASSERT_TRUE(measurement->measuring()) << "begins again when idle";
  EXPECT_EQ(measurement->profile()->seconds, 3);
  ASSERT_TRUE(until(*measurement, [&] { return done_ == 2; }));
  EXPECT_EQ(measurement->profile()->seconds, 7);
  EXPECT_GT(measurement->profile()->measured_ms, before_ms);
  EXPECT_EQ(kept_seconds(), 7);
  clock_.advance_ms(3600000);
  measurement->tick(true);
  EXPECT_FALSE(measurement->measuring()) << "once for each time it is asked for";
}

TEST_F(MeasuredAgainTest, FailuresLeaveTheOldProfileAndEndUntilAskedAgain) {
  auto measurement = known();
  worker("echo nonsense");
  for (int asked = 0; asked < 2; ++asked) {
    measurement->again("real runs disagree");
    for (int attempt = 0; attempt < MeasurementOptions{}.most_failures; ++attempt) {
      measurement->tick(true);
      ASSERT_TRUE(measurement->measuring()) << asked << " " << attempt;
      ASSERT_TRUE(until(*measurement, [&] { return !measurement->measuring(); }));
      clock_.advance_ms(MeasurementOptions{}.retry_ms + 1);
    }
    measurement->tick(true);
    EXPECT_FALSE(measurement->measuring());
  }
  EXPECT_EQ(measurement->profile()->seconds, 3);
  EXPECT_EQ(kept_seconds(), 3);
  EXPECT_EQ(done_, 1);
}

TEST_F(MeasuredAgainTest, WhatAnotherDaemonHasJustMeasuredIsTaken) {
  auto one = known();
  auto other = make("exit 1");
  EXPECT_EQ(done_, 2);
  worker("read line; " + says_another());
  one->again("real runs disagree");
  other->again("real runs disagree");
  one->tick(true);
  other->tick(true);
  ASSERT_TRUE(one->measuring());
  EXPECT_FALSE(other->measuring()) << "one at a time";
  one->interrupt("a job");
  worker(says_another());
  one->tick(true);
  ASSERT_TRUE(until(*one, [&] { return done_ == 3; }));
  worker("exit 1");
  clock_.advance_ms(3000);
  other->tick(true);
  EXPECT_FALSE(other->measuring());
  EXPECT_EQ(other->profile()->seconds, 7);
  EXPECT_EQ(done_, 4) << "the broker hears of it";
  // Not newer than its own: it measures.
  other->again("real runs disagree");
  clock_.advance_ms(3000);
  other->tick(true);
  EXPECT_TRUE(other->measuring());
}

}  // namespace
}  // namespace weft::daemon
