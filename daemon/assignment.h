// Assignment: one stage of one job on this peer, from the broker's Prepare to the worker's end.
//
//   preparing --blobs, key, certificate; worker listens--> listening
//   listening --Connect; worker has links and weights--> ready --Start--> running
//   running --worker finished and gone, its shards stored--> finished
//   any --error, death of the worker, silence--> failed        any --Stop--> stopping --> stopped
//
// A worker that has finished lives on until its neighbours have said goodbye: they may still need
// its links. No total time bounds that, only silence.
//
// Main thread only. Blocking work (blobs, certificate, checkpoint upload) runs on the transfer
// thread, in order, and posts back.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "daemon/event_queue.h"
#include "daemon/standstill.h"
#include "daemon/task_runner.h"
#include "daemon/worker_process.h"
#include "job/worker_spec.h"
#include "net/proto/control.pb.h"

namespace weft::daemon {

struct AssignmentEnvironment {
  EventQueue* events = nullptr;
  TaskRunner* transfers = nullptr;
  const Clock* clock = nullptr;
  os::Path work_root;
  std::string worker_program;
  std::string jail = "auto";  // see base/os/jail.h
  std::string device;
  int32_t threads = 1;
  std::string listen_host, advertise_host;
  uint16_t data_port = 0;
  int32_t worker_silent_ms = 10000;
  int32_t link_timeout_ms = 15000;
  int32_t stop_grace_ms = 3000;
  std::function<void(proto::PeerMessage)> send;  // to the broker, retried
  // The blocking work (daemon/prepare_files.h), run on the transfer thread.
  using Cancelled = std::function<bool()>;
  std::function<Result<job::WorkerSpec>(const proto::Prepare&, const os::Path& dir,
                                        const Cancelled&)>
      prepare_files;
  std::function<Result<proto::CheckpointStored>(const os::Path& file, const Cancelled&)>
      upload_shard;
};

enum class AssignmentState {
  kPreparing,
  kListening,
  kReady,
  kRunning,
  kStopping,
  kFinished,
  kFailed,
  kStopped,
};
const char* state_name(AssignmentState state);
inline bool ended(AssignmentState state) {
  return state >= AssignmentState::kFinished;
}

class Assignment : public std::enable_shared_from_this<Assignment> {
 public:
  // kInvalid: a Prepare that must not be acted upon, as its fields become paths and certificates.
  static Result<std::shared_ptr<Assignment>> make(AssignmentEnvironment environment,
                                                  proto::Prepare prepare);
  ~Assignment();

  // Begins; every later step follows from events.
  void begin();
  void connect(const proto::Connect& message);
  void start();
  // The worker waits behind a step, its shard written; 0: it goes on.
  void hold(int64_t step);
  void stop(const std::string& reason);
  // Deadlines: silent worker, stop grace; forwards new log lines. Call a few times a second.
  void tick();

  AssignmentState state() const { return state_; }
  proto::AssignmentState wire_state() const;
  bool is(const std::string& job, uint32_t epoch, int32_t stage) const;

 private:
  Assignment(AssignmentEnvironment environment, proto::Prepare prepare);
  void check_silence(int64_t now);
  void spawn_worker(job::WorkerSpec spec);
  void on_event(const job::WorkerEvent& event);
  void on_exit(os::ExitStatus status);
  void store_checkpoint(int64_t step, const std::string& path);
  void fail(const Error& error);
  void end(AssignmentState state, const Error* error);
  void send_update(const char* state, const Error* error, uint16_t port = 0);
  bool forward_logs();
  std::function<bool()> transfer_cancelled() const;
  void send_alive();
  Result<os::Path> shard_path(const std::string& path) const;
  proto::PeerMessage report(const job::WorkerEvent& event) const;

  AssignmentEnvironment env_;
  proto::Prepare prepare_;
  os::Path dir_;
  AssignmentState state_ = AssignmentState::kPreparing;
  std::unique_ptr<WorkerProcess> worker_;
  int64_t worker_heard_ms_ = 0;
  Standstill standstill_;
  int64_t kill_at_ms_ = -1;
  bool worker_finished_ = false;
  uint64_t log_offset_ = 0;
  double compute_idle_s_ = 0;  // since the worker's compute thread last moved
  int64_t next_alive_ms_ = 0;
  int uploads_ = 0;  // shards on their way
  // Read by the transfer thread: nobody waits for the transfers of an assignment that has ended.
  std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace weft::daemon
