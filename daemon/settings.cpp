#include "daemon/settings.h"

#include "base/os/file.h"

namespace weft::daemon {

Config make_config() {
  using enum SettingType;
  const std::string state = (os::user_state_dir() / "weftd").string();
  return Config(
      "WEFTD",
      {
          {"state_dir", kPath, state, "keys, certificate, blob cache and work folders"},
          {"name", kString, "", "name shown to people; the host name if empty"},
          {"advertise_host", kString, "",
           "address other peers reach this machine by; found from the route to the broker if "
           "empty"},
          {"listen_host", kString, "0.0.0.0", "address the data plane and the blob server bind"},
          {"data_port", kInt, "0", "port of the worker's data plane; 0: any", 0, 65535},
          {"blob_port", kInt, "0", "port of the blob server; 0: any", 0, 65535},
          {"device", kString, "auto",
           "auto, cpu or cuda:N (as nvidia-smi counts, of those that CUDA_VISIBLE_DEVICES names)"},
          {"threads", kInt, "0", "compute threads of a worker; 0: every core", 0, 4096},
          {"worker", kPath, "", "the weft-worker program; beside weftd if empty"},
          {"measure", kBool, "true",
           "measure, when idle, how fast the device runs operators, once and again where real runs "
           "disagree, so that the broker can plan with it"},
          {"profile_dir", kPath, "",
           "where measured profiles are kept; daemons of one machine may share it; in the state "
           "folder if empty"},
          {"jail", kString, "auto",
           "what a worker gives up before it reads a job's files: auto (what the kernel offers), "
           "required (no worker without all of it) or off"},
          {"worker_silent_ms", kInt, "10000", "a worker silent that long is killed", 1000, 3600000},
          {"link_timeout_ms", kInt, "15000", "a data link silent or down that long is dead", 1000,
           3600000},
          {"stop_grace_ms", kInt, "3000", "time a worker has to stop before it is killed", 0,
           600000},
          {"cache_bytes", kInt, "53687091200", "blobs kept beyond the running job", 0, INT64_MAX},
          {"log_level", kString, "info", "debug, info, warning or error"},
          {"log_json", kBool, "false", "log one JSON object a line"},
      });
}

}  // namespace weft::daemon
