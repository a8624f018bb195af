// The cluster of one machine that `weft up` starts in the background: a broker and N daemons under
// one folder, whose cluster.json says which processes they are.
#pragma once

#include <string>
#include <vector>

#include "base/os/file.h"
#include "base/result.h"
#include "cli/contexts.h"

namespace weft::cli {

struct LocalOptions {
  int peers = 4;
  os::Path dir;                    // empty: <state>/local
  std::string host = "127.0.0.1";  // bound and advertised by everything
  std::string device = "auto";
  int threads = 0;  // of each worker; 0: cores / peers
};

struct LocalCluster {
  Context context;
  std::string join_address;  // of further machines
  std::vector<std::string> peers;
};

inline constexpr const char* kLocalContext = "local";

// Starts everything and waits until every peer is idle. On failure nothing keeps running and the
// folder stays for its logs.
Result<LocalCluster> start_local_cluster(LocalOptions options);

// Ends every process of the folder and removes it. kNotFound where none runs.
Status stop_local_cluster(os::Path dir);

os::Path local_cluster_dir(const os::Path& dir);

}  // namespace weft::cli
