// The processes of a local cluster, as remembered in cluster.json.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/os/file.h"
#include "base/result.h"

namespace weft::cli {

struct LocalProcess {
  std::string role;  // "broker", "peer-0"
  pid_t pid = -1;
  std::string identity;  // os::process_identity, against reuse of the pid

  bool running() const;
};

// Starts a program detached from this terminal, its log beside its state.
Result<LocalProcess> start_background(const std::string& role, std::vector<std::string> argv,
                                      const os::Path& log_file);

// Asks each to end (peers before the broker), kills what is left after timeout_ms.
void end_processes(const std::vector<LocalProcess>& processes, int timeout_ms);

Status save_processes(const os::Path& dir, const std::vector<LocalProcess>& processes);
Result<std::vector<LocalProcess>> load_processes(const os::Path& dir);

}  // namespace weft::cli
