// Machine: one call of apply() under way. Private to the coordinator; its methods are spread over
// peers.cpp (liveness, what daemons report), measured.cpp (profiles, and doubts of them),
// deploy.cpp (scheduling, two phases, stopping), jobs.cpp (progress, checkpoints, commands) and
// replan.cpp (other plans for running jobs).
#pragma once

#include <fmt/format.h>

#include <set>

#include "broker/coordinator/coordinator.h"

namespace weft::broker {

inline constexpr size_t kStepHistory = 64;

// Adds the peers of the plan a job is about to move to: no other job gets them.
void reserve(const Job& job, std::set<std::string>& peers);

// After a job has started, until it may be planned anew.
int64_t first_pause_ms(const Job& job, const CoordinatorOptions& options);

class Machine {
 public:
  Machine(State& state, int64_t now_ms, const CoordinatorOptions& options)
      : state_(state), now_ms_(now_ms), options_(options) {}

  void on(const PeerJoined& event);
  void on(const PeerHello& event);
  void on(const PeerHeartbeat& event);
  void on(const PeerMeasured& event);
  void on(const PeerLeaving& event);
  void on(const DrainPeer& event);
  void on(const RemovePeer& event);
  void on(const StageUpdate& event);
  void on(const StageReport& event);
  void on(const ShardStored& event);
  void on(const SubmitJob& event);
  void on(const CancelJob& event);
  void on(const ResumeJob& event);
  void on(const DeleteJob& event);
  void on(const Restarted& event);
  void on(const Tick& event);

  // Gives queued jobs to idle peers; runs after every event.
  void schedule();
  std::vector<Effect> take() { return std::move(effects_); }

 private:
  // peers.cpp
  Peer* peer(const std::string& id);
  Job* job(const std::string& id);
  void set_phase(Peer& peer, PeerPhase to, const std::string& reason);
  void set_work_phase(Peer& peer, PeerPhase to, const std::string& reason);
  void heard(Peer& peer, const std::string& how);
  void lose(Peer& peer, const std::string& reason);
  void reported(Peer& peer, const std::vector<ReportedAssignment>& assignments);
  void ask_for_hello(Peer& peer);
  void check_own_report(Peer& peer, const ReportedAssignment& reported);
  void check_missing(Peer& peer);
  void check_leftovers(Peer& peer, const std::vector<ReportedAssignment>& assignments);
  void tick_peer(Peer& peer);
  void release(Peer& peer, const std::string& reason);
  void forgive_own_sleep();

  // measured.cpp
  void learn_speed(const Job& owner, const StageReport& event);
  void doubt(Peer& peer);
  void note_free_memory(Peer& peer, uint64_t bytes);
  void remeasured(Peer& peer, double faster);
  void rebase_plans(const std::string& peer, double faster);

  // deploy.cpp
  bool must_settle(const Job& job, bool any_idle) const;
  bool awaits_links(const Job& job, const std::vector<const Peer*>& idle) const;
  void wait(Job& job, const std::string& reason);
  void deploy(Job& job, job::Plan plan);
  Status check_plan(const Job& job, const job::Plan& plan) const;
  void advance_deployment(Job& job);
  void stop_all(Job& job, const std::string& reason);
  void send_stop(Peer& peer, const std::string& reason);
  void stage_failed(Job& job, Failure failure);
  void stage_finished(Job& job, int32_t stage);
  void judge(Job& job);
  void fail(Job& job, const Failure& failure);
  void maybe_cancelled(Job& job);
  bool part_is_in(const Job& job, int32_t stage) const;
  void maybe_finished(Job& job);
  void finish(Job& job);
  void end(Job& job, JobPhase to, std::string reason, std::string next);
  void tick_job(Job& job);
  void check_deployment(Job& job);
  void check_stall(Job& job);

  // replan.cpp
  void glance();
  std::optional<std::string> reason_to_look(const Job& job, double fastest_idle) const;
  bool may_look(const Job& job) const;
  void look(Job& job, const std::string& why);
  void keep(Job& job, const std::string& why, const std::string& reason);
  void remember_slowness(const Job& job);
  void forget_slowness();
  std::vector<double> planned_factors(const job::Plan& plan) const;
  void note_spares(Job& job, const job::Plan& plan, std::vector<const Peer*> spares);
  bool begin_migration(Job& job, Replanned replanned, const std::string& reason);
  void release_hold(Job& job, const std::string& reason);
  void maybe_move(Job& job, int64_t stored_step);
  bool deploy_planned(Job& job);
  void fall_back(Job& job, const std::string& reason);

  // jobs.cpp
  void restart(Job& job);
  void set_phase(Job& job, JobPhase to, const std::string& reason);
  StageState* held_stage(const std::string& peer, const std::string& job, uint32_t epoch,
                         int32_t stage);
  void commit(Job& job, Checkpoint& checkpoint);
  void drop_checkpoint(Job& job, int64_t step);
  std::string stage_text(const Job& job, int32_t stage) const;
  std::string peer_text(const std::string& id) const;
  std::string checkpoint_text(const Job& job) const;
  void emit(const std::string& job, std::string kind, std::string message,
            nlohmann::json data = nlohmann::json::object());
  void decide(const std::string& job, std::string decision, std::string reason);

  State& state_;
  int64_t now_ms_;
  const CoordinatorOptions& options_;
  std::vector<Effect> effects_;
};

}  // namespace weft::broker
