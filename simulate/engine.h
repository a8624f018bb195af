// Engine: one simulation under way. Private to simulate/; its methods are spread over
// engine_daemons.cpp (daemons and workers as the coordinator sees them), engine_transfers.cpp
// (weights and checkpoints), engine_jobs.cpp (users, plans, steps) and engine_churn.cpp.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "broker/coordinator/coordinator.h"
#include "simulate/simulate.h"
#include "simulate/virtual_queue.h"
#include "simulate/world.h"

namespace weft::simulate {

class Engine {
 public:
  Engine(const Scenario& scenario, const std::vector<JobModel>& models,
         const SimulateOptions& options);
  Result<Outcome> run();

 private:
  // What a daemon has been given to do; stays, ended, until replaced.
  struct Work {
    std::string job;
    uint32_t epoch = 0;
    int32_t stage = 0;
    broker::StagePhase phase = broker::StagePhase::kPreparing;
    int32_t run = -1;             // slot, once it computes
    double state_bytes = 0;       // of its stage: weights and the optimizer's
    std::deque<int64_t> uploads;  // steps to be stored, the first under way
    bool waits_for_room = false;  // behind the last of them, as too many are not stored yet
    int64_t hold_step = 0;        // behind which it waits
    bool last_step_done = false;
  };
  struct Daemon {
    bool alive = false;
    uint64_t session = 0, sequence = 0;
    uint64_t life =
        0;  // changes whenever it starts or ends: what was asked of a former one is void
    double heard_s = 0;   // from the broker
    double speaks_s = 0;  // its Hello is there then: no heartbeat overtakes it
    double alive_s = 0;   // last told that its worker is alive
    std::optional<Work> work;
  };
  // A job as its user and our books see it.
  struct Owned {
    size_t model = 0;
    JobOutcome outcome;
    std::vector<float> step_seconds;
    std::vector<double> errors;
    double held_s = 0, busy_s = 0;  // peer seconds
    broker::JobPhase phase = broker::JobPhase::kQueued;
    bool submitted = false;
    int64_t first_stage_step = 0;  // done by stage 0 of the last deployment
  };
  // A deployment that computes.
  struct Run {
    std::string job;
    uint32_t epoch = 0;
    std::unique_ptr<JobPlay> play;
    double started_s = -1, last_step_s = -1;
    std::vector<double> stage_started_s;
    std::vector<double> busy_before_s;  // by stage, when its last step ended
    std::vector<float> step_seconds;
    double predicted_s = 0;
    int32_t computing = 0;  // stages that have started and are not over
  };
  struct Transfer {
    int32_t peer = 0;
    uint64_t life = 0;
    SimRoute route;
    double left_bytes = 0, chunk_bytes = 0;
    std::function<bool()> wanted;    // false: the rest is not sent
    std::function<void()> progress;  // after each chunk
    std::function<void()> done;
  };

  // engine.cpp
  void feed(const broker::Event& event);
  void record(const std::string& kind, const std::string& job, const std::string& message);
  int64_t now_ms() const;
  void tick();
  bool nothing_can_change() const;
  Outcome finish();
  // To the broker and from it: delayed by the way, lost with a peer that is cut off.
  void tell_broker(int32_t peer, broker::Event event);
  void tell_peer(int32_t peer, std::function<void()> call);

  // Effects of the coordinator.
  void act(const broker::SendWelcome& effect);
  void act(const broker::SendPrepare& effect);
  void act(const broker::SendConnect& effect);
  void act(const broker::SendStart& effect);
  void act(const broker::SendStop& effect);
  void act(const broker::SendHold& effect);
  void act(const broker::EmitEvent& effect);
  void act(const broker::Decided& effect);
  template <typename Other>
  void act(const Other&) {}

  // engine_daemons.cpp
  Daemon& daemon(int32_t peer) { return daemons_[static_cast<size_t>(peer)]; }
  void start_daemon(int32_t peer);
  void vanish(int32_t peer);
  void leave(int32_t peer);
  void beat(size_t batch);
  void hello(int32_t peer);
  void prepare(int32_t peer, const broker::SendPrepare& effect);
  void connect(int32_t peer, const broker::SendConnect& effect);
  void start(int32_t peer, const broker::SendStart& effect);
  void hold(int32_t peer, const broker::SendHold& effect);
  void end_work(int32_t peer, broker::StagePhase phase, const broker::Failure& failure = {});
  void update(int32_t peer, const Work& work, const broker::Failure& failure = {});
  // idle_s: since the worker's compute moved.
  void report_alive(int32_t peer, const Work& work, double idle_s);
  // Neighbours of a stage that does not answer any more.
  void neighbours_notice(int32_t run, int32_t stage, double after_s);
  Work* held(int32_t peer, const std::string& job, uint32_t epoch);
  static bool over(const Work& work) { return broker::ended(work.phase); }

  // engine_transfers.cpp
  void transfer(Transfer transfer);
  void move_chunk(const std::shared_ptr<Transfer>& transfer);
  void upload(int32_t peer, int64_t step);
  void upload_next(int32_t peer);

  // engine_jobs.cpp
  void submit_jobs();
  void submit(const std::string& id);
  broker::PlannerOptions planner_options() const;
  Result<job::Plan> plan(const broker::Job& job, const std::vector<const broker::Peer*>& idle);
  Result<broker::Replanned> replan(const broker::Job& job,
                                   const std::vector<const broker::Peer*>& peers, double unproven);
  int32_t run_of(const std::string& job, uint32_t epoch);
  void stepped(int32_t run, int32_t stage, int64_t step);
  void stage_over(int32_t run, int32_t stage);
  void maybe_free(int32_t run);
  void phase_changed(const std::string& job);
  JobOutcome outcome_of(const std::string& id);

  // engine_churn.cpp
  void start_churn();
  void live_and_go(int32_t peer, const ChurnSpec& churn, uint64_t number);
  void follow_trace(const ChurnSpec& churn, const std::vector<TraceRow>& rows);
  void depart(int32_t peer, const ChurnSpec& churn, Rng& rng);
  void arrive(int32_t peer);
  void start_partitions();
  void cut_off(const PartitionSpec& cut);
  void start_slowdowns();
  void slow_down(const SlowdownSpec& slowdown, double share);

  static constexpr size_t kBeats = 20;  // groups of peers that say they live at the same time

  const Scenario& scenario_;
  const std::vector<JobModel>& models_;
  const SimulateOptions& options_;
  World world_;
  VirtualQueue queue_;
  broker::State state_;
  broker::CoordinatorOptions coordinator_;
  std::vector<Daemon> daemons_;
  std::vector<bool> absent_;  // not there at the start
  std::map<std::string, Owned> owned_;
  std::vector<std::string> order_;  // of jobs, as submitted
  std::vector<std::unique_ptr<Run>> runs_;
  std::map<std::pair<std::string, uint32_t>, int32_t> run_slots_;
  uint64_t sessions_ = 0, lives_ = 0;
  int64_t present_ = 0;
  size_t unended_ = 0;
  double changed_s_ = 0;  // a job's phase did
  bool stuck_ = false;
  Sha256 hash_;
  Outcome outcome_;
  Rng control_{0};
};

}  // namespace weft::simulate
