#include "cli/local/processes.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/os/process.h"
#include "base/os/process_identity.h"

namespace weft::cli {
namespace {

using nlohmann::json;
using Seconds = std::chrono::steady_clock;

bool any_running(const std::vector<LocalProcess>& processes) {
  return std::any_of(processes.begin(), processes.end(),
                     [](const LocalProcess& p) { return p.running(); });
}

void wait_until_gone(const std::vector<LocalProcess>& processes, int timeout_ms) {
  const auto deadline = Seconds::now() + std::chrono::milliseconds(timeout_ms);
  while (any_running(processes) && Seconds::now() < deadline) {
    for (const LocalProcess& process : processes) os::try_wait(process.pid);  // if it is our child
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

bool LocalProcess::running() const {
  return pid > 0 && !identity.empty() && os::process_identity(pid) == identity;
}

Result<LocalProcess> start_background(const std::string& role, std::vector<std::string> argv,
                                      const os::Path& log_file) {
  os::SpawnOptions options;
  options.argv = std::move(argv);
  options.stderr_file = log_file;
  options.die_with_parent = false;
  options.new_session = true;
  WEFT_TRY(os::Child child, os::spawn(options));
  return LocalProcess{role, child.pid, os::process_identity(child.pid)};
}

void end_processes(const std::vector<LocalProcess>& processes, int timeout_ms) {
  std::vector<LocalProcess> peers, brokers;
  for (const LocalProcess& process : processes) {
    (process.role == "broker" ? brokers : peers).push_back(process);
  }
  for (const auto* group : {&peers, &brokers}) {
    for (const LocalProcess& process : *group) {
      if (process.running()) os::send_signal(process.pid, SIGINT);
    }
    wait_until_gone(*group, timeout_ms);
    for (const LocalProcess& process : *group) {
      if (process.running()) os::send_signal(process.pid, SIGKILL);
    }
    wait_until_gone(*group, timeout_ms);
  }
}

Status save_processes(const os::Path& dir, const std::vector<LocalProcess>& processes) {
  json list = json::array();
  for (const LocalProcess& process : processes) {
    list.push_back({{"role", process.role}, {"pid", process.pid}, {"identity", process.identity}});
  }
  return os::write_file_atomic(dir / "cluster.json", json{{"processes", list}}.dump(2) + "\n");
}

Result<std::vector<LocalProcess>> load_processes(const os::Path& dir) {
  WEFT_TRY(std::string text, os::read_file(dir / "cluster.json", 1 << 20));
  const json parsed = json::parse(text, nullptr, false);
  std::vector<LocalProcess> processes;
  try {
    for (const json& entry : parsed.at("processes")) {
      processes.push_back({entry.at("role").get<std::string>(), entry.at("pid").get<pid_t>(),
                           entry.at("identity").get<std::string>()});
    }
  } catch (const json::exception& error) {
    return make_error(
        Code::kCorrupt,
        fmt::format("{} is damaged: {}", (dir / "cluster.json").string(), error.what()),
        "end the processes by hand and remove the folder");
  }
  return processes;
}

}  // namespace weft::cli
