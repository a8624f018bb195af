#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "executor/threads.h"
#include "executor/worker_goodbye.h"
#include "executor/worker_lines.h"
#include "executor/worker_loop.h"
#include "job/checkpoint.h"
#include "net/sim/sim_network.h"

namespace weft::executor {
namespace {

struct Pipe {
  int fds[2] = {-1, -1};
  Pipe() { EXPECT_EQ(pipe(fds), 0); }
  ~Pipe() {
    close(fds[0]);
    end();
  }
  void write(const std::string& text) { EXPECT_TRUE(os::write_fully(fds[1], text)); }
  void end() {
    if (fds[1] >= 0) close(fds[1]);
    fds[1] = -1;
  }
};

TEST(WorkerLines, ParsesWhatADaemonSays) {
  const auto connect = parse_daemon_line(
      R"({"type":"connect","stages":[{"stage":1,"peer":"p","host":"h","port":7}]})");
  ASSERT_TRUE(connect.ok()) << connect.error().text();
  ASSERT_EQ(connect->stages.size(), 1u);
  EXPECT_EQ(connect->stages[0].port, 7);
  EXPECT_EQ(parse_daemon_line(R"({"type":"start"})")->kind, DaemonLine::Kind::kStart);
  EXPECT_EQ(parse_daemon_line(R"({"type":"hold","step":7})")->step, 7);
  EXPECT_EQ(parse_daemon_line(R"({"type":"stop","reason":"why"})")->reason, "why");
}

TEST(WorkerLines, RefusesNonsense) {
  for (const char* line :
       {"", "{", "[]", R"({"type":"dance"})", R"({"type":"connect"})", R"({"type":7})",
        R"({"type":"hold"})",
        R"({"type":"connect","stages":[{"stage":1,"peer":"p","host":"h","port":70000}]})",
        R"({"type":"connect","stages":{"a":1}})"}) {
    EXPECT_FALSE(parse_daemon_line(line).ok()) << line;
  }
}

TEST(WorkerLines, EventsAreWholeLines) {
  Pipe pipe;
  EventWriter writer(pipe.fds[1]);
  job::WorkerEvent event;
  event.kind = job::WorkerEventKind::kStep;
  event.step = 3;
  event.loss = std::numeric_limits<double>::quiet_NaN();
  writer.write(event);
  writer.write(failure_event(make_error(Code::kUnavailable, "stage 1 \xff gone", "wait"), 9));
  os::LineReader reader(pipe.fds[0]);
  const auto first = reader.next(4096), second = reader.next(4096);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(nlohmann::json::parse(*first)["step"], 3);
  const auto failed = job::event_from_json(nlohmann::json::parse(*second));
  ASSERT_TRUE(failed.ok()) << failed.error().text();
  EXPECT_EQ(failed->error_code, "unavailable");
  EXPECT_EQ(failed->step, 9);
}

TEST(StdinThread, HandsLinesOnAndStops) {
  Pipe pipe;
  WorkerControl control;
  os::LineReader reader(pipe.fds[0]);
  std::atomic<int> hard_exits{0};
  net::SimNetwork network(1, {});
  control.set_endpoint(&network.endpoint(0));
  {
    const StdinThread thread(control, reader, [&](int) { ++hard_exits; });
    pipe.write("{\"type\":\"start\"}\n\n{\"type\":\"stop\",\"reason\":\"enough\"}\n");
    // The line before the stop may or may not be seen: a stop wins.
    auto line = control.next_line();
    if (line.ok()) line = control.next_line();
    ASSERT_FALSE(line.ok());
    EXPECT_EQ(line.error().message, "enough");
    EXPECT_EQ(exit_code_of(control.stop_cause()), 0);
    control.set_endpoint(nullptr);
  }
  EXPECT_EQ(hard_exits, 0);
}

TEST(StdinThread, EndOfInputMeansTheDaemonDied) {
  Pipe pipe;
  WorkerControl control;
  os::LineReader reader(pipe.fds[0]);
  std::atomic<int> hard_exits{0};
  const StdinThread thread(control, reader, [&](int) { ++hard_exits; });
  pipe.end();
  EXPECT_FALSE(control.next_line().ok());
  EXPECT_EQ(control.stop_cause(), StopCause::kDaemonGone);
  EXPECT_EQ(exit_code_of(control.stop_cause()), 1);
}

TEST(StdinThread, ABadLineStops) {
  Pipe pipe;
  WorkerControl control;
  os::LineReader reader(pipe.fds[0]);
  const StdinThread thread(control, reader, [](int) {});
  pipe.write("nonsense\n");
  EXPECT_FALSE(control.next_line().ok());
  EXPECT_EQ(control.stop_cause(), StopCause::kBadLine);
}

TEST(AliveThread, ReportsHowLongNothingMoved) {
  WorkerControl control;
  std::atomic<int> events{0};
  {
    const AliveThread alive(
        control,
        [&](const job::WorkerEvent& event) {
          EXPECT_EQ(event.kind, job::WorkerEventKind::kAlive);
          EXPECT_GE(event.seconds, 0);
          if (++events == 3) control.stop(StopCause::kOrdered, "seen");
        },
        0.001);
    EXPECT_FALSE(control.next_line().ok());
  }
  EXPECT_GE(events, 3);
}

TEST(WorkerLoop, BoundariesFollowFromTheSpec) {
  job::TrainSpec train;
  train.steps = 10;
  train.eval_every = 4;
  train.checkpoint_every = 5;
  const auto at = [&](int64_t done) {
    const Boundary boundary = boundary_at(train, done, true);
    return std::pair(boundary.evaluate, boundary.checkpoint);
  };
  EXPECT_EQ(at(3), std::pair(false, false));
  EXPECT_EQ(at(4), std::pair(true, false));
  EXPECT_EQ(at(5), std::pair(false, true));
  EXPECT_EQ(at(10), std::pair(true, true));
  train.eval_every = train.checkpoint_every = 0;
  EXPECT_EQ(at(5), std::pair(false, false));
  EXPECT_EQ(at(10), std::pair(true, true));
  EXPECT_FALSE(boundary_at(train, 10, false).evaluate);
}

// A stage that takes no time: the loop alone is under test.
class IdleRuntime final : public StageRuntime {
 public:
  Status begin_step(int64_t) override { return {}; }
  Status begin_eval(int64_t, int32_t) override { return {}; }
  Result<Progress> advance() override {
    if (on_advance) on_advance();
    return Progress::kDone;
  }
  std::function<void()> on_advance;
  StepResult result() const override { return {}; }
  std::map<std::string, at::Tensor> state() const override { return {{"w", at::ones({2})}}; }
  Status load_state(const std::map<std::string, at::Tensor>&) override { return {}; }
  std::map<std::string, at::Tensor> gradients() const override { return {}; }
  std::map<std::string, at::Tensor> outputs() const override { return {}; }
};

LoopOptions storing_options(const char* name) {
  LoopOptions options;
  options.spec.work_dir = ::testing::TempDir() + name;
  std::filesystem::remove_all(options.spec.work_dir);
  std::filesystem::create_directories(options.spec.work_dir);
  options.spec.spec.train.steps = 6;
  options.spec.spec.train.checkpoint_every = 1;
  options.spec.link_timeout_ms = 1000;
  options.poll_ms = 1;
  return options;
}

// The loop never deletes a shard and never has more than two waiting when it writes the next.
TEST(WorkerLoop, WaitsForTheUploadOfOlderCheckpoints) {
  net::SimNetwork network(1, {});
  WorkerControl control;
  IdleRuntime runtime;
  const LoopOptions options = storing_options("weft-uploads");
  std::mutex mutex;
  std::deque<std::string> reported;
  size_t most = 0;
  std::atomic<bool> ended{false};
  const EventSink events = [&](const job::WorkerEvent& event) {
    if (event.kind != job::WorkerEventKind::kCheckpoint) return;
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(std::filesystem::exists(event.path));
    reported.push_back(event.path);
    most = std::max(most, reported.size());
  };
  std::thread daemon([&] {  // uploads one whenever it has two
    while (!ended) {
      const std::lock_guard lock(mutex);
      if (reported.size() < 2) continue;
      EXPECT_TRUE(std::filesystem::remove(reported.front()));
      reported.pop_front();
    }
  });
  TrainingLoop loop(options, runtime, network.endpoint(0), control, events);
  const Status status = loop.run();
  ended = true;
  daemon.join();
  EXPECT_TRUE(status.ok()) << status.error().text();
  EXPECT_EQ(loop.steps_done(), 6);
  EXPECT_LE(most, job::kMaxStoredShards);
}

TEST(WorkerLoop, AStopEndsTheWaitForUploads) {
  net::SimNetwork network(1, {});
  WorkerControl control;
  IdleRuntime runtime;
  int steps = 0, stored = 0;
  runtime.on_advance = [&] {
    if (++steps == 3) control.stop(StopCause::kOrdered, "enough");
  };
  const EventSink events = [&](const job::WorkerEvent& event) {
    stored += event.kind == job::WorkerEventKind::kCheckpoint ? 1 : 0;
  };
  LoopOptions options = storing_options("weft-uploads-stop");
  options.poll_ms = 600000;
  TrainingLoop loop(options, runtime, network.endpoint(0), control, events);
  const Status status = loop.run();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kCancelled);
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(stored, 2);
}

// Behind the step the broker named a stage stores its shard, once, and waits until told otherwise.
TEST(WorkerLoop, WaitsBehindTheStepItIsAskedTo) {
  net::SimNetwork network(1, {});
  WorkerControl control;
  IdleRuntime runtime;
  LoopOptions options = storing_options("weft-hold");
  options.spec.spec.train.checkpoint_every = 0;
  std::atomic<int64_t> steps{0};
  std::vector<int64_t> stored;
  std::thread daemon;
  const auto say = [&](int64_t step) {
    DaemonLine line;
    line.kind = DaemonLine::Kind::kHold;
    line.step = step;
    control.push(std::move(line));
  };
  const EventSink events = [&](const job::WorkerEvent& event) {
    if (event.kind == job::WorkerEventKind::kStep) steps = event.step;
    if (event.kind != job::WorkerEventKind::kCheckpoint) return;
    stored.push_back(event.step);
    if (event.step != 4) return;
    daemon = std::thread([&] {  // it waits: a later step is named, then none
      EXPECT_TRUE(control.held(4));
      EXPECT_EQ(steps, 4);
      say(0);
    });
  };
  say(2);  // is past when the next is said
  say(4);
  TrainingLoop loop(options, runtime, network.endpoint(0), control, events);
  const Status status = loop.run();
  daemon.join();
  EXPECT_TRUE(status.ok()) << status.error().text();
  EXPECT_EQ(loop.steps_done(), 6);
  EXPECT_EQ(stored, (std::vector<int64_t>{4, 6}));
}

TEST(WorkerLoop, AStopEndsTheWaitBehindAStep) {
  net::SimNetwork network(1, {});
  WorkerControl control;
  IdleRuntime runtime;
  const EventSink events = [&](const job::WorkerEvent& event) {
    if (event.kind == job::WorkerEventKind::kCheckpoint && event.step == 3) {
      control.stop(StopCause::kOrdered, "moves on");
    }
  };
  LoopOptions options = storing_options("weft-hold-stop");
  options.spec.spec.train.checkpoint_every = 0;
  DaemonLine line;
  line.kind = DaemonLine::Kind::kHold;
  line.step = 3;
  control.push(std::move(line));
  TrainingLoop loop(options, runtime, network.endpoint(0), control, events);
  const Status status = loop.run();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kCancelled);
  EXPECT_EQ(loop.steps_done(), 3);
}

