#include "daemon/service.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/log.h"
#include "base/os/jail.h"
#include "base/os/notify.h"
#include "base/os/process.h"
#include "base/os/signals.h"
#include "base/version.h"
#include "daemon/assignment.h"
#include "daemon/blob_cache.h"
#include "daemon/event_queue.h"
#include "daemon/free_memory.h"
#include "daemon/host_facts.h"
#include "daemon/measurement.h"
#include "daemon/peer_server.h"
#include "daemon/prepare_files.h"
#include "daemon/probing.h"
#include "net/control/control.h"

namespace weft::daemon {
namespace {

constexpr int64_t kTickMs = 250;
constexpr int32_t kMessageTtlMs = 120000;
constexpr int32_t kHelloTtlMs = 10000;
constexpr int64_t kLeaveGraceMs = 1000;
constexpr int64_t kStandstillMs = 5000;  // ticks are late by far less, even on a busy machine

class ServiceImpl final : public Service {
 public:
  ServiceImpl(const Config& config, Membership member, net::BlobStore blobs)
      : config_(config),
        member_(std::move(member)),
        blobs_(std::move(blobs)),
        signals_([this](int signal) { events_.post([this, signal] { on_signal(signal); }); }),
        transfers_("weft-transfer") {}

  Status begin() {
    WEFT_TRY(peer_server_,
             serve_peers(blobs_, desk_, member_, revoked_, config_.text("listen_host"),
                         static_cast<uint16_t>(config_.integer("blob_port"))));
    facts_ = host_capabilities(config_.text("device"), config_.text("name"));
    std::string advertise = config_.text("advertise_host");
    if (advertise.empty()) advertise = route_address(member_.control_host, member_.control_port);
    facts_.set_advertise_host(advertise);
    facts_.set_blob_port(peer_server_->port());
    facts_.set_version(kVersion);
    measurement_.emplace(measurement_options(), events_, clock_,
                         [this](const job::DeviceProfile&) { send_profile(); });
    free_memory_.emplace(
        facts_.free_memory_bytes(),
        [device = facts_.device()] { return free_memory_bytes(device); }, events_, clock_);
    probing_.emplace(member_, events_, [this](proto::ProbeReport report) {
      proto::PeerMessage message;
      *message.mutable_probe() = std::move(report);
      send(std::move(message));
    });
    net::ControlClientOptions options;
    options.host = member_.control_host;
    options.port = member_.control_port;
    options.server_key_z85 = member_.control_key_z85;
    options.keys = member_.curve;
    WEFT_TRY(control_, net::ControlClient::start(options, [this](const proto::BrokerMessage& m) {
               events_.post([this, m] { on_message(m); });
             }));
    return {};
  }

  Status run() override {
    send_hello();  // again whenever the broker turns out to be another one, or asks for it
    log_info("peer {} on {} ({} cores, {}), advertised as {}", member_.peer, facts_.host(),
             facts_.cores(), facts_.device(), facts_.advertise_host());
    os::notify_service_manager("READY=1\nSTATUS=idle");
    while (!leaving_) {
      events_.run_for(kTickMs);
      tick();
    }
    leave();
    return verdict_;
  }

 private:
  void tick() {
    const int64_t now = clock_.monotonic_ms();
    if (assignment_) {
      assignment_->tick();
      if (ended(assignment_->state())) finish_assignment();
    }
    if (now >= next_heartbeat_ms_) {
      next_heartbeat_ms_ = now + heartbeat_ms_;
      send_heartbeat();
    }
    check_broker();
    measurement_->tick(welcomed_ && free() && !probing_->measuring() && !desk_.in_use());
    free_memory_->tick(free_to_tell());
    // Whoever measures itself or others is measured by nobody.
    if (free() && !measurement_->measuring() && !probing_->measuring()) {
      desk_.open();
    } else {
      desk_.close();
    }
    if (draining_ && !assignment_) leaving_ = true;
  }

  // What this machine's memory holds is not this daemon's.
  bool free_to_tell() const { return !assignment_ && !measurement_->measuring(); }
  bool free() const { return !assignment_ && !draining_ && !leaving_; }

