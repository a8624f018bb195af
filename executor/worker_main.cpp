// weft-worker: one stage of one job, a child of weftd that holds libtorch and the card.
// Standard output carries events only; logs go to standard error.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/os/file.h"
#include "base/os/line_pipe.h"
#include "base/os/own_process.h"
#include "base/version.h"
#include "executor/check.h"
#include "executor/measure.h"
#include "executor/prepare.h"
#include "executor/worker.h"
#include "executor/worker_jail.h"

namespace weft::executor {
namespace {

constexpr size_t kMaxSpecBytes = size_t{64} << 20;
constexpr const char* kUsage =
    "usage: weft-worker run [--spec FILE]   an assignment; without FILE its JSON is the first\n"
    "                                       line of standard input\n"
    "                       [--wait]        for tests: computes one micro-batch some times, then\n"
    "                                       waits as long instead of computing; nothing is "
    "trained\n"
    "       weft-worker check ...           see weft model check\n"
    "       weft-worker measure [--device D] [--threads N] [--seconds S]\n"
    "                                       how fast operators run here, as one line of JSON\n"
    "       weft-worker prepare MODEL.pt2 --out DIR [--stages K] [--eval-model F]\n"
    "                                       for tests: graphs, plan, weights\n"
    "       weft-worker --version\n"
    "--jail auto|required|off   (any command) what is given up before a stranger's file is read:\n"
    "                           see docs/security.md; required: nothing runs without all of it\n";

int usage(const std::string& problem) {
  fmt::print(stderr, "weft-worker: {}\n{}", problem, kUsage);
  return kExitUsage;
}

Result<job::WorkerSpec> read_spec(const std::string& path, os::LineReader& input) {
  Result<std::string> text =
      path.empty() ? input.next(kMaxSpecBytes) : os::read_file(path, kMaxSpecBytes);
  if (!text) return std::move(text).error().within("reading the assignment");
  try {
    auto spec = job::worker_spec_from_json(nlohmann::json::parse(*text));
    if (!spec) return std::move(spec).error().within("the assignment");
    return spec;
  } catch (const std::exception& error) {
    return make_error(Code::kInvalid, fmt::format("the assignment is not JSON: {}", error.what()));
  }
}

int run_command(int argc, char** argv, os::JailMode jail) {
  std::string path;
  Compute compute = Compute::kReal;
  for (int i = 2; i < argc; ++i) {
    if (std::strcmp(argv[i], "--spec") == 0 && i + 1 < argc) {
      path = argv[++i];
    } else if (std::strcmp(argv[i], "--wait") == 0) {
      compute = Compute::kWaited;
    } else {
      return usage(fmt::format("unknown argument {}", argv[i]));
    }
  }
  EventWriter writer(1);
  const EventSink events = [&writer](const job::WorkerEvent& event) { writer.write(event); };
  os::LineReader input(0);
  auto spec = read_spec(path, input);
  if (!spec) {
    log_error("{}", spec.error().text());
    events(failure_event(spec.error(), 0));
    return kExitUsage;
  }
  if (auto jailed = enter_worker_jail(jail, *spec); !jailed) {
    log_error("{}", jailed.error().text());
    events(failure_event(jailed.error(), 0));
    return kExitFailed;
  }
  // A terminal's ^C and a service manager's stop reach the whole group. The daemon decides when its
  // worker ends, by a line or by the end of the pipe.
  os::ignore_stop_signals();
  WorkerControl control;
  int code = kExitFailed;
  {
    const StdinThread reader(control, input, os::exit_now);
    const AliveThread alive(control, events);
    code = run_worker(*spec, compute, control, events);
  }
  return code;
}

// Takes --jail MODE out of the arguments; nullopt: not a mode.
std::optional<os::JailMode> take_jail_mode(std::vector<char*>& arguments) {
  for (size_t i = 1; i + 1 < arguments.size(); ++i) {
    if (std::strcmp(arguments[i], "--jail") != 0) continue;
    const auto mode = os::jail_mode_from_name(arguments[i + 1]);
    const auto at = arguments.begin() + static_cast<ptrdiff_t>(i);
    arguments.erase(at, at + 2);
    return mode;
  }
  return os::JailMode::kAuto;
}

int main_command(std::vector<char*> arguments) {
  log_init("weft-worker", LogLevel::kInfo, false);
  os::harden_process();
  os::ignore_broken_pipes();
  const auto jail = take_jail_mode(arguments);
  if (!jail) return usage("--jail takes auto, required or off");
  const int argc = static_cast<int>(arguments.size());
  char** argv = arguments.data();
  if (argc < 2) return usage("a command is missing");
  const std::string command = argv[1];
  if (command == "--version") {
    fmt::print("weft-worker {}\n", kVersion);
    return 0;
  }
  if (command == "--help" || command == "-h") {
    fmt::print("{}", kUsage);
    return 0;
  }
  if (command == "run") return run_command(argc, argv, *jail);
  if (command == "check") return check_command(argc - 1, argv + 1, *jail);
  if (command == "measure") return measure_command(argc - 1, argv + 1, *jail);
  if (command == "prepare") return prepare_command(argc, argv, *jail);
  return usage(fmt::format("unknown command {}", command));
}

}  // namespace
}  // namespace weft::executor

int main(int argc, char** argv) {
  const int code = weft::executor::main_command({argv, argv + argc});
  std::fflush(nullptr);
  // libtorch's and CUDA's static destructors may hang; nothing is left that needs them.
  weft::os::exit_now(code);
}
