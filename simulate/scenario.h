// Scenario: what `weft simulate` plays, as data. Read from TOML; every key stands in
// docs/simulate.md. Times are virtual seconds from the start.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "broker/planner/planner.h"

namespace weft::simulate {

struct SiteSpec {
  std::string name;
  std::string family;                     // of a site with a count, what stands for all; or empty
  double latency_ms = 0;                  // one way, between two of its peers
  double bandwidth_mbit_s = 0;            // between two of its peers; 0: only their own lines count
  double up_mbit_s = 0, down_mbit_s = 0;  // shared by all its peers towards others; 0: no limit
};

// Both directions of the way between the peers of two sites.
struct SiteLink {
  std::string from, to;
  double latency_ms = 0;
  double bandwidth_mbit_s = 0;  // of one flow; 0: only access lines count
  double loss = 0;              // share of packets lost
};

struct PeerGroup {
  std::string name, site;
  int32_t count = 1;
  broker::PlannerPeer device;             // its id is not used
  double speed_spread = 0;                // sigma of the log of their speeds around the device's
  double up_mbit_s = 0, down_mbit_s = 0;  // each peer's own line; 0: no limit
};

// A decoder-only transformer that is built in: pre-norm blocks, GELU, tied to no other weight.
struct TransformerSpec {
  int64_t layers = 12, width = 768, heads = 12, tokens = 1024, vocabulary = 50257;
  int64_t micro_batch = 1;  // sequences
};

struct JobGroup {
  std::string name;
  int32_t count = 1;
  std::string file;                         // a job file; empty: the transformer
  TransformerSpec transformer;              // without a file
  int32_t stages = 0;                       // 0: auto
  int64_t steps = 0;                        // 0: what the job file says
  int64_t batch = 0;                        // samples a step; 0: what the job file says
  int64_t checkpoint_every = 0;             // steps; 0: only at the end
  std::string schedule, precision, replan;  // names of job files; empty: what the job file says
  double submit_s = 5, every_s = 0;  // the first, when peers have joined; the time between two
};

// Peers of a group come and go.
struct ChurnSpec {
  std::string group;              // empty: all
  double life_s = 0, away_s = 0;  // means of exponential times; away_s 0: never back
  double leave_share = 0;         // of departures that say goodbye
  std::string trace;              // file of `time_ms,add|remove,node` rows instead of chance
};

// A site is cut off from all others.
struct PartitionSpec {
  std::string site;
  double at_s = 0, for_s = 0;
};

// Peers that compute, or a way between two sites that carries, only a share of what it did.
struct SlowdownSpec {
  std::string peers;     // one by name, or a group; empty: a way
  std::string from, to;  // sites, both directions
  double to_share = 0.1;
  double at_s = 0, for_s = 0;  // for_s 0: for ever
  double every_s = 0;          // again and again, each time for for_s
  int64_t times = 1;
};

struct BrokerSpec {
  std::string site;                       // where it stands
  double up_mbit_s = 0, down_mbit_s = 0;  // its line, for weights and checkpoints; 0: no limit
  double heartbeat_s = 1, suspect_s = 5, gone_s = 15, tick_s = 1;
  double broker_timeout_s = 30;
};

struct Scenario {
  uint64_t seed = 0;
  double most_s = 7 * 86400.0;     // virtual time at which it ends at the latest
  double link_timeout_s = 15;      // workers wait for a silent neighbour
  std::optional<double> resume_s;  // a failed job is resumed after that long; unset: never
  double compute_jitter = 0;       // sigma of the log of a stage's time, drawn each step
  double measure_error = 0;        // the same of the speeds and rates the planner knows
  BrokerSpec broker;
  broker::Compression compression;  // of what crosses from stage to stage
  std::vector<SiteSpec> sites;
  std::vector<SiteLink> links;
  std::optional<SiteLink> other_links;  // between sites no link names
  // Of links_file, by site, each direction by itself: instead of what links say, but for losses.
  std::vector<broker::PlannerLink> measured_links;
  std::vector<PeerGroup> peers;
  std::vector<JobGroup> jobs;
  std::vector<ChurnSpec> churn;
  std::vector<PartitionSpec> partitions;
  std::vector<SlowdownSpec> slowdowns;
  std::vector<std::string> notes;  // what was assumed or ignored
};

// How the peers and jobs of a group are called: "fibre-3@berlin", "small-7".
std::string peer_name(const PeerGroup& group, int32_t number);
std::string job_name(const JobGroup& group, int32_t number);

inline constexpr int32_t kMostPeers = 200000, kMostJobs = 10000;

// The text of a file that a scenario names.
using ReadFile = std::function<Result<std::string>(const std::string& path)>;

// read: for links_file; paths of job files and traces stay as written. Errors name table and key;
// kInvalid also for names nobody defines, two sites without a link, and numbers out of range.
Result<Scenario> parse_scenario(std::string_view toml, const std::string& source,
                                const ReadFile& read = {});

// One row of a churn trace.
struct TraceRow {
  double at_s = 0;
  bool adds = false;
  std::string node;
};
// In order of time. kInvalid names the line.
Result<std::vector<TraceRow>> parse_trace(std::string_view text, const std::string& source);

}  // namespace weft::simulate
