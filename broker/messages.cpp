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
// Of a probe's answer. Rates below that of a telegraph or above that of memory are no link's.
constexpr int kMaxProbedLinks = 2, kMaxTrains = 64;
constexpr double kLeastComputeS = 1e-9, kMostComputeS = 1e9;  // of a step
constexpr double kMaxProbeS = 600, kMaxProbeBytes = 1e12, kMaxProbeRate = 1e12;

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

Status check_number(double value, double most, const char* what) {
  if (std::isfinite(value) && value >= 0 && value <= most) return {};
  return make_error(Code::kInvalid,
                    fmt::format("{} is {}, it must be from 0 to {}", what, value, most));
}

Result<ProbedLink> probed_link(const proto::ProbedLink& link) {
  if (link.trains_size() > kMaxTrains) {
    return make_error(Code::kTooLarge, fmt::format("a probe of {} trains, {} are read",
                                                   link.trains_size(), kMaxTrains));
  }
  WEFT_TRY_STATUS(check_number(link.round_trip_s(), kMaxProbeS, "the round trip"));
  WEFT_TRY_STATUS(check_number(link.alone_bytes_s(), kMaxProbeRate, "the rate alone"));
  WEFT_TRY_STATUS(check_number(link.together_bytes_s(), kMaxProbeRate, "the rate together"));
  ProbedLink result{bounded(link.target()),
                    link.round_trip_s(),
                    {},
                    link.alone_bytes_s(),
                    link.together_bytes_s()};
  for (const proto::ProbeTrain& train : link.trains()) {
    WEFT_TRY_STATUS(check_number(train.bytes(), kMaxProbeBytes, "a train's bytes"));
    WEFT_TRY_STATUS(check_number(train.seconds(), kMaxProbeS, "a train's seconds"));
    result.trains.push_back({train.bytes(), train.seconds()});
  }
  return result;
}

}  // namespace

std::optional<Event> event_of(const std::string& peer, const proto::PeerMessage& message) {
  switch (message.body_case()) {
    case proto::PeerMessage::kHello:
      return PeerHello{peer, message.session(), capabilities_of(message.hello().capabilities()),
                       assignments_of(message.hello().assignments()),
                       message.hello().capabilities().free_memory_bytes()};
    case proto::PeerMessage::kHeartbeat:
      return PeerHeartbeat{peer,
                           message.session(),
                           message.heartbeat().sequence(),
                           message.heartbeat().draining(),
                           assignments_of(message.heartbeat().assignments()),
                           message.heartbeat().free_memory_bytes()};
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
  const bool told = event.compute_s >= kLeastComputeS && event.compute_s <= kMostComputeS;
  result.compute_s = told ? event.compute_s : 0;
  return result;
}

Result<proto::Probe> probe_message(const ProbeTask& task,
                                   const std::map<std::string, Peer>& peers) {
  proto::Probe probe;
  probe.set_task(task.id);
  for (const std::string& id : task.targets) {
    const auto found = peers.find(id);
    if (found == peers.end() || found->second.capabilities.blob_port == 0 ||
        found->second.capabilities.advertise_host.empty()) {
      return make_error(Code::kUnavailable, fmt::format("peer {} cannot be dialled", id));
    }
    proto::PeerEndpoint& target = *probe.add_targets();
    target.set_peer(id);
    target.set_host(found->second.capabilities.advertise_host);
    target.set_port(found->second.capabilities.blob_port);
  }
  probe.set_receive(task.receive);
  probe.set_max_bytes(task.max_bytes);
  probe.set_max_ms(static_cast<uint32_t>(std::clamp<int64_t>(task.max_ms, 0, UINT32_MAX)));
  return probe;
}

Result<ProbeResult> probe_result(const proto::ProbeReport& report) {
  ProbeResult result;
  result.task = report.task();
  if (report.outcome() == "measured") {
    result.outcome = ProbeResult::Outcome::kMeasured;
  } else if (report.outcome() == "busy") {
    result.outcome = ProbeResult::Outcome::kBusy;
  } else if (report.outcome() == "unreachable") {
    result.outcome = ProbeResult::Outcome::kUnreachable;
  } else {
    return make_error(Code::kInvalid, fmt::format("a probe does not end as \"{}\"",
                                                  report.outcome().substr(0, 64)));
  }
  result.unreachable = bounded(report.unreachable());
  if (report.links_size() > kMaxProbedLinks) {
    return make_error(Code::kTooLarge, fmt::format("a probe of {} links, {} are asked for at most",
                                                   report.links_size(), kMaxProbedLinks));
  }
  for (const proto::ProbedLink& link : report.links()) {
    WEFT_TRY(ProbedLink probed, probed_link(link));
    result.links.push_back(std::move(probed));
  }
  return result;
}

}  // namespace weft::broker
