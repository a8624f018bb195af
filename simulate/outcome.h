// Outcome: what a simulation saw, as numbers. Plain data; equal for equal scenarios but for the
// fields that say so.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace weft::simulate {

struct JobOutcome {
  std::string id, name, phase, reason;
  int32_t stages = 0;  // of the last deployment
  int64_t steps = 0;   // kept at the end
  int64_t wanted = 0;
  int64_t computed = 0;     // with those that were lost and done again
  int32_t deployments = 0;  // that began to compute
  int32_t migrations = 0;   // to another plan, none a failure
  int32_t failures = 0;     // each with a resume behind it, but for a last one
  double submitted_s = 0, started_s = -1, ended_s = -1;  // -1: never
  double predicted_step_s = 0;                           // of the last plan
  double step_s = 0, slow_step_s = 0;  // median and 95th percentile, all deployments
  double error = 0;                    // median of predicted / observed - 1 over deployments
  double busy = 0;                     // share of its peers' time that it computed
};

struct Outcome {
  uint64_t seed = 0;
  std::string hash;  // of every event of the coordinator and of what is below, in order
  double ended_s = 0;
  bool all_ended = false;
  int64_t peers = 0, most_peers_at_once = 0;
  int64_t departures = 0, farewells = 0, returns = 0;  // farewells: departures that said goodbye
  int64_t plans = 0, plans_refused = 0;
  int64_t replans = 0, migrations = 0;  // plans made anew for running jobs; those they moved to
  int64_t recoveries = 0, steps_lost = 0;
  double utilization = 0;  // of all peers that held a stage, while they held it
  double bytes_sent = 0, bytes_between_sites = 0;
  uint64_t events = 0;  // of the virtual clock
  std::vector<JobOutcome> jobs;
  std::string compression = "none";  // its name
  std::vector<std::string> notes;

  // Not part of the hash, differ from run to run.
  double wall_s = 0, planning_s = 0;
};

nlohmann::json outcome_to_json(const Outcome& outcome);

}  // namespace weft::simulate
