#include "broker/messages.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/hash.h"
#include "job/json_read.h"

namespace weft::broker {
namespace {

constexpr int kMaxAssignments = 64;
constexpr int kMaxTensors = 1 << 20;
constexpr size_t kMaxText = 4096;

std::string bounded(const std::string& text) {
  return text.substr(0, kMaxText);
}

std::vector<ReportedAssignment> assignments_of(
    const google::protobuf::RepeatedPtrField<proto::AssignmentState>& list) {
  std::vector<ReportedAssignment> result;
  for (const proto::AssignmentState& entry : list) {
    if (result.size() == kMaxAssignments) break;
    result.push_back({bounded(entry.job()), entry.epoch(), entry.stage(), bounded(entry.state())});
  }
  return result;
}

Capabilities capabilities_of(const proto::Capabilities& c) {
  const auto port = c.blob_port() <= 65535 ? static_cast<uint16_t>(c.blob_port()) : uint16_t{0};
  return Capabilities{bounded(c.host()),
                      c.cores(),
                      c.memory_bytes(),
                      bounded(c.device()),
                      bounded(c.device_name()),
                      c.device_memory_bytes(),
                      bounded(c.advertise_host()),
                      port,
                      bounded(c.version())};
}

StageUpdate update_of(const std::string& peer, const proto::AssignmentUpdate& update) {
  StageUpdate event;
  event.peer = peer;
  event.job = bounded(update.job());
  event.epoch = update.epoch();
  event.stage = update.stage();
  event.state = bounded(update.state());
  event.host = bounded(update.advertise_host());
  event.port = update.port() <= 65535 ? static_cast<uint16_t>(update.port()) : uint16_t{0};
  event.failure = Failure{bounded(update.error().code()), bounded(update.error().message()),
                          bounded(update.error().next()), update.stage(), peer};
  return event;
}

std::optional<double> finite(double value) {
  return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

}  // namespace

std::optional<Event> event_of(const std::string& peer, const proto::PeerMessage& message) {
  switch (message.body_case()) {
    case proto::PeerMessage::kHello:
      return PeerHello{peer, message.session(), capabilities_of(message.hello().capabilities()),
                       assignments_of(message.hello().assignments())};
    case proto::PeerMessage::kHeartbeat:
      return PeerHeartbeat{peer, message.session(), message.heartbeat().sequence(),
                           message.heartbeat().draining(),
                           assignments_of(message.heartbeat().assignments())};
    case proto::PeerMessage::kUpdate:
      return update_of(peer, message.update());
    case proto::PeerMessage::kLeaving:
      return PeerLeaving{peer, bounded(message.leaving().reason())};
    case proto::PeerMessage::kCheckpoint: {
      const proto::CheckpointStored& stored = message.checkpoint();
      if (!is_sha256_hex(stored.sha256()) || stored.tensors_size() > kMaxTensors) {
        return std::nullopt;
      }
      ShardStored event{peer,          bounded(stored.job()), stored.epoch(), stored.stage(),
                        stored.step(), stored.sha256(),       stored.bytes(), {}};
      for (const std::string& name : stored.tensors()) event.tensors.push_back(bounded(name));
      return event;
    }
    default:
      return std::nullopt;
  }
}

Result<Event> event_of(const std::string& peer, const proto::MeasuredProfile& measured) {
  if (measured.profile_json().size() > job::kMaxProfileBytes) {
    return make_error(Code::kTooLarge,
                      fmt::format("the profile has {} bytes, {} are read",
                                  measured.profile_json().size(), job::kMaxProfileBytes));
  }
  WEFT_TRY(const nlohmann::json json, job::parse_json(measured.profile_json(), "the profile"));
  WEFT_TRY(job::DeviceProfile profile, job::profile_from_json(json));
  return Event(PeerMeasured{peer, std::make_shared<const job::DeviceProfile>(std::move(profile))});
}

std::optional<Event> event_of(const std::string& peer, const proto::WorkerReport& report,
                              const job::WorkerEvent& event) {
  StageReport result;
  switch (event.kind) {
    case job::WorkerEventKind::kStep:
      result.kind = StageReport::Kind::kStep;
      break;
    case job::WorkerEventKind::kEval:
      result.kind = StageReport::Kind::kEval;
      if (event.accuracy >= 0) result.accuracy = finite(event.accuracy);
      break;
    case job::WorkerEventKind::kAlive:
      result.kind = StageReport::Kind::kAlive;
      break;
    default:
      return std::nullopt;
  }
  result.peer = peer;
  result.job = bounded(report.job());
  result.epoch = report.epoch();
  result.stage = report.stage();
  result.step = event.step;
  result.loss = finite(event.loss);
  result.seconds = std::isfinite(event.seconds) ? event.seconds : 0;
  const double busy = std::isfinite(event.busy) ? std::clamp(event.busy, 0.0, 1.0) : 0;
  result.compute_s = result.seconds * busy;
  return result;
}

}  // namespace weft::broker
