#include "base/os/line_pipe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

namespace weft::os {
namespace {

struct Pipe {
  int fds[2] = {-1, -1};
  Pipe() { EXPECT_EQ(pipe(fds), 0); }
  ~Pipe() {
    close_descriptor(fds[0]);
    end();
  }
  void write(const std::string& text) { EXPECT_TRUE(write_fully(fds[1], text)); }
  void end() {
    if (fds[1] >= 0) close_descriptor(fds[1]);
    fds[1] = -1;
  }
};

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

TEST(WriteWithin, GivesUpOnAReaderThatTakesNothing) {
  Pipe pipe;
  set_nonblocking(pipe.fds[1]);
  EXPECT_TRUE(write_within(pipe.fds[1], "a line\n", 1).ok());
  LineReader reader(pipe.fds[0]);
  EXPECT_EQ(*reader.next(100), "a line");
  const Status full = write_within(pipe.fds[1], std::string(1 << 20, 'x'), 1);
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code, Code::kUnavailable);
}

TEST(WriteWithin, SaysThatTheReaderIsGone) {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  close_descriptor(pipe.fds[0]);
  pipe.fds[0] = -1;
  EXPECT_EQ(write_within(pipe.fds[1], "x", 1).error().code, Code::kUnavailable);
  EXPECT_FALSE(write_fully(pipe.fds[1], "x"));
}

}  // namespace
}  // namespace weft::os
