#include "cli/local/local_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/os/process.h"
#include "cli/api_client.h"
#include "cli/local/processes.h"

namespace weft::cli {
namespace {

using nlohmann::json;

constexpr int kBrokerStartMs = 30000;
constexpr int kPeersStartMs = 60000;
constexpr int kEndMs = 8000;

Error died(const LocalProcess& process, const os::Path& log) {
  return make_error(Code::kUnavailable, fmt::format("{} ended while starting", process.role),
                    "see " + log.string());
}

// Calls probe every 50 ms until it gives true, an error, or the time is over.
Status wait_until(int timeout_ms, const std::string& what,
                  const std::function<Result<bool>()>& probe) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    WEFT_TRY(bool done, probe());
    if (done) return {};
    if (std::chrono::steady_clock::now() > deadline) {
      return make_error(Code::kTimeout, fmt::format("{} took longer than {} ms", what, timeout_ms));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

class Starter {
 public:
  Starter(const LocalOptions& options, os::Path dir) : options_(options), dir_(std::move(dir)) {}

  Result<LocalCluster> start() {
    WEFT_TRY_STATUS(os::make_directories(dir_, 0700));
    WEFT_TRY_STATUS(start_broker());
    WEFT_TRY_STATUS(invite());
    WEFT_TRY_STATUS(start_peers());
    WEFT_TRY_STATUS(wait_for_peers());
    WEFT_TRY_STATUS(remember_context(kLocalContext, cluster_.context));
    return cluster_;
  }

  void abandon() { end_processes(processes_, kEndMs); }

 private:
  Status add(Result<LocalProcess> process) {
    if (!process.ok()) return process.error();
    processes_.push_back(std::move(*process));
    return save_processes(dir_, processes_);
  }

  Status start_broker() {
    const os::Path state = dir_ / "broker", log = dir_ / "broker.log";
    WEFT_TRY_STATUS(add(start_background(
        "broker",
        {(os::program_dir() / "weft-broker").string(), "run", "--state-dir", state.string(),
         "--http-host", options_.host, "--http-port", "0", "--control-host", options_.host,
         "--control-port", "0", "--advertise-host", options_.host},
        log)));
    WEFT_TRY_STATUS(wait_until(kBrokerStartMs, "starting the broker", [&]() -> Result<bool> {
      if (auto text = os::read_file(state / "broker.json", 65536); text.ok()) {
        return read_broker(*text, state);
      }
      if (!processes_.back().running()) return died(processes_.back(), log);
      return false;
    }));
    return {};
  }

  Result<bool> read_broker(const std::string& text, const os::Path& state) {
    const json parsed = json::parse(text, nullptr, false);
    if (!parsed.is_object()) return false;
    cluster_.context.host = options_.host;
    cluster_.context.port = parsed.value("http_port", uint16_t{0});
    cluster_.context.ca_fingerprint = parsed.value("ca_fingerprint", std::string());
    WEFT_TRY(cluster_.context.token, os::read_file(state / "admin.token", 4096));
    while (cluster_.context.token.ends_with('\n')) cluster_.context.token.pop_back();
    return true;
  }

  // One address for our own peers, and for further machines while it lasts.
  Status invite() {
    constexpr int kSpareUses = 100;
    ApiClient client(cluster_.context);
    WEFT_TRY(json answer, client.call("POST", "/api/v1/invites",
                                      {{"ttl_s", 86400}, {"uses", options_.peers + kSpareUses}}));
    cluster_.join_address = answer.value("address", "");
    return {};
  }

  Status start_peers() {
    const int threads = options_.threads > 0
                            ? options_.threads
                            : std::max(1, os::hardware_cores() / std::max(1, options_.peers));
    // The token in the address is worth a place in the cluster: not for everyone's `ps`.
    const os::Path address = dir_ / "join-address";
    WEFT_TRY_STATUS(os::write_file_atomic(address, cluster_.join_address + "\n", 0600));
    for (int i = 0; i < options_.peers; ++i) {
      const std::string role = fmt::format("peer-{}", i);
      WEFT_TRY_STATUS(add(start_background(
          role,
          {(os::program_dir() / "weftd").string(), "join", "--address-file", address.string(),
           "--state-dir", (dir_ / role).string(), "--name", role, "--listen-host", options_.host,
           "--advertise-host", options_.host, "--threads", std::to_string(threads), "--device",
           options_.device, "--profile-dir", (dir_ / "profiles").string()},
          dir_ / (role + ".log"))));
    }
    return {};
  }

  Status wait_for_peers() {
    ApiClient client(cluster_.context);
    return wait_until(kPeersStartMs, "joining of the peers", [&]() -> Result<bool> {
      for (const LocalProcess& process : processes_) {
        if (!process.running()) return died(process, dir_ / (process.role + ".log"));
      }
      WEFT_TRY(json answer, client.get("/api/v1/peers"));
      cluster_.peers.clear();
      for (const json& peer : answer.at("peers")) {
        if (peer.value("state", "") == "idle") cluster_.peers.push_back(peer.value("id", ""));
      }
      return static_cast<int>(cluster_.peers.size()) >= options_.peers;
    });
  }

  const LocalOptions& options_;
  os::Path dir_;
  LocalCluster cluster_;
  std::vector<LocalProcess> processes_;
};

bool runs_already(const os::Path& dir) {
  auto processes = load_processes(dir);
  return processes.ok() && std::any_of(processes->begin(), processes->end(),
                                       [](const LocalProcess& p) { return p.running(); });
}

}  // namespace

os::Path local_cluster_dir(const os::Path& dir) {
  return dir.empty() ? os::user_state_dir() / "local" : std::filesystem::absolute(dir);
}

Result<LocalCluster> start_local_cluster(LocalOptions options) {
  const os::Path dir = local_cluster_dir(options.dir);
  if (runs_already(dir)) {
    return make_error(Code::kExists,
                      fmt::format("a local cluster already runs in {}", dir.string()),
                      "end it with `weft down`, or choose another --dir");
  }
  WEFT_TRY_STATUS(os::remove_all(dir));
  Starter starter(options, dir);
  auto cluster = starter.start();
  if (!cluster.ok()) starter.abandon();
  return cluster;
}

Status stop_local_cluster(os::Path dir) {
  dir = local_cluster_dir(dir);
  auto processes = load_processes(dir);
  if (!processes.ok()) {
    if (processes.error().code != Code::kNotFound) return processes.error();
    return make_error(Code::kNotFound, fmt::format("no local cluster in {}", dir.string()),
                      "start one with `weft up`");
  }
  end_processes(*processes, kEndMs);
  WEFT_TRY_STATUS(os::remove_all(dir));
  return forget_context(kLocalContext);
}

}  // namespace weft::cli
