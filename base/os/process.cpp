#include "base/os/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "base/os/fd.h"

extern char** environ;

namespace weft::os {
namespace {

constexpr int kFirstSpareFd = 10;  // descriptors made here stay clear of 0..3 of the child

Error os_error(const std::string& what) {
  const int code = errno;
  return make_error(Code::kIo, fmt::format("cannot {}: {}", what, std::strerror(code)));
}

// The parent may run with 0, 1 or 2 closed; a pipe that landed there would be lost in the child.
Result<Fd> moved_up(Fd fd) {
  const int copy = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, kFirstSpareFd);
  if (copy < 0) return os_error("duplicate a descriptor");
  return Fd(copy);
}

struct Pipe {
  Fd read, write;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return os_error("create a pipe");
  Fd read(ends[0]), write(ends[1]);
  Pipe pipe;
  WEFT_TRY(pipe.read, moved_up(std::move(read)));
  WEFT_TRY(pipe.write, moved_up(std::move(write)));
  return pipe;
}

Result<Fd> open_high(const Path& path, int flags) {
  Fd fd(::open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (fd.get() < 0) return os_error(fmt::format("open {}", path.string()));
  return moved_up(std::move(fd));
}

// All the child needs, prepared before fork: between fork and exec only async-signal-safe calls
// are allowed, so nothing there may allocate.
struct ChildPlan {
  std::vector<char*> argv;
  std::vector<char*> environment;
  std::vector<std::string> environment_text;
  int in = -1, out = -1, err = -1;  // become 0, 1, 2 unless negative
  int report = -1;                  // errno of a failed step goes here
  pid_t parent = 0;
  bool die_with_parent = true;
  bool new_session = false;
  bool ignore_stop_signals = false;
};

[[noreturn]] void child_fail(int report) {
  const int code = errno;
  [[maybe_unused]] const ssize_t ignored = ::write(report, &code, sizeof code);
  ::_exit(127);
}

void reset_signals(bool ignore_stop_signals) {
  // A parent that blocks or ignores signals (asio, SIGPIPE) must not bequeath that.
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGUSR1, SIGUSR2}) {
    ::sigaction(number, &action, nullptr);
  }
  action.sa_handler = SIG_IGN;  // kept over exec
  for (int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (ignore_stop_signals) ::sigaction(number, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

void close_from(int first) {
  if (::close_range(static_cast<unsigned>(first), ~0U, 0) == 0) return;
  const long limit = ::sysconf(_SC_OPEN_MAX);  // a kernel before 5.9
  for (int fd = first; fd < (limit > 0 ? limit : 1024); ++fd) ::close(fd);
}

[[noreturn]] void run_child(const ChildPlan& plan) {
  if (plan.die_with_parent) {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) child_fail(plan.report);
    // The parent may have died before prctl: then no signal will ever come.
    if (::getppid() != plan.parent) ::_exit(127);
  }
  if (plan.new_session && ::setsid() < 0) child_fail(plan.report);
  if (plan.in >= 0 && ::dup2(plan.in, 0) < 0) child_fail(plan.report);
  if (plan.out >= 0 && ::dup2(plan.out, 1) < 0) child_fail(plan.report);
  if (plan.err >= 0 && ::dup2(plan.err, 2) < 0) child_fail(plan.report);
  if (::dup3(plan.report, 3, O_CLOEXEC) < 0) child_fail(plan.report);
  close_from(4);
  reset_signals(plan.ignore_stop_signals);
  ::execve(plan.argv[0], plan.argv.data(), plan.environment.data());
  child_fail(3);
}

// The parent's environment with the additions put over equal names.
void fill_environment(const SpawnOptions& options, ChildPlan& plan) {
  const auto name_of = [](std::string_view entry) { return entry.substr(0, entry.find('=')); };
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const bool replaced =
        std::any_of(options.environment.begin(), options.environment.end(),
                    [&](const std::string& added) { return name_of(added) == name_of(*entry); });
    if (!replaced) plan.environment_text.emplace_back(*entry);
  }
  plan.environment_text.insert(plan.environment_text.end(), options.environment.begin(),
                               options.environment.end());
  for (std::string& entry : plan.environment_text) plan.environment.push_back(entry.data());
  plan.environment.push_back(nullptr);
}

// The errno of the child's failed exec; 0 when the pipe closed by itself, that is, exec worked.
int read_report(int fd) {
  int code = 0;
  for (;;) {
    const ssize_t got = ::read(fd, &code, sizeof code);
    if (got < 0 && errno == EINTR) continue;
    return got == static_cast<ssize_t>(sizeof code) ? code : 0;
  }
}

ExitStatus decode(int status) {
  if (WIFSIGNALED(status)) return {true, WTERMSIG(status)};
  return {false, WEXITSTATUS(status)};
}

std::optional<uint64_t> read_number(const char* path) {
  Result<std::string> text = read_file(path, 4096);
  if (!text.ok()) return std::nullopt;
  char* end = nullptr;
  const uint64_t value = std::strtoull(text->c_str(), &end, 10);
  if (end == text->c_str()) return std::nullopt;  // "max"
  return value;
}

}  // namespace