net::Message small_message(int32_t from) {
  net::Message message;
  message.key.epoch = 1;
  message.key.kind = net::MessageKind::kNorms;
  message.key.from = from;
  message.none = true;
  return message;
}

// The last message takes an hour; nothing but the death of the link may fail a finished training.
TEST(WorkerLoop, TheLastMessageMayTakeItsTime) {
  net::SimOptions slow;
  slow.latency_ms = 3600 * 1000;
  net::SimNetwork network(2, slow);
  WorkerControl control;
  IdleRuntime runtime;
  LoopOptions options = storing_options("weft-slow-flush");
  options.spec.spec.train.steps = 1;
  bool finished = false;
  const EventSink events = [&](const job::WorkerEvent& event) {
    finished |= event.kind == job::WorkerEventKind::kFinished;
  };
  ASSERT_TRUE(network.endpoint(0).send(1, small_message(0)).ok());
  TrainingLoop loop(options, runtime, network.endpoint(0), control, events);
  const Status status = loop.run();
  EXPECT_TRUE(status.ok()) << status.error().text();
  EXPECT_TRUE(finished);
  EXPECT_GE(network.now_ms(), 3600 * 1000);
}

// An endpoint whose links carried something more with each step.
class BusyEndpoint final : public net::Endpoint {
 public:
  Status send(int32_t, net::Message) override { return {}; }
  std::optional<net::Message> take(const net::MessageKey&) override { return std::nullopt; }
  Status wait(int32_t) override { return {}; }
  Status flush(int32_t) override { return {}; }
  void interrupt() override {}
  net::EndpointStats stats() const override {
    net::EndpointStats stats;
    stats.carried = {{1, {5e6, 0.03, ++runs_}}, {2, {0, 0.04, runs_}}};
    return stats;
  }

