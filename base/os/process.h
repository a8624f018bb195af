// Child processes. A child gets a pipe on standard input and output, dies with its parent
// (PR_SET_PDEATHSIG on Linux) and inherits no other descriptor. Not thread-safe; the owner of a
// Child calls it from one thread.
#pragma once

#include <sys/types.h>
#include <cstdint>

#include <optional>
#include <string>
#include <vector>

#include "base/os/file.h"

namespace weft::os {

struct SpawnOptions {
  std::vector<std::string> argv;         // argv[0] is the program's path
  std::vector<std::string> environment;  // "NAME=value", added to the parent's
  Path stderr_file;                      // appended to; empty: the parent's
  bool pipe_stdio = false;               // give the child pipes on 0 and 1
  bool die_with_parent = true;
  bool new_session = false;          // detached background program (weft up)
  bool ignore_stop_signals = false;  // SIGTERM, SIGINT, SIGHUP are the parent's business
};

struct ExitStatus {
  bool signalled = false;
  int code = 0;              // exit code or signal number
  std::string text() const;  // "exited with 3", "killed by signal 9"
};

struct Child {
  pid_t pid = -1;
  int stdin_fd = -1;   // write here; close-on-exec, blocking; owned by the caller
  int stdout_fd = -1;  // read here
};

Result<Child> spawn(const SpawnOptions& options);
// Runs a program without input and gives what it wrote to standard output until it closed that.
// Blocks for timeout_ms and a second at most, even where the program cannot be killed. kTimeout:
// its output had no end by then; kTooLarge: it wrote more than max_bytes. Its exit code is not
// looked at.
Result<std::string> output_of(const std::vector<std::string>& argv, size_t max_bytes,
                              int timeout_ms);
// Reaps without blocking; nullopt while it runs.
std::optional<ExitStatus> try_wait(pid_t pid);
// Blocks until the child has ended.
ExitStatus wait(pid_t pid);
// Blocks until the child has ended and leaves it unreaped: its pid stays its own.
void wait_unreaped(pid_t pid);
void send_signal(pid_t pid, int signal);  // a pid already gone is fine

// Becomes another program; returns only when that fails.
Error replace_program(const std::vector<std::string>& argv);
bool stdout_is_terminal();

// The folder of the running program, where its sister programs stand.
Path program_dir();
int hardware_cores();  // CPUs this process may run on
uint64_t total_memory_bytes();
uint64_t available_memory_bytes();  // without making others swap; 0: unknown
// Of a cgroup's usage, by its file memory.stat.
uint64_t reclaimable_bytes(std::string_view cgroup_memory_stat);
std::string processor_name();  // "Intel(R) Xeon(R) ..."; the architecture where nobody tells
std::string host_name();

}  // namespace weft::os
