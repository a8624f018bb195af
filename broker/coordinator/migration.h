// Migration: whether a running job should move to another plan, and one under way. Pure.
//
//   running ─hold at step S─▶ every stage waits behind S, its shard on the way
//           ─checkpoint S complete─▶ workers stopped, job queued with epoch + 1
//           ─all peers of the new plan free─▶ deploying ─▶ running
//
// No step is lost. What goes wrong before the checkpoint is complete lets the stages go on; what
// goes wrong after it leaves an ordinary resume from that checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "job/plan.h"

namespace weft::broker {

// What the peer of a stage of the new plan must fetch before it can go on.
struct StageFetch {
  std::string peer;
  double bytes = 0;    // weights, optimizer state, data it does not have
  double seconds = 0;  // over its own links
};

// A plan made anew for a running job, beside the one it has, both judged by one model under the
// same peers, corrections and links: predictions are never compared with measurements.
struct Replanned {
  job::Plan plan;
  std::vector<double> factors;  // by stage: what its peer's speed was taken times (Job)
  bool same = false;            // cut, peers and schedule are those of the current plan
  bool timed = true;            // every speed is known; false: seconds mean nothing
  double current_s = 0;         // a step under the current plan
  double planned_s = 0;         // a step under the new one
  double store_s = 0;           // the current stages store their shards
  double store_bytes = 0;       // all of them
  std::vector<StageFetch> fetches;
};

inline constexpr double kLeastShare = 0.1;  // of a step that a migration must save
inline constexpr double kLeastReturn = 2;   // times its cost that it must save in all

struct MigrationVerdict {
  bool migrate = false;
  std::string reason;  // with the numbers
};

// steps_left: that the new plan would do. startup_s: stopping workers, starting and linking others.
MigrationVerdict judge_migration(const Replanned& replanned, int64_t steps_left, double startup_s);

// Of a job that is on its way to another plan.
struct Migration {
  job::Plan plan;
  std::vector<double> planned_factors;  // Job::planned_factors of it
  std::string reason;
  int64_t hold_step = 0;    // after it stages wait
  int64_t deadline_ms = 0;  // of holding; then of its peers becoming free
};

}  // namespace weft::broker
