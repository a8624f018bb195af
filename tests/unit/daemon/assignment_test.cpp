// The life of an assignment with a shell script as its worker, a virtual clock, and no broker.
#include "daemon/assignment.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <vector>

#include "tests/unit/daemon/worker_script.h"

namespace weft::daemon {
namespace {

using job::WorkerEventKind;
using testing::say;
using SteadyClock = std::chrono::steady_clock;

const std::string kForever = "exec sleep 1000";

class AssignmentTest : public ::testing::Test {
 protected:
  AssignmentTest()
      : dir_(testing::fresh_dir(std::string("assignment_") +
                                ::testing::UnitTest::GetInstance()->current_test_info()->name())) {}
  ~AssignmentTest() override {
    release_.set_value();
    if (assignment_) assignment_->stop("the test ends");
  }

  AssignmentEnvironment environment(const std::string& worker) {
    AssignmentEnvironment env;
    env.events = &events_;
    env.transfers = &transfers_;
    env.clock = &clock_;
    env.work_root = dir_ / "work";
    env.worker_program = testing::script(dir_, worker).string();
    env.advertise_host = "10.0.0.7";
    env.send = [this](proto::PeerMessage message) { sent_.push_back(std::move(message)); };
    env.prepare_files = [](const proto::Prepare& prepare, const os::Path& dir,
                           const AssignmentEnvironment::Cancelled&) -> Result<job::WorkerSpec> {
      WEFT_TRY_STATUS(os::make_directories(dir));
      return testing::worker_spec(prepare.job(), prepare.epoch(), prepare.stage());
    };
    env.upload_shard =
        [](const os::Path& file,
           const AssignmentEnvironment::Cancelled&) -> Result<proto::CheckpointStored> {
      proto::CheckpointStored stored;
      WEFT_TRY(const std::string text, os::read_file(file));
      stored.set_sha256(text);
      return stored;
    };
    return env;
  }

  static proto::Prepare prepare(const std::string& job = "job", int32_t stage = 1) {
    proto::Prepare message;
    message.set_job(job);
    message.set_epoch(3);
    message.set_stage(stage);
    return message;
  }

  void begin(AssignmentEnvironment env) {
    auto made = Assignment::make(std::move(env), prepare());
    ASSERT_TRUE(made.ok()) << made.error().text();
    assignment_ = std::move(*made);
    assignment_->begin();
  }
  void begin(const std::string& worker) { begin(environment(worker)); }

  os::Path work_dir() const { return dir_ / "work" / "job.3.1"; }

  // Runs the daemon's main thread until it is so; real time, with a deadline.
  template <typename Condition>
  bool run_until(Condition condition) {
    const auto end = SteadyClock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (SteadyClock::now() > end) return false;
      events_.run_for(20);
    }
    return true;
  }
  bool reaches(AssignmentState state) {
    return run_until([&] { return assignment_->state() == state; });
  }
  // A worker that says nothing for so long, as a daemon sees it that runs all the time.
  void silence(int64_t ms) {
    for (; ms > 0; ms -= 1000) {
      clock_.advance_ms(1000);
      assignment_->tick();
    }
  }
  std::vector<std::string> updates() const {
    std::vector<std::string> out;
    for (const auto& message : sent_) {
      if (message.has_update()) out.push_back(message.update().state());
    }
    return out;
  }
  const proto::ErrorInfo& last_error() const {
    for (auto it = sent_.rbegin(); it != sent_.rend(); ++it) {
      if (it->has_update()) return it->update().error();
    }
    return proto::ErrorInfo::default_instance();
  }

