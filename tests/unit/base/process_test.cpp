#include "base/os/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include "base/os/process_identity.h"

namespace weft::os {
namespace {

std::string read_all(int fd) {
  std::string text;
  char block[4096];
  for (ssize_t got; (got = ::read(fd, block, sizeof block)) > 0;) {
    text.append(block, static_cast<size_t>(got));
  }
  return text;
}

SpawnOptions shell(const std::string& script) {
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", script};
  return options;
}

TEST(Process, PipesCarryBothWays) {
  SpawnOptions options = shell("read line; echo \"got $line\"; exit 3");
  options.pipe_stdio = true;
  Result<Child> child = spawn(options);
  ASSERT_TRUE(child.ok()) << child.error().text();
  ASSERT_EQ(::write(child->stdin_fd, "hello\n", 6), 6);
  EXPECT_EQ(read_all(child->stdout_fd), "got hello\n");
  const ExitStatus status = wait(child->pid);
  EXPECT_FALSE(status.signalled);
  EXPECT_EQ(status.code, 3);
  EXPECT_EQ(status.text(), "exited with 3");
  ::close(child->stdin_fd);
  ::close(child->stdout_fd);
}

TEST(Process, ClosingStdinEndsTheChild) {
  SpawnOptions options;
  options.argv = {"/bin/cat"};
  options.pipe_stdio = true;
  Result<Child> child = spawn(options);
  ASSERT_TRUE(child.ok());
  EXPECT_FALSE(try_wait(child->pid).has_value());
  ::close(child->stdin_fd);  // no other process holds the write end
  EXPECT_EQ(read_all(child->stdout_fd), "");
  EXPECT_EQ(wait(child->pid).code, 0);
  ::close(child->stdout_fd);
}

TEST(Process, AFailedExecIsReportedWithItsReason) {
  SpawnOptions options;
  options.argv = {"/nonexistent/program"};
  Result<Child> child = spawn(options);
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.error().code, Code::kNotFound);
  EXPECT_NE(child.error().message.find("/nonexistent/program"), std::string::npos);
  options.argv = {"/etc/passwd"};
  EXPECT_EQ(spawn(options).error().code, Code::kIo);
  options.argv = {};
  EXPECT_EQ(spawn(options).error().code, Code::kInvalid);
}

TEST(Process, InheritsNothingButStandardDescriptors) {
  constexpr int kLeak = 42;
  const int null = ::open("/dev/null", O_RDONLY);
  ASSERT_EQ(::dup2(null, kLeak), kLeak);  // not close-on-exec
  SpawnOptions options = shell("for fd in 0 1 2 3 42; do [ -e /proc/$$/fd/$fd ] && echo $fd; done");
  options.pipe_stdio = true;
  Result<Child> child = spawn(options);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(read_all(child->stdout_fd), "0\n1\n2\n");
  wait(child->pid);
  for (int fd : {null, kLeak, child->stdin_fd, child->stdout_fd}) ::close(fd);
}

TEST(Process, EnvironmentIsAddedAndReplaced) {
  ::setenv("WEFT_TEST_KEPT", "kept", 1);
  ::setenv("WEFT_TEST_REPLACED", "old", 1);
  SpawnOptions options = shell("echo $WEFT_TEST_KEPT $WEFT_TEST_REPLACED");
  options.environment = {"WEFT_TEST_REPLACED=new"};
  options.pipe_stdio = true;
  Result<Child> child = spawn(options);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(read_all(child->stdout_fd), "kept new\n");
  wait(child->pid);
  ::close(child->stdin_fd);
  ::close(child->stdout_fd);
}

TEST(Process, StandardErrorIsAppendedToAFile) {
  const Path log = Path(::testing::TempDir()) / fmt::format("process_test_{}.log", ::getpid());
  for (const char* word : {"one", "two"}) {
    SpawnOptions options = shell(fmt::format("echo {} >&2", word));
    options.stderr_file = log;
    Result<Child> child = spawn(options);
    ASSERT_TRUE(child.ok());
    wait(child->pid);
  }
  EXPECT_EQ(*read_file(log), "one\ntwo\n");
  ASSERT_TRUE(os::remove_all(log).ok());
}

TEST(Process, SignalsAreSeenInTheStatus) {
  SpawnOptions options = shell("exec cat");
  options.pipe_stdio = true;
  sigset_t blocked, old;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &old);  // must not be inherited
  Result<Child> child = spawn(options);
  ::pthread_sigmask(SIG_SETMASK, &old, nullptr);
  ASSERT_TRUE(child.ok());
  EXPECT_NE(process_identity(child->pid), "");
  send_signal(child->pid, SIGTERM);
  EXPECT_EQ(read_all(child->stdout_fd), "");
  const ExitStatus status = wait(child->pid);
  EXPECT_TRUE(status.signalled);
  EXPECT_EQ(status.text(), "killed by signal 15");
  EXPECT_EQ(process_identity(child->pid), "");
  EXPECT_EQ(try_wait(child->pid)->code, -1);
  send_signal(child->pid, SIGTERM);  // gone: nothing happens
  ::close(child->stdin_fd);
  ::close(child->stdout_fd);
}

