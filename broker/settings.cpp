#include "broker/settings.h"

#include "base/os/file.h"
#include "broker/planner/links_file.h"

namespace weft::broker {
namespace {

constexpr int64_t kDayMs = 86400000;

Result<PlannerWorld> known_network(const Config& config) {
  constexpr uint64_t kMost = uint64_t{256} << 20;
  PlannerWorld world;
  if (const std::string path = config.text("peers_file"); !path.empty()) {
    WEFT_TRY(const std::string text, os::read_file(path, kMost));
    WEFT_TRY(world, parse_peers(text, path));
  }
  if (const std::string path = config.text("links_file"); !path.empty()) {
    WEFT_TRY(const std::string text, os::read_file(path, kMost));
    WEFT_TRY_STATUS(add_links(text, path, world));
  }
  return world;
}

}  // namespace

Config make_config() {
  using enum SettingType;
  return Config(
      "WEFT_BROKER",
      {
          {"state_dir", kPath, "", "folder of all state; empty: ~/.local/state/weft/broker"},
          {"http_host", kString, "127.0.0.1", "address the HTTP API binds"},
          {"http_port", kInt, "7400", "its port; 0: the last one used, else any", 0, 65535},
          {"control_host", kString, "127.0.0.1", "address the control plane binds"},
          {"control_port", kInt, "7401", "its port; 0: the last one used, else any", 0, 65535},
          {"advertise_host", kString, "", "name or address under which peers reach the broker"},
          {"heartbeat_ms", kInt, "1000", "how often peers say that they live", 100, 60000},
          {"suspect_ms", kInt, "5000", "a peer silent that long is suspect", 500, kDayMs},
          {"gone_ms", kInt, "15000", "a peer silent that long is gone, its job fails", 1000,
           kDayMs},
          {"broker_timeout_ms", kInt, "30000", "workers stop when the broker is silent that long",
           1000, kDayMs},
          {"prepare_ms", kInt, "600000", "a stage may fetch and start without progress", 1000,
           kDayMs},
          {"connect_ms", kInt, "60000", "a stage may link up and load without progress", 1000,
           kDayMs},
          {"deploy_ms", kInt, "86400000", "a deployment may take, however much progress it makes",
           1000, 7 * kDayMs},
          {"stall_ms", kInt, "120000", "a running job without progress that long fails", 1000,
           kDayMs},
          {"stop_ms", kInt, "30000", "workers may take to stop", 1000, kDayMs},
          {"final_checkpoint_ms", kInt, "600000", "the last checkpoint may take to be stored", 1000,
           kDayMs},
          {"replan_ms", kInt, "30000", "a job runs that long before another plan is looked for",
           1000, kDayMs},
          {"replan_glance_ms", kInt, "10000",
           "between looks at running jobs, of which one is planned", 500, kDayMs},
          {"peers_file", kPath, "",
           "what is known of peers by name: speed, site, access line (peers.toml of "
           "docs/planning.md)"},
          {"links_file", kPath, "",
           "measured links between peers by name (links.csv of docs/planning.md)"},
          {"probe_links", kBool, "true", "have idle peers measure the ways between each other"},
          {"memory_percent", kInt, "90", "share of a peer's memory a stage may plan with", 1, 100},
          {"log_level", kString, "info", "debug, info, warning or error"},
          {"log_json", kBool, "false", "one JSON object a log line"},
      });
}

Result<ServiceOptions> service_options(const Config& config) {
  ServiceOptions options;
  options.http_host = config.text("http_host");
  options.control_host = config.text("control_host");
  options.http_port = static_cast<uint16_t>(config.integer("http_port"));
  options.control_port = static_cast<uint16_t>(config.integer("control_port"));
  options.advertise_host = config.text("advertise_host");
  options.core.heartbeat_ms = static_cast<uint32_t>(config.integer("heartbeat_ms"));
  options.core.broker_timeout_ms = static_cast<uint32_t>(config.integer("broker_timeout_ms"));
  options.core.memory_share = static_cast<double>(config.integer("memory_percent")) / 100.0;
  CoordinatorOptions& coordinator = options.core.coordinator;
  coordinator.suspect_ms = config.integer("suspect_ms");
  coordinator.gone_ms = config.integer("gone_ms");
  coordinator.prepare_ms = config.integer("prepare_ms");
  coordinator.deploy_ms = config.integer("deploy_ms");
  coordinator.connect_ms = config.integer("connect_ms");
  coordinator.stall_ms = config.integer("stall_ms");
  coordinator.look_ms = config.integer("replan_ms");
  coordinator.glance_ms = config.integer("replan_glance_ms");
  coordinator.stop_ms = config.integer("stop_ms");
  options.core.probe_links = config.boolean("probe_links");
  WEFT_TRY(options.core.known, known_network(config));
  coordinator.final_checkpoint_ms = config.integer("final_checkpoint_ms");
  return options;
}

os::Path state_dir(const Config& config) {
  const std::string dir = config.text("state_dir");
  return dir.empty() ? os::user_state_dir() / "broker" : os::Path(dir);
}

}  // namespace weft::broker
