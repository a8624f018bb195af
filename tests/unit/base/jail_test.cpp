// A jail cannot be left: each test enters it in a child process and looks at what that may still
// do.
#include "base/os/jail.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "tests/support/sanitized.h"

namespace weft::os {
namespace {

constexpr int kNotHere = 200;  // the kernel does not offer what the test looks at

// 0, or the number of the first expectation (from 1) that did not hold.
int in_jail(const JailPolicy& policy, const char* needed,
            const std::function<std::vector<bool>()>& expectations) {
  const pid_t child = ::fork();
  if (child == 0) {
    const JailReport report = enter_jail(policy);
    for (const std::string& missing : report.not_applied) {
      if (missing.starts_with(needed)) ::_exit(kNotHere);
    }
    int number = 0;
    for (const bool held : expectations()) {
      ++number;
      if (!held) ::_exit(number);
    }
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

#define EXPECT_JAILED(...)                                           \
  if (const int failed = in_jail(__VA_ARGS__); failed == kNotHere) { \
    GTEST_SKIP() << "not offered by this kernel";                    \
  } else {                                                           \
    EXPECT_EQ(failed, 0) << "the expectation of that number";        \
  }

bool fails_with(int error, long result) {
  return result == -1 && errno == error;
}

int try_open(const Path& path, int flags) {
  return ::open(path.c_str(), flags | O_CLOEXEC, 0600);
}

struct Folders {
  Path root = *make_temporary_directory("weft-jail");
  Path inside = root / "work", outside = root / "home", readable = root / "model.pt2";
  JailPolicy policy = system_jail_policy();

  Folders() {
    std::filesystem::create_directories(inside);
    std::filesystem::create_directories(outside);
    std::ofstream(outside / "secret") << "key";
    std::ofstream(root / "model.pt2") << "model";
    policy.write.push_back(inside);
    policy.read.push_back(readable);
  }
  ~Folders() { (void)os::remove_all(root); }
};

TEST(Jail, FilesOutsideCannotBeOpenedWrittenOrListed) {
  const Folders at;
  EXPECT_JAILED(at.policy, "landlock", [&] {
    return std::vector<bool>{
        fails_with(EACCES, try_open(at.outside / "secret", O_RDONLY)),
        fails_with(EACCES, try_open(at.outside / "new", O_WRONLY | O_CREAT)),
        fails_with(EACCES, try_open(at.outside, O_RDONLY | O_DIRECTORY)),
        fails_with(EACCES, try_open(at.readable, O_WRONLY)),
        fails_with(EACCES, ::unlink((at.outside / "secret").c_str())),
        fails_with(EACCES, ::mkdir((at.outside / "d").c_str(), 0700)),
        fails_with(EACCES, try_open("/etc/passwd", O_RDONLY)),
        // EXDEV: refused as a rename across folders without the right to it.
        ::rename((at.outside / "secret").c_str(), (at.inside / "s").c_str()) == -1,
    };
  });
  EXPECT_TRUE(std::filesystem::exists(at.outside / "secret"));
}

TEST(Jail, TheWorkFolderAndNamedFilesStayUsable) {
  const Folders at;
  EXPECT_JAILED(at.policy, "landlock", [&] {
    const Path shard = at.inside / "sub" / "shard";
    std::vector<bool> held = {
        try_open(at.readable, O_RDONLY) >= 0,
        make_directories(at.inside / "sub").ok(),
        write_file_atomic(shard, std::string_view("weights")).ok(),
        read_file(shard).ok() && *read_file(shard) == "weights",
        map_file(at.readable).ok(),
        os::remove_all(at.inside / "sub").ok(),
        try_open("/dev/null", O_WRONLY) >= 0,
        try_open("/proc/self/maps", O_RDONLY) >= 0,
        try_open("/proc/self/exe", O_RDONLY) >= 0,
        !std::filesystem::is_empty("/dev"),
    };
    return held;
  });
}

TEST(Jail, NoOtherProgramsAndProcesses) {
  const Folders at;
  EXPECT_JAILED(at.policy, "seccomp", [&] {
    char* const arguments[] = {const_cast<char*>("/bin/true"), nullptr};
    char* const environment[] = {nullptr};
    return std::vector<bool>{
        fails_with(EPERM, ::execve("/bin/true", arguments, environment)),
        fails_with(EPERM,
                   ::syscall(__NR_execveat, AT_FDCWD, "/bin/true", arguments, environment, 0)),
        fails_with(EPERM, ::fork()),
        fails_with(EPERM, ::ptrace(PTRACE_ATTACH, ::getppid(), nullptr, nullptr)),
        fails_with(EPERM, ::kill(::getppid(), 0)),
        fails_with(EPERM, ::kill(-1, 0)),
        fails_with(EPERM, ::syscall(__NR_tgkill, ::getppid(), ::getppid(), 0)),
        ::kill(::getpid(), 0) == 0,
    };
  });
}

TEST(Jail, NothingOfTheKernelAndTheMachine) {
  const Folders at;
  EXPECT_JAILED(at.policy, "seccomp", [&] {
    char letter = 'x';
    return std::vector<bool>{
        fails_with(EPERM, ::syscall(__NR_mount, "none", "/mnt", "tmpfs", 0, nullptr)),
        fails_with(EPERM, ::syscall(__NR_unshare, 0)),
        fails_with(EPERM, ::syscall(__NR_bpf, 0, nullptr, 0)),
        fails_with(EPERM, ::syscall(__NR_keyctl, 0, 0, 0, 0, 0)),
        fails_with(EPERM, ::syscall(__NR_perf_event_open, nullptr, 0, 0, 0, 0)),
        fails_with(EPERM, ::syscall(__NR_init_module, nullptr, 0, "")),
        fails_with(EPERM, ::syscall(425, 1, nullptr)),  // io_uring_setup
        fails_with(EPERM, ::ioctl(0, TIOCSTI, &letter)),
        fails_with(EAFNOSUPPORT, ::socket(AF_PACKET, SOCK_RAW, 0)),
        fails_with(EPERM, ::syscall(__NR_sethostname, "x", 1)),
    };
  });
}

TEST(Jail, ThreadsMemoryAndSocketsStay) {
  const Folders at;
  EXPECT_JAILED(at.policy, "seccomp", [&] {
    int ran = 0;
    std::thread([&ran] { ran = 1; }).join();
    rlimit core{}, files{};
    ::getrlimit(RLIMIT_CORE, &core);
    ::getrlimit(RLIMIT_NOFILE, &files);
    void* code = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return std::vector<bool>{
        ran == 1,
        code != MAP_FAILED,  // kernels compiled while running need it
        ::socket(AF_INET, SOCK_STREAM, 0) >= 0,
        ::socket(AF_INET6, SOCK_STREAM, 0) >= 0 || errno == EAFNOSUPPORT,
        ::socket(AF_UNIX, SOCK_STREAM, 0) >= 0,
        core.rlim_max == 0,
        files.rlim_max <= at.policy.max_open_files,
    };
  });
}

TEST(Jail, AnAllocationBeyondTheLimitFailsAtOnce) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory is beyond any limit";
  Folders at;
  at.policy.max_data_bytes = uint64_t{1} << 30;
  EXPECT_JAILED(at.policy, "limits", [&] {
    const auto map = [](size_t bytes) {
      return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    };
    return std::vector<bool>{map(size_t{2} << 30) == MAP_FAILED, errno == ENOMEM,
                             map(size_t{1} << 20) != MAP_FAILED};
  });
}

// A limit below what the process has reserved would make its next allocation fail: told instead.
TEST(Jail, AProcessThatHasReservedMoreThanTheLimitGoesOn) {
  const Folders at;
  EXPECT_JAILED(at.policy, "no_new_privs", [&] {
    const auto map = [](size_t bytes, int flags) {
      return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1,
                    0);
    };
    JailPolicy limited = at.policy;
    limited.max_data_bytes = uint64_t{1} << 30;
    const bool reserved = map(size_t{2} << 30, MAP_NORESERVE) != MAP_FAILED;
    const JailReport report = enter_jail(limited);
    return std::vector<bool>{
        reserved,
        report.text().find("limit of memory: 1 GiB, of which") != std::string::npos,
        map(size_t{1} << 20, 0) != MAP_FAILED,
    };
  });
}

// Signals that end a process by itself still do: abort() is how an assertion ends.
TEST(Jail, AbortStillEndsIt) {
  const Folders at;
  EXPECT_EQ(in_jail(at.policy, "-",
                    []() -> std::vector<bool> {
                      ::signal(SIGABRT, SIG_DFL);
                      std::abort();
                    }),
            1000 + SIGABRT);
}

TEST(Jail, AThreadThatRanBeforeIsReported) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::thread sleeper([] { ::pause(); });
    // A sanitizer runs threads of its own.
    const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
    const auto others = std::distance(begin(tasks), end(tasks)) - 1;
    const JailReport report = enter_jail(system_jail_policy());
    const std::string expected = fmt::format("{} threads that ran before", others);
    const bool told =
        report.text().find(expected) != std::string::npos && (kSanitized || others == 1);
    ::_exit(told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Jail, ModesAreReadAndOffDoesNothing) {
  EXPECT_EQ(jail_mode_from_name("auto"), JailMode::kAuto);
  EXPECT_EQ(jail_mode_from_name("required"), JailMode::kRequired);
  EXPECT_EQ(jail_mode_from_name("off"), JailMode::kOff);
  EXPECT_FALSE(jail_mode_from_name("on").has_value());
  EXPECT_TRUE(enter_jail(JailMode::kOff, {}).ok());
  const int fd = try_open("/etc/passwd", O_RDONLY);
  EXPECT_GE(fd, 0);
  ::close(fd);
}

TEST(Jail, TheReportNamesWhatIsMissing) {
  JailReport report;
  report.applied = {"no_new_privs", "limits"};
  EXPECT_EQ(report.text(), "jail: no_new_privs, limits; not applied: nothing");
  report.not_applied = {"landlock: the kernel has no Landlock"};
  EXPECT_EQ(report.text(),
            "jail: no_new_privs, limits; not applied: landlock: the kernel has no Landlock");
  EXPECT_FALSE(report.complete());
}

TEST(Jail, RequiredRefusesWhatIsIncompleteAutoGoesOn) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::thread sleeper([] { ::pause(); });  // one thread too many: never complete
    const Status required = enter_jail(JailMode::kRequired, system_jail_policy());
    const bool refused = !required.ok() && required.error().code == Code::kDenied &&
                         required.error().message.find("not applied") != std::string::npos;
    const bool goes_on = enter_jail(JailMode::kAuto, system_jail_policy()).ok();
    ::_exit(refused ? goes_on ? 0 : 2 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace weft::os
