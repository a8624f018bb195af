#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <nlohmann/json.hpp>

#include "executor/threads.h"
#include "executor/worker_goodbye.h"
#include "executor/worker_lines.h"
#include "executor/worker_loop.h"
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
  void write(const std::string& text) { EXPECT_TRUE(write_fully(fds[1], text)); }
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
  EXPECT_EQ(parse_daemon_line(R"({"type":"stop","reason":"why"})")->reason, "why");
}

TEST(WorkerLines, RefusesNonsense) {
  for (const char* line :
       {"", "{", "[]", R"({"type":"dance"})", R"({"type":"connect"})", R"({"type":7})",
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
  LineReader reader(pipe.fds[0]);
  const auto first = reader.next(4096), second = reader.next(4096);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(nlohmann::json::parse(*first)["step"], 3);
  const auto failed = job::event_from_json(nlohmann::json::parse(*second));
  ASSERT_TRUE(failed.ok()) << failed.error().text();
  EXPECT_EQ(failed->error_code, "unavailable");
  EXPECT_EQ(failed->step, 9);
}

TEST(LineReader, SplitsBoundsAndWakes) {
  Pipe pipe;
  LineReader reader(pipe.fds[0]);
  pipe.write("one\ntwo\nthr");
  EXPECT_EQ(*reader.next(100), "one");
  EXPECT_EQ(*reader.next(100), "two");
  WakePipe wake;
  wake.wake();
  EXPECT_EQ(reader.next(100, &wake).error().code, Code::kCancelled);
  pipe.write("ee\n" + std::string(300, 'x'));
  EXPECT_EQ(*reader.next(100), "three");
  EXPECT_EQ(reader.next(100).error().code, Code::kTooLarge);
  pipe.end();
  LineReader rest(pipe.fds[0]);
  EXPECT_EQ(rest.next(100).error().code, Code::kUnavailable);
}

TEST(StdinThread, HandsLinesOnAndStops) {
  Pipe pipe;
  WorkerControl control;
  LineReader reader(pipe.fds[0]);
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
  LineReader reader(pipe.fds[0]);
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
  LineReader reader(pipe.fds[0]);
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

TEST(WorkerLoop, MemoryIsCounted) {
  EXPECT_GT(peak_memory_bytes("cpu"), 1 << 20);
}

TEST(Goodbye, AStoppedWorkerDoesNotWait) {
  net::SimNetwork network(2, {});
  WorkerControl control;
  control.stop(StopCause::kOrdered, "test");
  EXPECT_FALSE(say_goodbye(network.endpoint(0), control, 1, 0, 2, 1, 100).ok());
  EXPECT_TRUE(say_goodbye(network.endpoint(0), control, 1, 0, 1, 0, 100).ok());
}

}  // namespace
}  // namespace weft::executor