 private:
  mutable int64_t runs_ = 0;
};

TEST(WorkerLoop, TellsAtWhatRateItsMessagesWentButNotWithEveryStep) {
  BusyEndpoint endpoint;
  WorkerControl control;
  IdleRuntime runtime;
  LoopOptions options = storing_options("weft-traffic");
  options.spec.spec.train.checkpoint_every = 0;
  std::vector<job::LinkTraffic> told;
  size_t steps = 0;
  const EventSink events = [&](const job::WorkerEvent& event) {
    steps += event.kind == job::WorkerEventKind::kStep;
    told.insert(told.end(), event.traffic.begin(), event.traffic.end());
  };
  ASSERT_TRUE(TrainingLoop(options, runtime, endpoint, control, events).run().ok());
  EXPECT_EQ(steps, 6u);
  ASSERT_EQ(told.size(), 1u)
      << "six steps take less than five seconds; of stage 2 no rate is known";
  EXPECT_EQ(told[0], (job::LinkTraffic{1, 5e6, 0.03}));
}

// An endpoint whose flush ends as told.
class FlushEndpoint final : public net::Endpoint {
 public:
  explicit FlushEndpoint(std::function<Status(int)> flush) : flush_(std::move(flush)) {}
  Status send(int32_t, net::Message) override { return {}; }
  std::optional<net::Message> take(const net::MessageKey&) override { return std::nullopt; }
  Status wait(int32_t) override { return {}; }
  Status flush(int32_t) override { return flush_(++calls); }
  void interrupt() override {}
  net::EndpointStats stats() const override { return {}; }
  int calls = 0;