  // Without a broker nobody may be told to stop us: a worker left alone ends after a stated time.
  // Time in which this machine slept is not held against the broker, which speaks first when it
  // has given us up.
  void check_broker() {
    const int64_t now = clock_.monotonic_ms();
    if (standstill_.note(now)) awake_since_ms_ = now;
    const int64_t silent_ms = std::min(control_->ms_since_broker_heard(), now - awake_since_ms_);
    if (assignment_ && silent_ms > broker_timeout_ms_) {
      assignment_->stop(fmt::format("the broker has been silent for {} ms", silent_ms));
    }
  }

  void send(proto::PeerMessage message, int32_t ttl_ms = kMessageTtlMs) {
    control_->send(std::move(message), ttl_ms);
  }

  void send_hello() {
    proto::PeerMessage message;
    *message.mutable_hello()->mutable_capabilities() = facts_;
    message.mutable_hello()->mutable_capabilities()->set_free_memory_bytes(free_memory_told());
    if (assignment_) *message.mutable_hello()->add_assignments() = assignment_->wire_state();
    send(std::move(message), kHelloTtlMs);
    announce_blobs();
  }

  void send_heartbeat() {
    proto::PeerMessage message;
    proto::Heartbeat& heartbeat = *message.mutable_heartbeat();
    heartbeat.set_sequence(++heartbeat_sequence_);
    heartbeat.set_draining(draining_);
    heartbeat.set_free_memory_bytes(free_memory_told());
    if (assignment_) *heartbeat.add_assignments() = assignment_->wire_state();
    send(std::move(message), heartbeat_ms_);
  }

  uint64_t free_memory_told() const { return free_to_tell() ? free_memory_->bytes() : 0; }

  void send_profile() {
    if (!welcomed_ || !measurement_ || !measurement_->profile()) return;
    proto::PeerMessage message;
    message.mutable_profile()->set_profile_json(
        job::profile_to_json(*measurement_->profile()).dump());
    send(std::move(message));
  }

  MeasurementOptions measurement_options() const {
    MeasurementOptions options;
    options.enabled = config_.boolean("measure");
    options.folder = config_.text("profile_dir");
    if (options.folder.empty()) options.folder = os::Path(config_.text("state_dir")) / "profiles";
    options.worker_program = worker_program();
    options.jail = config_.text("jail");
    options.device = facts_.device();
    options.device_name = options.device == "cpu" ? os::processor_name() : facts_.device_name();
    options.threads = threads();
    return options;
  }

  std::string worker_program() const {
    const std::string named = config_.text("worker");
    return named.empty() ? (os::program_dir() / "weft-worker").string() : named;
  }

  int32_t threads() const {
    const auto asked = static_cast<int32_t>(config_.integer("threads"));
    return asked > 0 ? asked : os::hardware_cores();
  }

  void announce_blobs() {
    proto::PeerMessage message;
    for (std::string& name : blobs_.list()) message.mutable_blobs()->add_sha256(std::move(name));
    send(std::move(message));
  }

  void on_message(const proto::BrokerMessage& message) {
    // A broker that restarted knows our key, not our state.
    if (broker_session_ != message.session()) {
      broker_session_ = message.session();
      send_hello();
    }
    switch (message.body_case()) {
      case proto::BrokerMessage::kWelcome:
        if (message.welcome().heartbeat_ms() > 0) {
          heartbeat_ms_ = static_cast<int32_t>(message.welcome().heartbeat_ms());
        }
        if (message.welcome().broker_timeout_ms() > 0) {
          broker_timeout_ms_ = static_cast<int32_t>(message.welcome().broker_timeout_ms());
        }
        revoked_->replace({message.welcome().revoked().begin(), message.welcome().revoked().end()});
        if (message.welcome().hello_wanted()) send_hello();
        welcome(message.session());
        break;
      case proto::BrokerMessage::kPrepare:
        prepare(message.prepare());
        break;
      case proto::BrokerMessage::kConnect:
        if (holds(message.connect())) assignment_->connect(message.connect());
        break;
      case proto::BrokerMessage::kStart:
        if (holds(message.start())) assignment_->start();
        break;
      case proto::BrokerMessage::kHold:
        if (holds(message.hold())) assignment_->hold(message.hold().step());
        break;
      case proto::BrokerMessage::kStop:
        if (holds(message.stop())) {
          assignment_->stop(message.stop().reason());
        } else {
          answer_stopped(message.stop());
        }
        break;
      case proto::BrokerMessage::kProbe:
        probe(message.probe());
        break;
      case proto::BrokerMessage::kMeasure:
        measurement_->again(message.measure().reason());
        break;
      case proto::BrokerMessage::kDrain:
        drain("the broker asked for it");
        break;
      case proto::BrokerMessage::kRemoved:
        verdict_ =
            make_error(Code::kDenied, "the broker removed this peer: " + message.removed().reason(),
                       "join again with a new address from `weft peer invite`");
        stop_now("removed by the broker");
        break;
      default:
        break;
    }
  }

