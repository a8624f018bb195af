// The whole daemon, a script as worker.
#include "daemon/service.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "daemon/standstill.h"
#include "tests/unit/daemon/service_fixture.h"

namespace weft::daemon {
namespace {

TEST(ServiceSettings, AnUnknownJailIsRefusedBeforeAnythingStarts) {
  Config config = make_config();
  ASSERT_TRUE(config.set_flag("jail", "on").ok());
  const auto service = Service::create(config, {});
  ASSERT_FALSE(service.ok());
  EXPECT_NE(service.error().next.find("auto, required or off"), std::string::npos);
}

TEST_F(ServiceTest, SaysWhatThisMachineIsAndThatItLives) {
  run(kObeys);
  EXPECT_TRUE(hears([](const proto::PeerMessage& message) {
    const auto& facts = message.hello().capabilities();
    return message.has_hello() && facts.host() == "tester" && facts.cores() > 0 &&
           facts.blob_port() != 0 && facts.device() == "cpu" && facts.free_memory_bytes() > 0;
  }));
  EXPECT_TRUE(hears([](const auto& message) { return message.heartbeat().sequence() >= 2; }));
}

TEST_F(ServiceTest, FreeMemoryIsToldWhileNothingRunsHere) {
  run(kObeys);
  ASSERT_TRUE(hears([](const auto& message) {
    return message.has_heartbeat() && message.heartbeat().free_memory_bytes() > 0;
  }));
  prepare("one");
  ASSERT_TRUE(hears(update("one", "listening")));
  const auto names_it = [](const proto::PeerMessage& message) {
    return message.heartbeat().assignments_size() > 0;
  };
  ASSERT_TRUE(hears(names_it));
  EXPECT_FALSE(hears_ever([&](const proto::PeerMessage& message) {
    return names_it(message) && message.heartbeat().free_memory_bytes() > 0;
  }));
}

TEST_F(ServiceTest, RunsStopsAndAnswersForWhatItDoesNotRun) {
  run(kObeys);
  prepare("one");
  ASSERT_TRUE(hears(update("one", "listening")));
  stop("unknown");
  EXPECT_TRUE(hears(update("unknown", "stopped")));
  stop("one");
  EXPECT_TRUE(hears(update("one", "stopped")));
  prepare("two");
  EXPECT_TRUE(hears(update("two", "listening")));
}

TEST_F(ServiceTest, ANewAssignmentReplacesTheOld) {
  run(kListens + "exec sleep 1000");
  prepare("one");
  ASSERT_TRUE(hears(update("one", "listening")));
  prepare("two");
  EXPECT_TRUE(hears(update("two", "listening")));
}

TEST_F(ServiceTest, ADrainingPeerEndsWhatItRunsAndTakesNothingNew) {
  run(kObeys);
  prepare("one");
  ASSERT_TRUE(hears(update("one", "listening")));
  drain();
  ASSERT_TRUE(hears([](const auto& message) { return message.heartbeat().draining(); }));
  prepare("late");
  EXPECT_TRUE(hears(update("late", "failed", "draining")));
  prepare("one");  // repeated, not new
  stop("one");
  EXPECT_TRUE(ends().ok());
  EXPECT_TRUE(hears(update("one", "stopped")));
  EXPECT_TRUE(hears([](const auto& message) { return message.has_leaving(); }));
}

TEST_F(ServiceTest, AHostileAssignmentIsRefusedAndTouchesNothing) {
  run(kObeys);
  const os::Path precious = dir_ / "precious.1.0";
  ASSERT_TRUE(os::write_file_atomic(precious, std::string_view("keep")).ok());
  prepare("one");
  ASSERT_TRUE(hears(update("one", "listening")));
  for (const std::string& job : {std::string("../precious"), std::string(), std::string("a/../b"),
                                 std::string("n\0l", 3), std::string(5000, 'x')}) {
    prepare(job);
    EXPECT_TRUE(hears(update(job, "failed", "job id"))) << job.substr(0, 40);
  }
  stop("one");  // it was not replaced
  EXPECT_TRUE(hears(update("one", "stopped")));
  EXPECT_EQ(*os::read_file(precious), "keep");
}

TEST_F(ServiceTest, ARemovedPeerEndsWithTheReason) {
  run(kObeys);
  prepare("one");
  ASSERT_TRUE(hears(update("one", "listening")));
  remove("misbehaved");
  const Status verdict = ends();
  ASSERT_FALSE(verdict.ok());
  EXPECT_EQ(verdict.error().code, Code::kDenied);
  EXPECT_NE(verdict.error().message.find("misbehaved"), std::string::npos);
}

TEST_F(ServiceTest, TheFirstSigtermDrainsTheSecondStops) {
  run(kObeys);
  prepare("one");
  ASSERT_TRUE(hears(update("one", "listening")));
  ASSERT_EQ(::kill(::getpid(), SIGTERM), 0);
  ASSERT_TRUE(hears([](const auto& message) { return message.heartbeat().draining(); }));
  ASSERT_EQ(::kill(::getpid(), SIGHUP), 0);
  ASSERT_EQ(::kill(::getpid(), SIGTERM), 0);
  EXPECT_TRUE(ends().ok());
  EXPECT_TRUE(hears(update("one", "stopped")));
}

TEST(Standstill, IsALongGapBetweenTwoLooks) {
  Standstill standstill(1000);
  EXPECT_FALSE(standstill.note(50000)) << "the first look has none before it";
  EXPECT_FALSE(standstill.note(51000));
  EXPECT_TRUE(standstill.note(52001));
  EXPECT_FALSE(standstill.note(52001));
}

}  // namespace
}  // namespace weft::daemon
