// Supervision of a child that behaves, misbehaves, hangs or dies: a shell script in its place.
#include "daemon/worker_process.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <future>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/os/process_identity.h"
#include "daemon/event_queue.h"

namespace weft::daemon {
namespace {

using namespace std::chrono_literals;

class WorkerProcessTest : public ::testing::Test {
 protected:
  // A program that ignores its arguments and runs body.
  os::Path script(const std::string& body) {
    const os::Path path = os::Path(::testing::TempDir()) /
                          (::testing::UnitTest::GetInstance()->current_test_info()->name());
    EXPECT_TRUE(os::write_file_atomic(path, "#!/bin/sh\n" + body + "\n", 0755).ok());
    return path;
  }

  std::unique_ptr<WorkerProcess> start(const os::Path& program) {
    auto worker = WorkerProcess::start(
        program.string(), "/dev/null", os::Path(::testing::TempDir()) / "worker.log",
        [this](job::WorkerEvent event) { events_.push_back(std::move(event)); },
        [this](os::ExitStatus status) { exit_.set_value(status); });
    EXPECT_TRUE(worker.ok());
    return std::move(*worker);
  }

  os::ExitStatus wait_for_exit() {
    auto exit = exit_.get_future();
    EXPECT_EQ(exit.wait_for(20s), std::future_status::ready);
    return exit.get();
  }

  std::vector<job::WorkerEvent> events_;  // read after the exit only
  std::promise<os::ExitStatus> exit_;
};

TEST_F(WorkerProcessTest, TellsTheWorkerHowItIsToBeJailed) {
  auto worker = WorkerProcess::start(
      script(R"(test "$4 $5" = "--jail required" && exit 5)").string(), "/dev/null",
      os::Path(::testing::TempDir()) / "worker.log", [](const job::WorkerEvent&) {},
      [this](os::ExitStatus status) { exit_.set_value(status); }, "required");
  ASSERT_TRUE(worker.ok());
  EXPECT_EQ(wait_for_exit().code, 5);
}

TEST_F(WorkerProcessTest, PassesEventsOnAndReportsTheExitCode) {
  job::WorkerEvent sent;
  sent.kind = job::WorkerEventKind::kListening;
  sent.port = 4711;
  const std::string line = job::event_to_json(sent).dump();
  auto worker = start(script("echo '" + line + "'; echo 'no event'; exit 7"));
  const os::ExitStatus status = wait_for_exit();
  EXPECT_FALSE(status.signalled);
  EXPECT_EQ(status.code, 7);
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].port, 4711);
}

TEST_F(WorkerProcessTest, SendsLinesToTheChild) {
  auto worker =
      start(script("read line; [ \"$line\" = '{\"type\":\"start\"}' ] && exit 5; exit 6"));
  ASSERT_TRUE(worker->send_line(R"({"type":"start"})").ok());
  EXPECT_EQ(wait_for_exit().code, 5);
}

TEST_F(WorkerProcessTest, KillsAStoppedChild) {
  auto worker = start(script("kill -STOP $$; exit 0"));
  worker->kill_now();
  const os::ExitStatus status = wait_for_exit();
  EXPECT_TRUE(status.signalled);
  EXPECT_EQ(status.code, SIGKILL);
}

TEST_F(WorkerProcessTest, DestructionEndsTheChild) {
  auto worker = start(script("exec sleep 1000"));
  const pid_t pid = worker->pid();
  EXPECT_NE(os::process_identity(pid), "");
  worker.reset();
  EXPECT_EQ(os::process_identity(pid), "");
}

TEST_F(WorkerProcessTest, SaysThatTheProgramIsMissing) {
  auto worker = WorkerProcess::start(
      "/nonexistent/weft-worker", "/dev/null", "/dev/null", [](job::WorkerEvent) {},
      [](os::ExitStatus) {});
  ASSERT_FALSE(worker.ok());
  EXPECT_NE(worker.error().message.find("/nonexistent/weft-worker"), std::string::npos);
}

TEST(EventQueue, RunsEventsInOrderAndOnlyWhenAsked) {
  EventQueue queue;
  std::vector<int> seen;
  for (int i = 0; i < 3; ++i) queue.post([&seen, i] { seen.push_back(i); });
  EXPECT_TRUE(seen.empty());
  queue.run_for(0);
  EXPECT_EQ(seen, (std::vector<int>{0, 1, 2}));
}

}  // namespace
}  // namespace weft::daemon