  // The broker has our Hello. A broker that started anew hears the profile again.
  void welcome(uint64_t session) {
    if (welcomed_ && welcomed_session_ == session) return;
    welcomed_ = true;
    welcomed_session_ = session;
    send_profile();
  }

  template <typename Message>
  bool holds(const Message& message) const {
    return assignment_ && assignment_->is(message.job(), message.epoch(), message.stage());
  }

  // The broker waits for an answer even where nothing runs any more.
  void answer_stopped(const proto::Stop& stop) {
    proto::PeerMessage message;
    proto::AssignmentUpdate& update = *message.mutable_update();
    update.set_job(stop.job());
    update.set_epoch(stop.epoch());
    update.set_stage(stop.stage());
    update.set_state("stopped");
    send(std::move(message));
  }

  void probe(const proto::Probe& asked) {
    if (free() && !measurement_->measuring() && !desk_.in_use()) return probing_->begin(asked);
    proto::PeerMessage message;
    *message.mutable_probe() = busy_report(asked.task());
    send(std::move(message));
  }

  void prepare(const proto::Prepare& message) {
    if (holds(message)) return;  // repeated
    if (draining_ || leaving_) {
      return refuse(message,
                    make_error(Code::kUnavailable,
                               fmt::format("peer {} {} and takes no new stage", member_.peer,
                                           leaving_ ? "is leaving" : "is draining"),
                               "resume the job: it will be given to other peers"));
    }
    auto assignment = Assignment::make(environment(), message);
    if (!assignment.ok()) return refuse(message, assignment.error());
    if (assignment_) {
      log_warning("a new assignment replaces job {}", assignment_->wire_state().job());
      assignment_->stop("a new assignment replaces it");
    }
    put_off_measuring(fmt::format("job {} needs the machine", message.job()));
    assignment_ = std::move(*assignment);
    assignment_->begin();
  }

  void put_off_measuring(const std::string& why) {
    desk_.close();
    measurement_->interrupt(why);
    probing_->interrupt(why);
  }

  void refuse(const proto::Prepare& prepare, const Error& error) {
    log_warning("assignment refused: {}", error.text());
    proto::PeerMessage message;
    proto::AssignmentUpdate& update = *message.mutable_update();
    update.set_job(prepare.job());
    update.set_epoch(prepare.epoch());
    update.set_stage(prepare.stage());
    update.set_state("failed");
    update.mutable_error()->set_code(code_name(error.code));
    update.mutable_error()->set_message(error.message);
    update.mutable_error()->set_next(error.next);
    send(std::move(message));
  }

  AssignmentEnvironment environment() {
    AssignmentEnvironment env;
    env.events = &events_;
    env.transfers = &transfers_;
    env.clock = &clock_;
    env.work_root = os::Path(config_.text("state_dir")) / "work";
    env.worker_program = worker_program();
    env.jail = config_.text("jail");
    env.device = facts_.device();
    env.threads = threads();
    env.listen_host = config_.text("listen_host");
    env.advertise_host = facts_.advertise_host();
    env.data_port = static_cast<uint16_t>(config_.integer("data_port"));
    env.worker_silent_ms = static_cast<int32_t>(config_.integer("worker_silent_ms"));
    env.link_timeout_ms = static_cast<int32_t>(config_.integer("link_timeout_ms"));
    env.stop_grace_ms = static_cast<int32_t>(config_.integer("stop_grace_ms"));
    env.send = [this](proto::PeerMessage message) { send(std::move(message)); };
    // On the transfer thread, which ends before what they use: member_ never changes.
    env.prepare_files = [this](const proto::Prepare& prepare, const os::Path& dir,
                               const AssignmentEnvironment::Cancelled& cancelled) {
      return prepare_files(member_, blobs_, prepare, dir, cancelled);
    };
    env.upload_shard = [this](const os::Path& file,
                              const AssignmentEnvironment::Cancelled& cancelled) {
      return upload_shard(member_, file, cancelled);
    };
    return env;
  }

