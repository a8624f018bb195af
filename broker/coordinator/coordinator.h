// The coordinator: who does what, as one pure function of (state, event, now, options). It reads no
// clock, opens no socket, draws no random number; ids come in with events. What must happen in the
// world comes back as effects, in order. One thread at a time.
//
// Guarantees, each under test with message loss and deaths:
//   * a peer holds at most one assignment;
//   * a job leaves deploying when a stage makes no progress for prepare_ms (connect_ms once all
//     listen) and within deploy_ms, running when its progress stops for the stall limit or a peer
//     of it is gone whose part is not in, cancelling within stop_ms;
//   * once the last checkpoint is complete nothing fails a job any more;
//   * a peer whose job ended is idle again as soon as its daemon confirms, and after stop_ms at
//     most, unless its heartbeats still name the assignment (then Stop is repeated);
//   * messages of another epoch or from a peer that does not hold the stage change nothing.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "broker/coordinator/state.h"

namespace weft::broker {

// ---- events ------------------------------------------------------------------------------------
struct ReportedAssignment {
  std::string job;
  uint32_t epoch = 0;
  int32_t stage = 0;
  std::string state;
};
struct PeerJoined {  // a certificate was issued
  std::string peer, name, curve_public, key_fingerprint;
};
struct PeerHello {
  std::string peer;
  uint64_t session = 0;
  Capabilities capabilities;
  std::vector<ReportedAssignment> assignments;
  uint64_t free_memory_bytes = 0;  // 0: says nothing of it
};
struct PeerHeartbeat {
  std::string peer;
  uint64_t session = 0, sequence = 0;
  bool draining = false;
  std::vector<ReportedAssignment> assignments;
  uint64_t free_memory_bytes = 0;  // 0: says nothing of it
};
struct PeerMeasured {
  std::string peer;
  std::shared_ptr<const job::DeviceProfile> profile;
};
struct StageUpdate {
  std::string peer, job;
  uint32_t epoch = 0;
  int32_t stage = 0;
  std::string state;
  std::string host;  // with listening
  uint16_t port = 0;
  Failure failure;  // with failed
};
struct StageReport {
  enum class Kind { kAlive, kStep, kEval };
  std::string peer, job;
  uint32_t epoch = 0;
  int32_t stage = 0;
  Kind kind = Kind::kAlive;
  int64_t step = 0;
  std::optional<double> loss, accuracy;
  double seconds = 0;    // of the step; of kAlive: since the compute thread moved
  double compute_s = 0;  // the device's, of this step or on a card of the last it has done; 0: none
};
struct ShardStored {
  std::string peer, job;
  uint32_t epoch = 0;
  int32_t stage = 0;
  int64_t step = 0;
  std::string sha256;
  uint64_t bytes = 0;
  std::vector<std::string> tensors;
};
struct PeerLeaving {
  std::string peer, reason;
};
struct SubmitJob {
  std::string job, name;
  int64_t steps = 0;
  int32_t stages = 0;
  int64_t checkpoint_keep = 2;
  int64_t checkpoint_every = 0;
  bool replan = true;
};
struct CancelJob {
  std::string job, reason;
};
struct ResumeJob {
  std::string job;
  std::optional<int32_t> stages;
  std::optional<int64_t> steps;
};
struct DeleteJob {
  std::string job;
};
struct DrainPeer {
  std::string peer;
};
struct RemovePeer {
  std::string peer;
};
struct Restarted {  // once, after the state was loaded
  std::string time_text;
};
struct Tick {};

using Event = std::variant<PeerJoined, PeerHello, PeerHeartbeat, PeerMeasured, StageUpdate,
                           StageReport, ShardStored, PeerLeaving, SubmitJob, CancelJob, ResumeJob,
                           DeleteJob, DrainPeer, RemovePeer, Restarted, Tick>;

// ---- effects -----------------------------------------------------------------------------------
struct SendWelcome {  // carries the revoked peers, too
  std::string peer;
  bool hello_wanted = false;  // it sends heartbeats, its Hello was lost
};
struct SendPrepare {
  std::string peer, job;
  uint32_t epoch = 0;
  int32_t stage = 0;
};
struct SendConnect {
  std::string peer, job;
  uint32_t epoch = 0;
  int32_t stage = 0;
};
struct SendStart {
  std::string peer, job;
  uint32_t epoch = 0;
  int32_t stage = 0;
};
struct SendStop {
  std::string peer, job;
  uint32_t epoch = 0;
  int32_t stage = 0;
  std::string reason;
};
struct SendHold {  // wait behind a step, its shard stored; step 0: go on
  std::string peer, job;
  uint32_t epoch = 0;
  int32_t stage = 0;
  int64_t step = 0;
};
struct SendMeasure {  // your device again, when you are idle
  std::string peer, reason;
};
struct SendDrain {
  std::string peer, reason;
};
struct SendRemoved {
  std::string peer, reason;
};
struct PersistPeer {
  std::string peer;
};
struct ErasePeer {
  std::string peer;
};
struct PersistJob {
  std::string job;
};
struct EraseJob {
  std::string job;
};
struct EmitEvent {
  std::string job;  // empty: of the cluster
  std::string kind, message;
  nlohmann::json data;
};
struct Decided {  // for `weft job explain`
  std::string job, decision, reason;
};
struct SaveCheckpoint {  // a shard came in
  std::string job;
  int64_t step = 0;
};
struct CommitCheckpoint {  // every shard is stored
  std::string job;
  int64_t step = 0;
};
struct DropCheckpoint {
  std::string job;
  int64_t step = 0;
  std::vector<std::string> blobs;
};
struct TruncateMetrics {  // a resumed job repeats the steps after this one
  std::string job;
  int64_t after_step = 0;
};
struct Revoke {  // its keys end; the set of revoked peers changed
  std::string peer, curve_public;
};

using Effect = std::variant<SendWelcome, SendPrepare, SendConnect, SendStart, SendStop, SendHold,
                            SendMeasure, SendDrain, SendRemoved, PersistPeer, ErasePeer, PersistJob,
                            EraseJob, EmitEvent, Decided, SaveCheckpoint, CommitCheckpoint,
                            DropCheckpoint, TruncateMetrics, Revoke>;

// ---- the function ------------------------------------------------------------------------------
// Makes a plan for a job over the idle peers; pure. kUnavailable: the job keeps waiting with the
// error as its reason; any other error fails it.
using PlanFunction =
    std::function<Result<job::Plan>(const Job&, const std::vector<const Peer*>& idle)>;

// The same for a running job, over its own peers and idle ones, with what a move would carry.
// Steps on peers that no run has taught anything of are taken to last unproven times as long as
// predicted.
using ReplanFunction = std::function<Result<Replanned>(
    const Job&, const std::vector<const Peer*>& peers, double unproven)>;
// What the planner takes the peers' speeds for, GFLOP/s; 0: unknown.
using SpeedsFunction = std::function<std::vector<double>(const std::vector<const Peer*>&)>;
// Whether the operator wrote the peer's speed down, so that its profile is not planned with.
using SpeedWrittenFunction = std::function<bool(const Peer&)>;
// Whether nothing is known yet of the ways between these peers, and soon will be.
using LinksAwaitedFunction = std::function<bool(const std::vector<const Peer*>&)>;

struct CoordinatorOptions {
  int64_t suspect_ms = 5000;  // without a heartbeat
  int64_t gone_ms = 15000;
  // Deployment: how long a stage may make no progress, and how long it may take however much it
  // makes. A slow link that downloads is no error, silence is.
  int64_t prepare_ms = 600000;   // while it fetches blobs, starts the worker, listens
  int64_t connect_ms = 60000;    // while it links up and loads weights
  int64_t deploy_ms = 86400000;  // in all
  // Without progress while running; at least 10 median steps. A worker whose compute thread moves
  // and a daemon that uploads say so about every 10 s, so a long step is no stall.
  int64_t stall_ms = 120000;
  int64_t silent_ms = 3600000;  // alive, but no step, evaluation or checkpoint; at least 10 stalls
  int64_t stop_ms = 30000;      // a worker may take to stop
  int64_t stop_repeat_ms = 2000;
  int64_t hello_repeat_ms = 2000;
  int64_t lost_ms = 10000;  // heartbeats that do not name an assignment end it
  int64_t blame_ms = 2000;  // a broken link waits for the failure that broke it
  int64_t final_checkpoint_ms = 600000;
  int64_t revoked_ms = int64_t{366} * 86400 * 1000;  // certificates of peers end before
  int64_t settle_ms = 1500;  // "auto" waits that long after the last arrival of a peer
  int64_t links_ms = 3000;   // a job waits that long for the first measured way between its peers
  // A job that could not be planned is planned again when other peers are idle, but not more often
  // than that; the pause doubles up to the longest, so that a queue of such jobs and peers that
  // come one by one cost few plans.
  int64_t retry_ms = 1000;
  int64_t retry_most_ms = 16000;
  // Running jobs are looked over that often, and one of them at most is planned anew: planning may
  // take half a second of the broker's thread. A job waits look_ms after it started, the pause
  // doubles up to the longest while nothing comes of it, and with every migration.
  int64_t glance_ms = 10000;
  int64_t look_ms = 30000;
  int64_t look_most_ms = 3600000;
  int64_t believe_slow_ms = 600000;  // the first time, of a peer without work
  int64_t believe_slow_most_ms = 86400000;
  int64_t hold_ms = 120000;       // stages may take to store their shards, beside what that takes
  int64_t hold_lead_ms = 3000;    // before the step behind which they wait
  double migration_start_s = 10;  // stopping workers, starting and linking others
  // An idle peer whose profile real runs disagree with (doubted(), correction.h) is asked to
  // measure itself again no more often than that; after each time in vain twice as long, up to the
  // longest.
  int64_t remeasure_ms = 3600000;
  int64_t remeasure_most_ms = 86400000;
  PlanFunction plan;
  ReplanFunction replan;  // empty: plans are kept
  SpeedsFunction speeds;
  SpeedWrittenFunction speed_written;  // empty: of nobody
  LinksAwaitedFunction links_awaited;  // empty: nothing is waited for
};

// A peer that can be given work.
bool usable(const Peer& peer);

// Whether a command can be obeyed now; commands that cannot are ignored by apply.
Status check_command(const State& state, const Event& event);

std::vector<Effect> apply(State& state, const Event& event, int64_t now_ms,
                          const CoordinatorOptions& options);

}  // namespace weft::broker
