#include "daemon/assignment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "net/identity/names.h"

namespace weft::daemon {
namespace {

using job::WorkerEventKind;
using nlohmann::json;

constexpr size_t kMaxLogBytesPerTick = 64 * 1024;
constexpr int64_t kAliveMs = 5000;
constexpr int kMaxLastLogBlocks = 64;

// Protobuf strings are UTF-8; a log line may hold any byte.
std::string printable(std::string line) {
  for (char& c : line) {
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  }
  return line;
}

}  // namespace

const char* state_name(AssignmentState state) {
  constexpr std::array kNames = {"preparing", "listening", "ready",  "running",
                                 "stopping",  "finished",  "failed", "stopped"};
  return kNames.at(static_cast<size_t>(state));
}

Result<std::shared_ptr<Assignment>> Assignment::make(AssignmentEnvironment environment,
                                                     proto::Prepare prepare) {
  auto named = net::check_job_id(prepare.job());
  if (!named.ok()) return std::move(named).error().within("the broker's assignment");
  if (prepare.stage() < 0) {
    return make_error(Code::kInvalid,
                      fmt::format("the broker's assignment is of stage {}", prepare.stage()));
  }
  return std::shared_ptr<Assignment>(new Assignment(std::move(environment), std::move(prepare)));
}

Assignment::Assignment(AssignmentEnvironment environment, proto::Prepare prepare)
    : env_(std::move(environment)),
      prepare_(std::move(prepare)),
      standstill_(env_.worker_silent_ms / 2) {
  dir_ =
      env_.work_root / fmt::format("{}.{}.{}", prepare_.job(), prepare_.epoch(), prepare_.stage());
}

Assignment::~Assignment() {
  worker_.reset();
  if (auto status = os::remove_all(dir_); !status.ok()) log_warning("{}", status.error().text());
}

bool Assignment::is(const std::string& job, uint32_t epoch, int32_t stage) const {
  return prepare_.job() == job && prepare_.epoch() == epoch && prepare_.stage() == stage;
}

proto::AssignmentState Assignment::wire_state() const {
  proto::AssignmentState state;
  state.set_job(prepare_.job());
  state.set_epoch(prepare_.epoch());
  state.set_stage(prepare_.stage());
  state.set_state(state_name(state_));
  return state;
}

void Assignment::begin() {
  log_info("job {} stage {} epoch {}: preparing", prepare_.job(), prepare_.stage(),
           prepare_.epoch());
  env_.transfers->post([self = shared_from_this()] {
    auto spec = self->env_.prepare_files(self->prepare_, self->dir_, self->transfer_cancelled());
    self->env_.events->post([self, spec = std::move(spec)]() mutable {
      if (self->state_ != AssignmentState::kPreparing) return;
      if (!spec.ok()) return self->fail(spec.error());
      self->spawn_worker(std::move(*spec));
    });
  });
}

void Assignment::spawn_worker(job::WorkerSpec spec) {
  spec.device = env_.device;
  spec.threads = env_.threads;
  spec.listen_host = env_.listen_host;
  spec.listen_port = env_.data_port;
  spec.link_timeout_ms = env_.link_timeout_ms;
  const os::Path file = dir_ / "spec.json";
  if (auto status = os::write_file_atomic(file, job::worker_spec_to_json(spec).dump(), 0600);
      !status.ok()) {
    return fail(status.error());
  }
  std::weak_ptr<Assignment> weak = weak_from_this();
  EventQueue* events = env_.events;
  auto worker = WorkerProcess::start(
      env_.worker_program, file, dir_ / "worker.log",
      [weak, events](job::WorkerEvent event) {
        events->post([weak, event = std::move(event)] {
          if (auto self = weak.lock()) self->on_event(event);
        });
      },
      [weak, events](os::ExitStatus status) {
        events->post([weak, status] {
          if (auto self = weak.lock()) self->on_exit(status);
        });
      },
      env_.jail);
  if (!worker.ok()) return fail(worker.error());
  worker_ = std::move(*worker);
  worker_heard_ms_ = env_.clock->monotonic_ms();
}

std::function<bool()> Assignment::transfer_cancelled() const {
  return [cancelled = cancelled_] { return cancelled->load(); };
}

void Assignment::connect(const proto::Connect& message) {
  if (state_ != AssignmentState::kListening || !worker_) return;
  json stages = json::array();
  for (const proto::StageEndpoint& stage : message.stages()) {
    stages.push_back({{"stage", stage.stage()},
                      {"peer", stage.peer()},
                      {"host", stage.host()},
                      {"port", stage.port()}});
  }
  const json line = {{"type", "connect"}, {"stages", stages}};
  if (auto status = worker_->send_line(line.dump()); !status.ok()) fail(status.error());
}

void Assignment::start() {
  if (state_ != AssignmentState::kReady || !worker_) return;
  state_ = AssignmentState::kRunning;
  if (auto status = worker_->send_line(R"({"type":"start"})"); !status.ok()) {
    return fail(status.error());
  }
  send_update("running", nullptr);
}

void Assignment::hold(int64_t step) {
  if (state_ != AssignmentState::kRunning || !worker_) return;
  const json line = {{"type", "hold"}, {"step", step}};
  if (auto status = worker_->send_line(line.dump()); !status.ok()) fail(status.error());
}

void Assignment::stop(const std::string& reason) {
  if (ended(state_) || state_ == AssignmentState::kStopping) return;
  log_info("job {} stage {}: stopping: {}", prepare_.job(), prepare_.stage(), reason);
  state_ = AssignmentState::kStopping;
  *cancelled_ = true;
  if (!worker_) return end(AssignmentState::kStopped, nullptr);
  const json line = {{"type", "stop"}, {"reason", reason}};
  if (!worker_->send_line(line.dump()).ok()) worker_->kill_now();
  kill_at_ms_ = env_.clock->monotonic_ms() + env_.stop_grace_ms;
}

void Assignment::tick() {
  if (ended(state_)) return;
  forward_logs();
  const int64_t now = env_.clock->monotonic_ms();
  if (standstill_.note(now)) worker_heard_ms_ = now;
  if (state_ != AssignmentState::kStopping && now >= next_alive_ms_) {
    next_alive_ms_ = now + kAliveMs;
    send_alive();
  }
  if (!worker_) return;
  if (kill_at_ms_ >= 0 && now >= kill_at_ms_) {
    kill_at_ms_ = -1;
    worker_->kill_now();
  }
  if (state_ != AssignmentState::kStopping) check_silence(now);
}

void Assignment::check_silence(int64_t now) {
  const int64_t silent_ms = now - worker_heard_ms_;
  if (silent_ms <= env_.worker_silent_ms) return;
  if (worker_finished_) {
    // Its work is done and handed over: its end is an orderly one, only the goodbye is missing.
    log_warning("job {} stage {}: the finished worker said nothing for {} ms and is killed",
                prepare_.job(), prepare_.stage(), silent_ms);
    worker_heard_ms_ = now;
    worker_->kill_now();
    return;
  }
  fail(make_error(Code::kTimeout,
                  fmt::format("the worker of stage {} said nothing for {} ms (stopped or stuck) "
                              "and was killed",
                              prepare_.stage(), silent_ms),
                  "resume the job from its last checkpoint with `weft job resume`"));
}

void Assignment::on_event(const job::WorkerEvent& event) {
  if (ended(state_)) return;
  worker_heard_ms_ = env_.clock->monotonic_ms();
  switch (event.kind) {
    case WorkerEventKind::kAlive:
      compute_idle_s_ = event.seconds;
      break;
    case WorkerEventKind::kListening:
      if (state_ != AssignmentState::kPreparing) break;
      state_ = AssignmentState::kListening;
      send_update("listening", nullptr, event.port);
      break;
    case WorkerEventKind::kReady:
      if (state_ != AssignmentState::kListening) break;
      state_ = AssignmentState::kReady;
      send_update("ready", nullptr);
      break;
    case WorkerEventKind::kStep:
    case WorkerEventKind::kEval:
      env_.send(report(event));
      break;
    case WorkerEventKind::kCheckpoint:
      store_checkpoint(event.step, event.path);
      break;
    case WorkerEventKind::kFinished:
      // It still says goodbye to its neighbours and then exits by itself.
      worker_finished_ = true;
      break;
    case WorkerEventKind::kFailed: {
      Error error = make_error(code_from_name(event.error_code).value_or(Code::kInternal),
                               event.message, event.next);
      fail(error);
      break;
    }
  }
}

void Assignment::on_exit(os::ExitStatus status) {
  if (ended(state_)) return;
  if (state_ == AssignmentState::kStopping) return end(AssignmentState::kStopped, nullptr);
  if (worker_finished_) {
    // Behind the shards on the same thread: finished means that every shard is off this peer.
    env_.transfers->post([self = shared_from_this()] {
      self->env_.events->post([self] { self->end(AssignmentState::kFinished, nullptr); });
    });
    return;
  }
  fail(make_error(Code::kUnavailable,
                  fmt::format("the worker of stage {} {}", prepare_.stage(), status.text()),
                  "see `weft job logs`; resume from the last checkpoint with `weft job resume`"));
}

// The broker fails a job that makes no progress: a long step, evaluation or transfer is progress.
// Transfers need no clock here: they fail by themselves when nothing moves (TransferOptions).
void Assignment::send_alive() {
  job::WorkerEvent event;
  event.kind = WorkerEventKind::kAlive;
  const bool fetching = state_ == AssignmentState::kPreparing && !worker_;
  event.seconds = fetching || uploads_ > 0 ? 0 : compute_idle_s_;
  env_.send(report(event));
}

// What a worker says is checked: only a file of its own folder is read and removed.
Result<os::Path> Assignment::shard_path(const std::string& path) const {
  const os::Path file(path);
  if (file.parent_path() == dir_ &&
      std::filesystem::is_regular_file(std::filesystem::symlink_status(file))) {
    return file;
  }
  return make_error(Code::kDenied,
                    fmt::format("the worker named a checkpoint outside its folder: {}", path));
}

void Assignment::store_checkpoint(int64_t step, const std::string& path) {
  auto file = shard_path(path);
  if (!file.ok()) return fail(file.error());
  ++uploads_;
  env_.transfers->post([self = shared_from_this(), step, path] {
    auto stored = self->env_.upload_shard(path, self->transfer_cancelled());
    auto removed = os::remove_all(path);
    self->env_.events->post([self, step, stored = std::move(stored)]() mutable {
      --self->uploads_;
      if (!stored.ok()) {
        return self->fail(std::move(stored).error().within(
            fmt::format("the checkpoint shard of step {} could not be stored", step)));
      }
      stored->set_job(self->prepare_.job());
      stored->set_epoch(self->prepare_.epoch());
      stored->set_stage(self->prepare_.stage());
      stored->set_step(step);
      proto::PeerMessage message;
      *message.mutable_checkpoint() = std::move(*stored);
      self->env_.send(std::move(message));
    });
  });
}

void Assignment::fail(const Error& error) {
  if (ended(state_)) return;
  if (state_ == AssignmentState::kStopping) return end(AssignmentState::kStopped, nullptr);
  log_error("job {} stage {}: {}", prepare_.job(), prepare_.stage(), error.text());
  end(AssignmentState::kFailed, &error);
}

void Assignment::end(AssignmentState state, const Error* error) {
  if (ended(state_)) return;
  for (int i = 0; i < kMaxLastLogBlocks && forward_logs(); ++i) {
  }
  state_ = state;
  *cancelled_ = true;
  worker_.reset();
  send_update(state_name(state), error);
}

void Assignment::send_update(const char* state, const Error* error, uint16_t port) {
  proto::PeerMessage message;
  proto::AssignmentUpdate& update = *message.mutable_update();
  update.set_job(prepare_.job());
  update.set_epoch(prepare_.epoch());
  update.set_stage(prepare_.stage());
  update.set_state(state);
  if (port != 0) {
    update.set_advertise_host(env_.advertise_host);
    update.set_port(port);
  }
  if (error != nullptr) {
    update.mutable_error()->set_code(code_name(error->code));
    update.mutable_error()->set_message(error->message);
    update.mutable_error()->set_next(error->next);
  }
  env_.send(std::move(message));
}

proto::PeerMessage Assignment::report(const job::WorkerEvent& event) const {
  proto::PeerMessage message;
  proto::WorkerReport& report = *message.mutable_report();
  report.set_job(prepare_.job());
  report.set_epoch(prepare_.epoch());
  report.set_stage(prepare_.stage());
  report.set_event_json(job::event_to_json(event).dump());
  return message;
}

// False when nothing new was there.
bool Assignment::forward_logs() {
  auto text = os::read_file_from(dir_ / "worker.log", log_offset_, kMaxLogBytesPerTick);
  if (!text.ok() || text->empty()) return false;
  size_t end = text->rfind('\n');
  if (end == std::string::npos) {
    if (text->size() < kMaxLogBytesPerTick) return false;  // a line still being written
    end = text->size();                                    // a line without end: cut it
  }
  log_offset_ += std::min(end + 1, text->size());
  proto::PeerMessage message;
  proto::LogLines& logs = *message.mutable_logs();
  logs.set_job(prepare_.job());
  logs.set_stage(prepare_.stage());
  for (size_t begin = 0; begin < end;) {
    const size_t stop = std::min(text->find('\n', begin), end);
    logs.add_lines(printable(text->substr(begin, stop - begin)));
    begin = stop + 1;
  }
  env_.send(std::move(message));
  return true;
}

}  // namespace weft::daemon