std::string ExitStatus::text() const {
  if (signalled) return fmt::format("killed by signal {}", code);
  if (code < 0) return "ended, status unknown";
  return fmt::format("exited with {}", code);
}

Result<Child> spawn(const SpawnOptions& options) {
  if (options.argv.empty() || options.argv[0].empty()) {
    return make_error(Code::kInvalid, "cannot start a program without a name");
  }
  std::vector<std::string> argv = options.argv;
  ChildPlan plan;
  for (std::string& argument : argv) plan.argv.push_back(argument.data());
  plan.argv.push_back(nullptr);
  fill_environment(options, plan);
  plan.die_with_parent = options.die_with_parent;
  plan.new_session = options.new_session;
  plan.ignore_stop_signals = options.ignore_stop_signals;
  plan.parent = ::getpid();

  Pipe in, out, report;
  Fd null, log;
  WEFT_TRY(report, make_pipe());
  if (!options.stderr_file.empty()) {
    WEFT_TRY(log, open_high(options.stderr_file, O_WRONLY | O_CREAT | O_APPEND));
    plan.err = log.get();
  }
  if (options.pipe_stdio) {
    WEFT_TRY(in, make_pipe());
    WEFT_TRY(out, make_pipe());
    plan.in = in.read.get();
    plan.out = out.write.get();
  } else if (options.new_session) {
    WEFT_TRY(null, open_high("/dev/null", O_RDWR));
    plan.in = null.get();
    plan.out = log.get() >= 0 ? log.get() : null.get();
  }
  plan.report = report.write.get();

  const pid_t pid = ::fork();
  if (pid < 0) return os_error(fmt::format("start {}", argv[0]));
  if (pid == 0) run_child(plan);
  report.write.reset(-1);
  if (const int code = read_report(report.read.get()); code != 0) {
    wait(pid);
    return make_error(code == ENOENT ? Code::kNotFound : Code::kIo,
                      fmt::format("cannot start {}: {}", argv[0], std::strerror(code)));
  }
  return Child{pid, in.write.release(), out.read.release()};
}

namespace {

constexpr double kDyingSeconds = 1;
constexpr int kReapPollMs = 5;

bool reaped_by(pid_t pid, double end) {
  while (!try_wait(pid)) {
    if (monotonic_seconds() > end) return false;
    ::poll(nullptr, 0, kReapPollMs);
  }
  return true;
}

}  // namespace

Result<std::string> output_of(const std::vector<std::string>& argv, size_t max_bytes,
                              int timeout_ms) {
  SpawnOptions options;
  options.argv = argv;
  options.pipe_stdio = true;
  WEFT_TRY(const Child child, spawn(options));
  const Fd out(child.stdout_fd);
  Fd(child.stdin_fd).reset(-1);
  const double end = monotonic_seconds() + timeout_ms / 1000.0;
  Result<std::string> text = std::string();
  for (;;) {
    const double left = end - monotonic_seconds();
    pollfd ready{out.get(), POLLIN, 0};
    const int events = left > 0 ? ::poll(&ready, 1, static_cast<int>(left * 1000) + 1) : 0;
    if (events < 0 && errno == EINTR) continue;
    if (events <= 0) {
      text = make_error(Code::kTimeout,
                        fmt::format("{} did not end within {} ms", argv[0], timeout_ms));
      break;
    }
    std::array<char, 4096> block;
    const ssize_t got = ::read(out.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text->append(block.data(), static_cast<size_t>(got));
    if (text->size() > max_bytes) {
      text = make_error(Code::kTooLarge,
                        fmt::format("{} wrote more than {} bytes", argv[0], max_bytes));
      break;
    }
  }
  if (text.ok() && reaped_by(child.pid, end)) return text;
  send_signal(child.pid, SIGKILL);
  // One that hangs in the kernel (a broken driver) does not even die: it is left to itself.
  reaped_by(child.pid, monotonic_seconds() + kDyingSeconds);
  return text;
}

std::optional<ExitStatus> try_wait(pid_t pid) {
  int status = 0;
  const pid_t got = ::waitpid(pid, &status, WNOHANG);
  if (got == 0 || (got < 0 && errno == EINTR)) return std::nullopt;
  if (got < 0) return ExitStatus{false, -1};  // not our child, or reaped before
  return decode(status);
}

ExitStatus wait(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return {false, -1};
  }
  return decode(status);
}