 private:
  std::function<Status(int)> flush_;
};

TEST(Goodbye, TheLastFlushEndsWithTheLinkOrByAStop) {
  const auto slow = [] { return Status(make_error(Code::kTimeout, "slow")); };
  WorkerControl control;
  FlushEndpoint late([&](int call) { return call < 500 ? slow() : Status(); });
  EXPECT_TRUE(flush_patiently(late, control).ok());
  EXPECT_EQ(late.calls, 500);
  FlushEndpoint dies([&](int call) {
    return call < 3 ? slow() : Status(make_error(Code::kUnavailable, "stage 1 is dead"));
  });
  EXPECT_EQ(flush_patiently(dies, control).error().code, Code::kUnavailable);
  FlushEndpoint stopped([&](int call) {
    if (call == 2) control.stop(StopCause::kOrdered, "enough");
    return slow();
  });
  EXPECT_EQ(flush_patiently(stopped, control).error().code, Code::kCancelled);
  EXPECT_EQ(stopped.calls, 2);
}

TEST(Goodbye, AStoppedWorkerDoesNotWait) {
  net::SimNetwork network(2, {});
  WorkerControl control;
  control.stop(StopCause::kOrdered, "test");
  EXPECT_FALSE(say_goodbye(network.endpoint(0), control, 1, 0, 2, 1).ok());
  EXPECT_TRUE(say_goodbye(network.endpoint(0), control, 1, 0, 1, 0).ok());
}

}  // namespace
}  // namespace weft::executor
