// State: all the broker decides upon. Plain data, owned by one thread (the broker's loop), changed
// by apply() alone, so that the same code runs in production and under a virtual clock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/coordinator/correction.h"
#include "broker/coordinator/drift.h"
#include "broker/coordinator/migration.h"
#include "broker/coordinator/states.h"
#include "job/device_profile.h"
#include "job/plan.h"

namespace weft::broker {

struct Capabilities {
  std::string host;
  uint32_t cores = 0;
  uint64_t memory_bytes = 0;
  std::string device;
  std::string device_name;
  uint64_t device_memory_bytes = 0;
  std::string advertise_host;
  uint16_t blob_port = 0;
  std::string version;
};

// What a peer was given to do. It holds the peer until the daemon says that it ended.
struct Assignment {
  std::string job;
  uint32_t epoch = 0;
  int32_t stage = 0;
  int64_t since_ms = 0;
  bool seen = false;              // the daemon has reported it at least once
  int64_t missing_since_ms = -1;  // its heartbeats stopped naming it
  bool stopping = false;          // the job ended, a Stop is out
  int64_t stop_since_ms = 0;
  int64_t stop_sent_ms = 0;
  bool reported_active = false;  // in the last heartbeat
  bool is(const std::string& other_job, uint32_t other_epoch, int32_t other_stage) const {
    return job == other_job && epoch == other_epoch && stage == other_stage;
  }
};

// What a run that drifted from its plan has shown of a peer: its steps take that many times what
// its profile, or what the operator wrote of it, says. A peer that nobody uses is believed to be
// that slow for a while only, each time four times as long as the last: then it may be tried again.
struct Slowness {
  double factor = 0;       // 0: nothing is known
  int64_t until_ms = 0;    // of a peer without work
  int64_t believe_ms = 0;  // the last such while
};

// When real runs disagree with a profile its peer is asked to measure itself again.
struct Remeasure {
  int64_t next_ms = 0;   // not before
  int64_t pause_ms = 0;  // the last one before that
  bool asked = false;    // no new profile has come since
};

struct Peer {
  std::string id, name;
  std::string curve_public;     // its key on the control plane
  std::string key_fingerprint;  // of its certificate's key
  Capabilities capabilities;
  PeerPhase phase = PeerPhase::kJoining;
  PeerPhase former = PeerPhase::kJoining;  // before suspect
  int64_t joined_ms = 0, last_seen_ms = 0;
  uint64_t session = 0, heartbeat_sequence = 0;
  uint64_t hello_session = 0;    // its last Hello came in; another session: one is asked for
  int64_t hello_asked_ms = -1;   // of this session
  uint64_t left_session = 0;     // said it leaves; stragglers of that session are ignored
  bool drain_requested = false;  // by a user, survives a restart of the daemon
  bool leftover = false;         // its heartbeat names an active assignment that is not ours
  int64_t leftover_stop_ms = 0;
  std::optional<Assignment> assignment;
  std::shared_ptr<const job::DeviceProfile> profile;  // as it measured itself; none yet: null
  Correction correction;                              // of the profile, by real runs
  Slowness slowness;                                  // not persisted
  Remeasure remeasure;                                // not persisted
  // What others leave of its memory, told last while it had no work; 0: unknown. Not persisted.
  uint64_t free_memory_bytes = 0;
  uint64_t free_memory_noted = 0;  // when idle_version last changed for it
};

// Of the device that computes, or of its host where nobody knows; 0: unknown.
uint64_t memory_bytes_of(const Peer& peer);

struct Failure {
  std::string code, message, next;
  int32_t stage = -1;
  std::string peer;
};

struct StageState {
  std::string peer;
  StagePhase phase = StagePhase::kPreparing;
  std::string host;  // where its data plane listens, as others dial it
  uint16_t port = 0;
  int64_t progress_ms = 0;  // while the job deploys: when it last got on; not persisted
};

struct Shard {
  int32_t stage = 0;
  std::string sha256;
  uint64_t bytes = 0;
  std::vector<std::string> tensors;
};

struct Checkpoint {
  int64_t step = 0;
  int64_t time_ms = 0;
  uint32_t epoch = 0;
  int32_t stages = 0;  // shards that make it complete
  bool complete = false;
  std::map<int32_t, Shard> shards;
};

struct Job {
  std::string id, name;
  JobPhase phase = JobPhase::kQueued;
  std::string reason, next;  // why it is where it is, and what to do
  int64_t created_ms = 0, started_ms = 0, ended_ms = 0;
  int64_t step = 0, steps = 0;  // done, wanted
  std::optional<double> loss, first_loss, eval_loss, eval_accuracy;
  int32_t requested_stages = 0;  // 0: auto
  int64_t checkpoint_every = 0;  // steps; 0: only at the end
  int64_t checkpoint_keep = 2;
  bool replan = true;  // a running job may move to another plan
  uint32_t epoch = 1;
  int64_t resume_step = 0;  // where this epoch starts
  std::optional<job::Plan> plan;
  std::vector<StageState> stages;
  std::map<int64_t, Checkpoint> checkpoints;

  // Not persisted: the deployment or run under way.
  bool connecting = false;           // phase two of the deployment
  int64_t deadline_ms = 0;           // of the whole deployment, of cancelling
  int64_t progress_ms = 0;           // anything moved
  int64_t report_ms = 0;             // last step, evaluation or checkpoint
  std::vector<double> step_seconds;  // the last ones, bounded
  std::vector<Failure> failures;     // waiting for the verdict
  int64_t verdict_ms = 0;            // 0: none pending
  int64_t finish_deadline_ms = 0;    // all finished, the final checkpoint still due
  uint64_t tried_version = 0;        // State::idle_version of the last plan attempt
  int64_t retry_ms = 0;              // after a refused plan: when the next is tried at the earliest
  int64_t retry_pause_ms = 0;        // the last pause before one
  int64_t queued_ms = 0;
  DriftWatch drift;                     // of the plan it runs
  std::vector<double> planned_factors;  // by stage: what the planner took its peer's speed times
  double spare_gflops = 0;              // the fastest peer the plan left idle
  int64_t look_ms = 0;                  // when it is planned anew at the earliest
  int64_t look_pause_ms = 0;            // the last pause before that
  int32_t migrations = 0;
  std::optional<Migration> migration;  // on its way to another plan

  // The newest complete checkpoint, or -1.
  int64_t last_checkpoint_step() const;
  const Checkpoint* last_checkpoint() const;
  bool resumable() const { return ended(phase) && step_to_resume() < steps; }
  int64_t step_to_resume() const { return last_checkpoint() ? last_checkpoint()->step : 0; }
};

struct State {
  std::map<std::string, Peer> peers;
  // Removed peers whose certificates have not expired yet, and when they were removed.
  std::map<std::string, int64_t> revoked;
  std::map<std::string, Job> jobs;
  uint64_t idle_version = 1;     // changes whenever the set of idle peers may have
  int64_t last_arrival_ms = -1;  // a peer became usable
  int64_t last_tick_ms = -1;
  int64_t next_glance_ms = 0;  // at the plans of running jobs
};

}  // namespace weft::broker