void wait_unreaped(pid_t pid) {
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
}

void send_signal(pid_t pid, int signal) {
  if (pid > 0) ::kill(pid, signal);
}

Error replace_program(const std::vector<std::string>& argv) {
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execv(words[0], words.data());
  const int code = errno;
  return make_error(code == ENOENT ? Code::kNotFound : Code::kIo,
                    fmt::format("cannot run {}: {}", argv[0], std::strerror(code)));
}

bool stdout_is_terminal() {
  return ::isatty(STDOUT_FILENO) == 1;
}

Path program_dir() {
  std::error_code code;
  const Path self = std::filesystem::read_symlink("/proc/self/exe", code);
  return code ? Path(".") : self.parent_path();
}

int hardware_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = ::sched_getaffinity(0, sizeof set, &set) == 0
                  ? CPU_COUNT(&set)
                  : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  // A container's quota, "200000 100000" = two cores.
  if (Result<std::string> text = read_file("/sys/fs/cgroup/cpu.max", 4096); text.ok()) {
    char* rest = nullptr;
    const long quota = std::strtol(text->c_str(), &rest, 10);
    const long period = rest != text->c_str() ? std::strtol(rest, nullptr, 10) : 0;
    if (quota > 0 && period > 0) {
      cores = std::min(cores, static_cast<int>(std::min((quota + period - 1) / period, 4096L)));
    }
  }
  return std::max(cores, 1);
}

uint64_t total_memory_bytes() {
  struct sysinfo info {};
  uint64_t bytes = 0;
  if (::sysinfo(&info) == 0) bytes = static_cast<uint64_t>(info.totalram) * info.mem_unit;
  if (auto limit = read_number("/sys/fs/cgroup/memory.max"); limit && *limit > 0) {
    bytes = std::min(bytes, *limit);
  }
  return bytes;
}

// A container's usage counts the files it has read, which are given up for whoever needs memory.
uint64_t reclaimable_bytes(std::string_view cgroup_memory_stat) {
  uint64_t bytes = 0;
  while (!cgroup_memory_stat.empty()) {
    const size_t end = std::min(cgroup_memory_stat.find('\n'), cgroup_memory_stat.size());
    const std::string line(cgroup_memory_stat.substr(0, end));
    cgroup_memory_stat.remove_prefix(std::min(end + 1, cgroup_memory_stat.size()));
    for (const std::string_view key : {"inactive_file ", "active_file ", "slab_reclaimable "}) {
      if (line.starts_with(key)) bytes += std::strtoull(line.c_str() + key.size(), nullptr, 10);
    }
  }
  return bytes;
}

uint64_t available_memory_bytes() {
  uint64_t bytes = 0;
  if (auto text = read_file("/proc/meminfo", 65536); text.ok()) {
    const size_t at = text->find("MemAvailable:");
    if (at != std::string::npos) bytes = std::strtoull(text->c_str() + at + 13, nullptr, 10) << 10;
  }
  const auto limit = read_number("/sys/fs/cgroup/memory.max");
  const auto used = read_number("/sys/fs/cgroup/memory.current");
  if (limit && used && *limit > 0) {
    const auto stat = read_file("/sys/fs/cgroup/memory.stat", 65536);
    const uint64_t held = *used - std::min(*used, reclaimable_bytes(stat.ok() ? *stat : ""));
    bytes = std::min(bytes, *limit - std::min(*limit, held));
  }
  return bytes;
}

std::string processor_name() {
  constexpr std::string_view kKey = "model name";
  if (auto text = read_file("/proc/cpuinfo", size_t{4} << 20); text.ok()) {
    const size_t at = text->find(kKey), colon = at == std::string::npos ? at : text->find(": ", at);
    if (colon != std::string::npos) {
      return text->substr(colon + 2, text->find('\n', colon) - colon - 2);
    }
  }
  struct utsname names {};
  return ::uname(&names) == 0 ? names.machine : "unknown processor";
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

}  // namespace weft::os