  const os::Path dir_;
  VirtualClock clock_;
  EventQueue events_;
  std::vector<proto::PeerMessage> sent_;
  std::promise<void> release_;  // of transfers that a test holds up
  std::shared_ptr<Assignment> assignment_;
  TaskRunner transfers_{"weft-transfer"};  // ends first: its tasks use what is above
};

std::string event_with(WorkerEventKind kind, const std::string& path, const std::string& message) {
  job::WorkerEvent event;
  event.kind = kind;
  event.step = 9;
  event.path = path;
  event.message = message;
  event.error_code = "refused";
  event.next = "do better";
  return say(event);
}

TEST_F(AssignmentTest, NamesThatMayNotBecomePathsAreRefused) {
  using namespace std::string_literals;
  for (const std::string& job :
       {""s, "."s, ".."s, "../up"s, "a/b"s, "/etc"s, "..\\x"s, "a\0b"s, "\0"s, "a b"s, ".hidden"s,
        "-rf"s, "\xc3\xa9"s, "line\n"s, std::string(61, 'a'), std::string(100000, 'a')}) {
    const auto made = Assignment::make(environment("exit 0"), prepare(job));
    ASSERT_FALSE(made.ok()) << job.substr(0, 80);
    EXPECT_EQ(made.error().code, Code::kInvalid);
    EXPECT_LT(made.error().text().size(), 500u);
  }
  EXPECT_FALSE(Assignment::make(environment("exit 0"), prepare("job", -1)).ok());
  EXPECT_TRUE(Assignment::make(environment("exit 0"), prepare("gpt-2.small_1")).ok());
}

TEST_F(AssignmentTest, AHoldReachesARunningWorkerOnly) {
  begin(say(WorkerEventKind::kListening) + say(WorkerEventKind::kReady) +
        "read line; echo \"$line\" >&2; read line; echo \"$line\" >&2; " +
        say(WorkerEventKind::kFinished) + "exit 0");
  ASSERT_TRUE(reaches(AssignmentState::kReady));
  assignment_->hold(8);  // it computes nothing yet
  assignment_->start();
  assignment_->hold(9);
  ASSERT_TRUE(reaches(AssignmentState::kFinished));
  std::string log;
  for (const auto& message : sent_) {
    for (const auto& line : message.logs().lines()) log += line + "\n";
  }
  EXPECT_EQ(log, "{\"type\":\"start\"}\n{\"step\":9,\"type\":\"hold\"}\n");
}

TEST_F(AssignmentTest, LivesFromPrepareToFinished) {
  const std::string shard = (work_dir() / "shard").string();
  begin(say(WorkerEventKind::kListening) + "read line; echo \"$line\" >&2; " +
        say(WorkerEventKind::kReady) + "read line; " + say(WorkerEventKind::kStep) +
        "printf bytes > " + shard + "; " + event_with(WorkerEventKind::kCheckpoint, shard, "") +
        say(WorkerEventKind::kFinished) + "exit 0");
  ASSERT_TRUE(reaches(AssignmentState::kListening));
  assignment_->start();  // too early: nothing happens
  proto::Connect connect;
  auto* stage = connect.add_stages();
  stage->set_stage(0);
  stage->set_peer("peer-0");
  assignment_->connect(connect);
  ASSERT_TRUE(reaches(AssignmentState::kReady));
  assignment_->start();
  ASSERT_TRUE(reaches(AssignmentState::kFinished));
  EXPECT_EQ(updates(), (std::vector<std::string>{"listening", "ready", "running", "finished"}));
  EXPECT_EQ(sent_.front().update().port(), 4711u);
  EXPECT_EQ(sent_.front().update().advertise_host(), "10.0.0.7");
  // Finished means that every shard is off this machine; the log came along.
  size_t stored = 0, logs = 0, steps = 0;
  for (size_t i = 0; i < sent_.size(); ++i) {
    if (sent_[i].has_checkpoint()) stored = i;
    if (sent_[i].has_logs()) logs += sent_[i].logs().lines(0).find("peer-0") != std::string::npos;
    steps += sent_[i].has_report() ? 1 : 0;
  }
  ASSERT_GT(stored, 0u);
  EXPECT_LT(stored, sent_.size() - 1);
  EXPECT_EQ(sent_[stored].checkpoint().sha256(), "bytes");
  EXPECT_EQ(sent_[stored].checkpoint().step(), 9);
  EXPECT_EQ(logs, 1u);
  EXPECT_EQ(steps, 1u);
  EXPECT_FALSE(std::filesystem::exists(shard));
  assignment_.reset();
  ASSERT_TRUE(run_until([&] { return !std::filesystem::exists(work_dir()); }));
}

// Its neighbours may need a finished worker for hours: as long as it says that it lives, it does.
TEST_F(AssignmentTest, AFinishedWorkerLivesUntilItsGoodbye) {
  const std::string go = (dir_ / "go").string();
  begin(say(WorkerEventKind::kListening) + say(WorkerEventKind::kFinished) + "while [ ! -e " + go +
        " ]; do " + say(WorkerEventKind::kAlive) + "sleep 0.01; done; exit 0");
  ASSERT_TRUE(reaches(AssignmentState::kListening));
  for (int i = 0; i < 60; ++i) {
    events_.run_for(5000);  // returns when something was said
    clock_.advance_ms(4000);
    assignment_->tick();
    ASSERT_EQ(assignment_->state(), AssignmentState::kListening) << "after " << 4 * i << " s";
  }
  ASSERT_TRUE(os::write_file_atomic(go, std::string_view("go")).ok());
  EXPECT_TRUE(reaches(AssignmentState::kFinished));
}

TEST_F(AssignmentTest, ASilentFinishedWorkerIsKilledAndHasFinished) {
  begin(say(WorkerEventKind::kListening) + say(WorkerEventKind::kFinished) + kForever);
  ASSERT_TRUE(reaches(AssignmentState::kListening));
  events_.run_for(500);  // "finished", if it was not in the same batch
  silence(10000);
  EXPECT_EQ(assignment_->state(), AssignmentState::kListening);
  silence(2000);
  EXPECT_TRUE(reaches(AssignmentState::kFinished));
}

TEST_F(AssignmentTest, ASilentWorkerIsKilledAndFails) {
  begin(say(WorkerEventKind::kListening) + kForever);
  ASSERT_TRUE(reaches(AssignmentState::kListening));
  silence(10000);
  EXPECT_EQ(assignment_->state(), AssignmentState::kListening);
  silence(1000);
  EXPECT_EQ(assignment_->state(), AssignmentState::kFailed);
  EXPECT_EQ(last_error().code(), "timeout");
  EXPECT_NE(last_error().message().find("stage 1"), std::string::npos);
}

// A laptop slept, or somebody stopped the daemon: the worker's lines are there but not read yet.
TEST_F(AssignmentTest, TheDaemonsOwnStandstillIsForgiven) {
  begin(say(WorkerEventKind::kListening) + kForever);
  ASSERT_TRUE(reaches(AssignmentState::kListening));
  silence(9000);
  clock_.advance_ms(8 * 3600 * 1000);
  assignment_->tick();
  EXPECT_EQ(assignment_->state(), AssignmentState::kListening);
  silence(10000);
  EXPECT_EQ(assignment_->state(), AssignmentState::kListening) << "a whole silence from then on";
  silence(1000);
  EXPECT_EQ(assignment_->state(), AssignmentState::kFailed);
}

TEST_F(AssignmentTest, AStopIsAskedForThenForced) {
  begin(say(WorkerEventKind::kListening) + "read line; read line; " + kForever);
  ASSERT_TRUE(reaches(AssignmentState::kListening));
  assignment_->stop("enough");
  silence(2000);
  events_.run_for(50);
  EXPECT_EQ(assignment_->state(), AssignmentState::kStopping);
  silence(1000);
  EXPECT_TRUE(reaches(AssignmentState::kStopped));
  EXPECT_EQ(updates().back(), "stopped");
}

TEST_F(AssignmentTest, AnObedientWorkerStopsByItself) {
  begin(say(WorkerEventKind::kListening) + "read line; exit 0");
  ASSERT_TRUE(reaches(AssignmentState::kListening));
  assignment_->stop("enough");
  EXPECT_TRUE(reaches(AssignmentState::kStopped));
}

TEST_F(AssignmentTest, AStopDuringPreparationCancelsTheTransfer) {
  AssignmentEnvironment env = environment("exit 0");
  std::promise<void> begun;
  std::promise<bool> saw_cancel;
  std::shared_future<void> released = release_.get_future().share();
  env.prepare_files =
      [&](const proto::Prepare&, const os::Path&,
          const AssignmentEnvironment::Cancelled& cancelled) -> Result<job::WorkerSpec> {
    begun.set_value();
    while (!cancelled() &&
           released.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    }
    saw_cancel.set_value(cancelled());
    return make_error(Code::kCancelled, "cancelled");
  };
  begin(std::move(env));
  begun.get_future().wait();
  assignment_->stop("enough");
  EXPECT_EQ(assignment_->state(), AssignmentState::kStopped);
  EXPECT_TRUE(saw_cancel.get_future().get());
  events_.run_for(1000);
  EXPECT_EQ(updates(), std::vector<std::string>{"stopped"});
}

TEST_F(AssignmentTest, ALongDownloadAndALongLoadAreSaidToBeAlive) {
  const auto seconds = [&] {
    std::vector<double> found;
    for (const auto& message : sent_) {
      if (!message.has_report()) continue;
      const auto event =
          job::event_from_json(nlohmann::json::parse(message.report().event_json())).value();
      if (event.kind == WorkerEventKind::kAlive) found.push_back(event.seconds);
    }
    return found;
  };
  std::promise<void> let_go;
  auto go = let_go.get_future().share();
  job::WorkerEvent idle;
  idle.kind = WorkerEventKind::kAlive;
  idle.seconds = 7;
  auto env = environment(say(idle) + "\n" + kForever);
  const auto prepare_files = env.prepare_files;
  env.prepare_files = [=](const proto::Prepare& prepare, const os::Path& dir,
                          const AssignmentEnvironment::Cancelled& cancelled) {
    go.wait();
    return prepare_files(prepare, dir, cancelled);
  };
  begin(std::move(env));
  silence(30000);
  EXPECT_EQ(assignment_->state(), AssignmentState::kPreparing);
  EXPECT_EQ(seconds(), std::vector<double>(6, 0.0)) << "every 5 s";
  let_go.set_value();
  // The worker is there, has said nothing that changes the state, and its compute thread stands.
  ASSERT_TRUE(run_until([&] {
    clock_.advance_ms(100);
    assignment_->tick();
    return !seconds().empty() && seconds().back() == 7;
  }));
  EXPECT_EQ(assignment_->state(), AssignmentState::kPreparing);
}

TEST_F(AssignmentTest, WhatCannotBePreparedFailsWithItsReason) {
  AssignmentEnvironment env = environment("exit 0");
  env.prepare_files = [](const auto&, const auto&, const auto&) -> Result<job::WorkerSpec> {
    return make_error(Code::kNotFound, "no blob here", "upload it");
  };
  begin(std::move(env));
  ASSERT_TRUE(reaches(AssignmentState::kFailed));
  EXPECT_EQ(last_error().code(), "not_found");
  EXPECT_EQ(last_error().message(), "no blob here");
  EXPECT_EQ(last_error().next(), "upload it");
}

TEST_F(AssignmentTest, AFailureOfTheWorkerIsPassedOn) {
  begin(say(WorkerEventKind::kListening) + event_with(WorkerEventKind::kFailed, "", "no memory") +
        "exit 1");
  ASSERT_TRUE(reaches(AssignmentState::kFailed));
  EXPECT_EQ(last_error().code(), "refused");
  EXPECT_EQ(last_error().message(), "no memory");
}

TEST_F(AssignmentTest, ADeathWithoutAWordIsDescribed) {
  begin(say(WorkerEventKind::kListening) + "printf 'odd \\377 byte\\n' >&2; exit 7");
  ASSERT_TRUE(reaches(AssignmentState::kFailed));
  EXPECT_NE(last_error().message().find("exited with 7"), std::string::npos);
  bool logged = false;
  for (const auto& message : sent_)
    logged |= message.has_logs() && message.logs().lines(0) == "odd ? byte";
  EXPECT_TRUE(logged);
}

TEST_F(AssignmentTest, AMissingProgramFails) {
  AssignmentEnvironment env = environment("exit 0");
  env.worker_program = "/nonexistent/weft-worker";
  begin(std::move(env));
  ASSERT_TRUE(reaches(AssignmentState::kFailed));
  EXPECT_NE(last_error().message().find("/nonexistent/weft-worker"), std::string::npos);
}

// A hostile worker must not make the daemon read and remove files elsewhere.
TEST_F(AssignmentTest, CheckpointsOutsideTheWorkFolderAreDenied) {
  const os::Path elsewhere = dir_ / "precious";
  ASSERT_TRUE(os::write_file_atomic(elsewhere, std::string_view("keep")).ok());
  const std::string link = (work_dir() / "link").string();
  for (const std::string& path : {elsewhere.string(), link, (work_dir() / ".." / "x").string(),
                                  std::string(), work_dir().string()}) {
    begin("ln -sf " + elsewhere.string() + " " + link + "; " +
          event_with(WorkerEventKind::kCheckpoint, path, "") + kForever);
    ASSERT_TRUE(reaches(AssignmentState::kFailed)) << path;
    EXPECT_EQ(last_error().code(), "denied") << path;
    assignment_.reset();
  }
  EXPECT_EQ(*os::read_file(elsewhere), "keep");
}

}  // namespace
}  // namespace weft::daemon