  void finish_assignment() {
    assignment_.reset();
    transfers_.post([this] {
      trim_cache(blobs_, static_cast<uint64_t>(config_.integer("cache_bytes")));
      events_.post([this] { announce_blobs(); });
    });
  }

  void on_signal(int signal) {
    if (signal == SIGHUP) return;
    if (signal == SIGTERM && !draining_) return drain("SIGTERM");
    stop_now(signal == SIGINT ? "SIGINT" : "second SIGTERM");
  }

  void drain(const char* why) {
    if (draining_) return;
    log_info("draining: {}", why);
    os::notify_service_manager("STOPPING=1\nSTATUS=draining");
    put_off_measuring("the peer drains");
    draining_ = true;
    next_heartbeat_ms_ = 0;
  }

  void stop_now(const std::string& why) {
    log_info("leaving: {}", why);
    if (assignment_) assignment_->stop("the peer leaves: " + why);
    leaving_ = true;
  }

  void leave() {
    put_off_measuring("the peer leaves");
    const int64_t deadline =
        clock_.monotonic_ms() + config_.integer("stop_grace_ms") + kLeaveGraceMs;
    while (assignment_ && clock_.monotonic_ms() < deadline) {
      events_.run_for(50);
      assignment_->tick();
      if (ended(assignment_->state())) assignment_.reset();
    }
    assignment_.reset();
    proto::PeerMessage message;
    message.mutable_leaving()->set_reason("the daemon ends");
    send(std::move(message), static_cast<int32_t>(kLeaveGraceMs));
    events_.run_for(200);
    control_->stop();
    peer_server_->stop();
  }

  const Config& config_;
  Membership member_;
  net::BlobStore blobs_;
  SystemClock clock_;
  EventQueue events_;
  os::SignalWatcher signals_;  // before every thread: they inherit the blocked signals
  TaskRunner transfers_;
  proto::Capabilities facts_;
  std::shared_ptr<RevokedPeers> revoked_ = std::make_shared<RevokedPeers>();
  net::ProbeDesk desk_;
  std::unique_ptr<net::HttpServer> peer_server_;
  std::unique_ptr<net::ControlClient> control_;
  std::shared_ptr<Assignment> assignment_;
  std::optional<Measurement> measurement_;
  std::optional<Probing> probing_;
  std::optional<FreeMemory> free_memory_;
  bool welcomed_ = false;
  uint64_t welcomed_session_ = 0;
  uint64_t broker_session_ = 0;
  uint64_t heartbeat_sequence_ = 0;
  int64_t next_heartbeat_ms_ = 0;
  int32_t heartbeat_ms_ = 1000;
  int32_t broker_timeout_ms_ = 30000;
  Standstill standstill_{kStandstillMs};
  int64_t awake_since_ms_ = 0;
  bool draining_ = false;
  bool leaving_ = false;
  Status verdict_;
};

}  // namespace

Result<std::unique_ptr<Service>> Service::create(const Config& config, Membership member) {
  const os::Path state = config.text("state_dir");
  if (!os::jail_mode_from_name(config.text("jail"))) {
    return make_error(Code::kInvalid, fmt::format("the setting jail is {}", config.text("jail")),
                      "set it to auto, required or off");
  }
  // Work of a previous life: its workers died with it.
  WEFT_TRY_STATUS(os::remove_all(state / "work"));
  WEFT_TRY(net::BlobStore blobs, net::BlobStore::open(state / "blobs"));
  auto service = std::make_unique<ServiceImpl>(config, std::move(member), std::move(blobs));
  WEFT_TRY_STATUS(service->begin());
  return std::unique_ptr<Service>(std::move(service));
}

}  // namespace weft::daemon
