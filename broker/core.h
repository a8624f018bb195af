// Core: the coordinator's state with everything its effects touch: the store, the blobs, the peers'
// control channel. It applies one event at a time, writes what must survive in one transaction,
// then sends. All calls on the broker's loop.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/log_limit.h"
#include "broker/coordinator/coordinator.h"
#include "broker/coordinator/planner_inputs.h"
#include "broker/coordinator/replan_inputs.h"
#include "broker/link_keeper.h"
#include "broker/probe.h"
#include "broker/step_log.h"
#include "broker/store/store.h"
#include "broker/submission.h"
#include "broker/work_traffic.h"
#include "net/blob/blob_store.h"
#include "net/proto/control.pb.h"

namespace weft::broker {

// The way to the daemons; net::ControlServer in production.
class PeerLink {
 public:
  virtual ~PeerLink() = default;
  virtual void send(const std::string& peer, proto::BrokerMessage message, int32_t ttl_ms) = 0;
  virtual void allow(const std::string& curve_public, const std::string& peer) = 0;
  virtual void revoke(const std::string& curve_public) = 0;
};

struct CoreOptions {
  CoordinatorOptions coordinator;  // its plan function is set by the core
  uint32_t heartbeat_ms = 1000;
  uint32_t broker_timeout_ms = 30000;
  double memory_share = 0.9;
  PlannerWorld known;  // of peers and network, by the names of peers
  bool probe_links = true;
};

// What is asked of every job's submission again and again, so that it is not parsed each time.
struct KnownJob {
  nlohmann::json spec;
  std::set<std::string> blobs;
};

// A job's submission with its graphs, decoded once.
struct LoadedJob {
  Submission submission;
  JobGraphs graphs;
};

class Core {
 public:
  Core(Store& store, net::BlobStore& blobs, const Clock& clock, CoreOptions options);

  // Reads the store, lets the coordinator judge what a restart ended. Call once, after set_link.
  Status load();
  void set_link(PeerLink* link) { link_ = link; }
  // Called with a job id ("" for the cluster) when there is something new to read about it.
  void on_news(std::function<void(const std::string&)> news) { news_ = std::move(news); }

  // A command of a user: refused with a reason, or done.
  Status command(const Event& event);
  void apply(const Event& event);
  // A peer gets its certificate: its control key is listed, the one it had before is not.
  // also: what must be stored with it or not at all (the use of its token). An error leaves
  // everything as it was.
  Status admit(const PeerJoined& joined, const std::function<Status()>& also = {});
  void tick();
  void on_message(const std::string& peer, const proto::PeerMessage& message);

  // Plans a submission over the idle peers, stores nothing.
  Result<job::Plan> dry_run(const Submission& submission, const JobGraphs& graphs);
  Status submit(const std::string& job, const nlohmann::json& body, const Submission& submission,
                JobGraphs graphs);
  Result<std::shared_ptr<const LoadedJob>> loaded(const std::string& job);
  nlohmann::json spec_of(const std::string& job) const;  // null: not known
  // Removes what nobody needs of these files; a checkpoint's or submission's blob stays.
  void sweep(const std::vector<net::BlobFile>& files);

  const State& state() const { return state_; }
  // What runs of others say of these; looks at all peers only where one of these has none of its
  // own.
  DeviceLessons lessons_for(const std::vector<const Peer*>& peers) const;
  Store& store() { return store_; }
  net::BlobStore& blobs() { return blobs_; }
  Probe& probe() { return probe_; }
  const CoreOptions& options() const { return options_; }
  const LinkBook& links() { return links_.book(state_); }
  bool store_healthy() const { return store_healthy_; }
  size_t blobs_at(const std::string& peer) const;
  // Unix time that never goes back.
  int64_t now_ms() const { return wall_origin_ms_ + clock_.monotonic_ms(); }

 private:
  friend class EffectRunner;
  Result<job::Plan> plan(const Job& job, const std::vector<const Peer*>& idle);
  Result<job::Plan> plan_over(const opdag::Graph& graph, const job::JobSpec& spec,
                              const std::vector<const Peer*>& idle);
  PlannerOptions planner_options();
  Result<Replanned> replan(const Job& job, const std::vector<const Peer*>& peers, double unproven);
  double bytes_to_fetch(const Job& job, const LoadedJob& known, const job::Plan& plan,
                        int32_t stage) const;
  void drain_pending();
  Status apply_one(const Event& event, const std::function<Status()>& also = {});
  void on_report(const std::string& peer, const proto::WorkerReport& report);
  void on_profile(const std::string& peer, const proto::MeasuredProfile& measured);
  void on_probe(const std::string& peer, const proto::ProbeReport& report);
  void on_logs(const std::string& peer, const proto::LogLines& logs);
  void on_blobs(const std::string& peer, const proto::HaveBlobs& have);
  const Job* reporting(const std::string& peer, const proto::WorkerReport& report) const;
  void log_steps(const Job& job, const proto::WorkerReport& report, const job::WorkerEvent& event);
  void learn_links(const Job& job, const proto::WorkerReport& report,
                   const job::WorkerEvent& event);
  WorkTraffic* work_traffic(const Job& job);
  StepLog* step_log(const std::string& job);
  void flush_steps(const std::string& job, StepLog& log, bool all);
  static constexpr int32_t kMessageTtlMs = 60000;
  void send(const std::string& peer, proto::BrokerMessage message, int32_t ttl_ms = kMessageTtlMs);
  void note(Status status);
  Status load_revoked();
  void know(const std::string& job, const nlohmann::json& submission);
  bool referenced(const std::string& blob) const;
  void remove_blob(const std::string& name);

  Store& store_;
  net::BlobStore& blobs_;
  const Clock& clock_;
  CoreOptions options_;
  int64_t wall_origin_ms_;
  State state_;
  Probe probe_;
  LinkKeeper links_;
  PeerLink* link_ = nullptr;
  std::function<void(const std::string&)> news_;
  std::deque<Event> pending_;
  bool applying_ = false;
  bool store_healthy_ = true;
  std::map<std::string, KnownJob> known_jobs_;
  bool every_job_known_ = true;  // else no blob is removed: it might be one of theirs
  std::map<std::string, std::shared_ptr<const LoadedJob>> loaded_;
  std::map<std::string, std::set<std::string>> peer_blobs_;
  struct RunLog {
    uint32_t epoch = 0;
    StepLog log;
  };
  std::map<std::string, RunLog> step_logs_;
  struct RunTraffic {
    uint32_t epoch = 0;
    WorkTraffic told;
  };
  std::map<std::string, RunTraffic> work_traffic_;
  std::vector<std::pair<int64_t, std::string>> revocations_;  // when, curve key
  LogLimit wrong_messages_;                                   // of all peers
};

}  // namespace weft::broker
