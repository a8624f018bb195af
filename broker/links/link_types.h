// What the book of links is told and what it asks for: peers, probes and their results. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::broker {

struct LinkPeer {
  std::string id;
  std::string address;    // where others reach it; peers of one address share a line
  bool idle = false;      // may be probed and may probe
  bool busy = false;      // runs a stage: its line is somebody's work
  bool dialable = false;  // has a port that others can try
  std::string job;        // that a busy one works for
};

// One message to one peer: measure the ways to these targets, in one direction.
struct ProbeTask {
  uint64_t id = 0;
  std::string prober;
  std::vector<std::string> targets;  // one; or two, alone and then at once: do they share a line?
  bool receive = false;              // what the targets send; else what the prober sends
  uint64_t max_bytes = 0;            // of one train
  int64_t max_ms = 0;                // of all of it
};

// So many bytes arrived in so many seconds, one behind the other.
struct ProbeTrain {
  double bytes = 0, seconds = 0;
};

struct ProbedLink {
  std::string target;
  double round_trip_s = 0;  // the shortest
  std::vector<ProbeTrain> trains;
  double alone_bytes_s = 0, together_bytes_s = 0;  // of tasks with two targets
};

struct ProbeResult {
  uint64_t task = 0;
  enum class Outcome { kMeasured, kBusy, kUnreachable } outcome = Outcome::kMeasured;
  std::string unreachable;  // the target that was not reached
  std::vector<ProbedLink> links;
};

enum class PathClass { kUnknown, kSameHost, kLan, kWan };

constexpr const char* path_class_name(PathClass path) {
  switch (path) {
    case PathClass::kSameHost:
      return "same-host";
    case PathClass::kLan:
      return "lan";
    case PathClass::kWan:
      return "wan";
    default:
      return "unknown";
  }
}

// What the messages of real work say of a way.
struct Carried {
  double bytes_s = 0;       // it was carried at, at least; 0: unknown
  double round_trip_s = 0;  // the shortest; 0: unknown
};

struct LinkOptions {
  size_t landmarks = 4;   // peers that everybody is measured against
  size_t neighbours = 2;  // probes of a peer with others that may stand beside it,
  size_t nearest = 3;     // and with others that may be the nearest elsewhere
  double host_latency_s = 0.00008, lan_latency_s = 0.00075;  // one way, at most
  int64_t every_ms = 1000;                                   // probes are planned that often,
  size_t peers_per_period = 2000;   // and more seldom by as many times as there are so many peers
  int64_t refresh_ms = 30 * 60000;  // a pair is measured again after
  int64_t max_age_ms = int64_t{24} * 3600000;  // and forgotten after
  int64_t retry_ms = 60000;       // after a failure, twice as long each time up to refresh_ms
  int64_t busy_retry_ms = 15000;  // after "not now"
  // Without an answer it is given up: max_ms, opening two connections, and what a report waits.
  int64_t task_ms = 45000;
  size_t max_running = 64;  // 0: nobody is asked
  uint64_t first_task = 1;  // number of the first
  uint64_t max_bytes = uint64_t{4} << 20;
  int64_t max_ms = 20000;  // 8 s are enough but over long ways (net/probe/prober.h)
  // Where a line is also that of a peer which runs a stage: the share of the time that probes may
  // take on all lines of its job together, and how much at once.
  double busy_share = 0.01;
  uint64_t busy_max_bytes = uint64_t{256} << 10;
  int64_t busy_max_ms = 500;
};

}  // namespace weft::broker