// A middle process starts a grandchild and is killed: the grandchild's end of the pipe closes.
TEST(Process, DiesWithItsParent) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t middle = ::fork();
  ASSERT_GE(middle, 0);
  if (middle == 0) {
    ::close(ends[0]);
    ::dup2(ends[1], 1);
    ::close(ends[1]);
    SpawnOptions options;
    options.argv = {"/bin/sleep", "1000"};
    Result<Child> child = spawn(options);
    const char mark = child.ok() ? 'x' : '!';
    [[maybe_unused]] const ssize_t ignored = ::write(1, &mark, 1);
    ::pause();
    ::_exit(0);
  }
  ::close(ends[1]);
  char mark = 0;
  ASSERT_EQ(::read(ends[0], &mark, 1), 1);
  ASSERT_EQ(mark, 'x');
  send_signal(middle, SIGKILL);
  wait(middle);
  EXPECT_EQ(read_all(ends[0]), "");  // returns only when the sleeper is gone as well
  ::close(ends[0]);
}

TEST(Process, ADetachedChildLeadsItsOwnSession) {
  const Path log = Path(::testing::TempDir()) / fmt::format("session_test_{}.log", ::getpid());
  SpawnOptions options = shell("cut -d' ' -f1,6 /proc/$$/stat; cat");
  options.new_session = true;
  options.die_with_parent = false;
  options.stderr_file = log;
  Result<Child> child = spawn(options);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(wait(child->pid).code, 0);  // cat ends at once: its input is /dev/null
  EXPECT_EQ(*read_file(log), fmt::format("{0} {0}\n", child->pid));
  ASSERT_TRUE(os::remove_all(log).ok());
}

TEST(Process, OutputIsReadWithinBounds) {
  const auto run = [](const std::string& script, size_t max_bytes = 1000, int ms = 20000) {
    return output_of({"/bin/sh", "-c", script}, max_bytes, ms);
  };
  EXPECT_EQ(run("echo one; echo two; exit 3").value(), "one\ntwo\n");
  EXPECT_EQ(run("exit 0").value(), "");
  EXPECT_EQ(run("cat").value(), "") << "it has no input";
  EXPECT_EQ(run("exec yes").error().code, Code::kTooLarge);
  EXPECT_EQ(run("echo begun; exec sleep 1000", 1000, 50).error().code, Code::kTimeout);
  EXPECT_EQ(run("echo all; exec sleep 1000 >&-", 1000, 50).value(), "all\n");
  EXPECT_EQ(output_of({"/nonexistent"}, 10, 10).error().code, Code::kNotFound);
}

TEST(Process, StopSignalsMayBeTheParentsBusiness) {
  SpawnOptions options = shell("kill -TERM $$; kill -INT $$; kill -HUP $$; exit 4");
  EXPECT_EQ(wait(spawn(options)->pid).code, SIGTERM);
  options.ignore_stop_signals = true;
  const ExitStatus status = wait(spawn(options)->pid);
  EXPECT_FALSE(status.signalled);
  EXPECT_EQ(status.code, 4);
}

TEST(Process, TheHostIsDescribed) {
  EXPECT_GE(hardware_cores(), 1);
  EXPECT_GT(total_memory_bytes(), uint64_t{1} << 20);
  EXPECT_FALSE(host_name().empty());
  EXPECT_TRUE(std::filesystem::is_directory(program_dir()));
}

TEST(Memory, FilesThatAContainerHasReadAreNoUse) {
  const char* stat =
      "anon 1000\nfile 900\nkernel_stack 16\nshmem 200\ninactive_anon 300\nactive_anon 900\n"
      "inactive_file 400\nactive_file 300\nslab_reclaimable 50\nslab_unreclaimable 7\n";
  EXPECT_EQ(reclaimable_bytes(stat), 750u);
  EXPECT_EQ(reclaimable_bytes(""), 0u);
  EXPECT_EQ(reclaimable_bytes("inactive_file"), 0u);
  EXPECT_GT(available_memory_bytes(), 0u);
  EXPECT_LE(available_memory_bytes(), total_memory_bytes());
}

}  // namespace
}  // namespace weft::os
