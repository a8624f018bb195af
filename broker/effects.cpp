#include "broker/effects.h"

#include <fmt/format.h>

#include "base/log.h"
#include "base/version.h"
#include "broker/coordinator/record.h"
#include "broker/worker_spec_builder.h"

namespace weft::broker {
namespace {

constexpr size_t kMaxSourcesPerBlob = 4;
// Removed must still reach a peer before its key stops being listed.
constexpr int64_t kRevokeAfterMs = 1500;

template <typename Message, typename Effect>
void address(Message& message, const Effect& effect) {
  message.set_job(effect.job);
  message.set_epoch(effect.epoch);
  message.set_stage(effect.stage);
}

}  // namespace

Status EffectRunner::run(const std::vector<Effect>& effects, const std::function<Status()>& also) {
  const Status stored = core_.store_.batch([&]() -> Status {
    if (also) WEFT_TRY_STATUS(also());
    for (const Effect& effect : effects) {
      WEFT_TRY_STATUS(std::visit([&](const auto& body) { return store(body); }, effect));
    }
    return {};
  });
  core_.note(stored);
  for (const Effect& effect : effects) {
    std::visit([&](const auto& body) { act(body); }, effect);
  }
  if (stored.ok()) collect_orphan_blobs();
  return stored;
}

// ---- store -------------------------------------------------------------------------------------

Status EffectRunner::store(const PersistPeer& effect) {
  const auto found = core_.state_.peers.find(effect.peer);
  if (found == core_.state_.peers.end()) return {};
  return core_.store_.put_peer(effect.peer, peer_to_record(found->second));
}

Status EffectRunner::store(const ErasePeer& effect) {
  return core_.store_.remove_peer(effect.peer);
}

Status EffectRunner::store(const PersistJob& effect) {
  const auto found = core_.state_.jobs.find(effect.job);
  // The state after the event is what counts, so once per event is enough.
  if (found == core_.state_.jobs.end() || !persisted_jobs_.insert(effect.job).second) return {};
  return core_.store_.put_job(effect.job, job_to_record(found->second));
}

Status EffectRunner::store(const EraseJob& effect) {
  WEFT_TRY_STATUS(collect_orphans(effect.job));
  return core_.store_.remove_job(effect.job);
}

Status EffectRunner::store(const EmitEvent& effect) {
  WEFT_TRY([[maybe_unused]] const int64_t seq,
           core_.store_.add_event(
               effect.job, EventRow{0, core_.now_ms(), effect.kind, effect.message, effect.data}));
  return {};
}

Status EffectRunner::store(const Decided& effect) {
  return core_.store_.add_decision(effect.job,
                                   DecisionRow{core_.now_ms(), effect.decision, effect.reason});
}

Status EffectRunner::put_checkpoint(const std::string& job, int64_t step) {
  const auto found = core_.state_.jobs.find(job);
  if (found == core_.state_.jobs.end()) return {};
  const auto checkpoint = found->second.checkpoints.find(step);
  if (checkpoint == found->second.checkpoints.end()) return {};
  return core_.store_.put_checkpoint(job, step, checkpoint_to_record(checkpoint->second));
}

Status EffectRunner::store(const SaveCheckpoint& effect) {
  return put_checkpoint(effect.job, effect.step);
}

Status EffectRunner::store(const CommitCheckpoint& effect) {
  return put_checkpoint(effect.job, effect.step);
}

Status EffectRunner::store(const DropCheckpoint& effect) {
  orphans_.insert(effect.blobs.begin(), effect.blobs.end());
  return core_.store_.remove_checkpoint(effect.job, effect.step);
}

Status EffectRunner::store(const TruncateMetrics& effect) {
  core_.step_logs_.erase(effect.job);
  return core_.store_.truncate_metrics(effect.job, effect.after_step);
}

Status EffectRunner::store(const Revoke&) {
  nlohmann::json revoked = nlohmann::json::object();
  for (const auto& [peer, removed_ms] : core_.state_.revoked) revoked[peer] = removed_ms;
  return core_.store_.set_meta("revoked_peers", revoked.dump());
}

Status EffectRunner::collect_orphans(const std::string& job) {
  if (const auto known = core_.known_jobs_.find(job); known != core_.known_jobs_.end()) {
    orphans_.insert(known->second.blobs.begin(), known->second.blobs.end());
  }
  WEFT_TRY(const auto checkpoints, core_.store_.checkpoints(job));
  for (const auto& record : checkpoints) {
    WEFT_TRY(const Checkpoint checkpoint, checkpoint_from_record(record));
    for (const auto& [stage, shard] : checkpoint.shards) orphans_.insert(shard.sha256);
  }
  return {};
}

// Blobs no remaining job names are removed from the disk.
void EffectRunner::collect_orphan_blobs() {
  for (const std::string& name : orphans_) core_.remove_blob(name);
}

// ---- world -------------------------------------------------------------------------------------

void EffectRunner::act(const SendWelcome& effect) {
  proto::BrokerMessage message;
  message.mutable_welcome()->set_broker_version(kVersion);
  message.mutable_welcome()->set_heartbeat_ms(core_.options_.heartbeat_ms);
  message.mutable_welcome()->set_broker_timeout_ms(core_.options_.broker_timeout_ms);
  message.mutable_welcome()->set_hello_wanted(effect.hello_wanted);
  for (const auto& [peer, removed_ms] : core_.state_.revoked) {
    message.mutable_welcome()->add_revoked(peer);
  }
  core_.probe_.message_sent("welcome");
  core_.send(effect.peer, std::move(message));
}

Result<proto::Prepare> EffectRunner::prepare_of(const SendPrepare& effect) {
  const auto found = core_.state_.jobs.find(effect.job);
  if (found == core_.state_.jobs.end()) {
    return make_error(Code::kInternal, fmt::format("job {} vanished", effect.job));
  }
  WEFT_TRY(const auto known, core_.loaded(effect.job));
  WEFT_TRY(job::WorkerSpec spec,
           build_worker_spec(found->second, known->submission, known->graphs, effect.stage));
  proto::Prepare prepare;
  address(prepare, effect);
  prepare.set_worker_spec_json(job::worker_spec_to_json(spec).dump());
  for (const job::BlobRef& blob : blobs_of(spec)) {
    proto::BlobSource source;
    source.set_sha256(blob.sha256);
    for (const auto& [id, names] : core_.peer_blobs_) {
      if (id == effect.peer || !names.contains(blob.sha256)) continue;
      const auto holder = core_.state_.peers.find(id);
      if (holder == core_.state_.peers.end() || holder->second.phase == PeerPhase::kGone ||
          holder->second.phase == PeerPhase::kSuspect ||
          holder->second.capabilities.blob_port == 0) {
        continue;
      }
      proto::PeerEndpoint& endpoint = *source.add_peers();
      endpoint.set_peer(id);
      endpoint.set_host(holder->second.capabilities.advertise_host);
      endpoint.set_port(holder->second.capabilities.blob_port);
      if (static_cast<size_t>(source.peers_size()) == kMaxSourcesPerBlob) break;
    }
    if (source.peers_size() > 0) *prepare.add_sources() = std::move(source);
  }
  return prepare;
}

void EffectRunner::act(const SendPrepare& effect) {
  auto prepare = prepare_of(effect);
  if (!prepare.ok()) {
    // The stage cannot be described: it fails like one that failed on its peer.
    core_.pending_.push_back(
        StageUpdate{effect.peer, effect.job, effect.epoch, effect.stage, "failed", "", 0,
                    Failure{code_name(prepare.error().code),
                            "the broker cannot describe the assignment: " + prepare.error().message,
                            prepare.error().next, effect.stage, effect.peer}});
    return;
  }
  proto::BrokerMessage message;
  *message.mutable_prepare() = std::move(prepare).value();
  core_.probe_.message_sent("prepare");
  core_.send(effect.peer, std::move(message));
}

void EffectRunner::act(const SendConnect& effect) {
  const auto found = core_.state_.jobs.find(effect.job);
  if (found == core_.state_.jobs.end()) return;
  proto::BrokerMessage message;
  address(*message.mutable_connect(), effect);
  const auto& stages = found->second.stages;
  for (size_t i = 0; i < stages.size(); ++i) {
    proto::StageEndpoint& endpoint = *message.mutable_connect()->add_stages();
    endpoint.set_stage(static_cast<int32_t>(i));
    endpoint.set_peer(stages[i].peer);
    endpoint.set_host(stages[i].host);
    endpoint.set_port(stages[i].port);
  }
  core_.probe_.message_sent("connect");
  core_.send(effect.peer, std::move(message));
}

void EffectRunner::act(const SendStart& effect) {
  proto::BrokerMessage message;
  address(*message.mutable_start(), effect);
  core_.probe_.message_sent("start");
  core_.send(effect.peer, std::move(message));
}

void EffectRunner::act(const SendStop& effect) {
  proto::BrokerMessage message;
  address(*message.mutable_stop(), effect);
  message.mutable_stop()->set_reason(effect.reason);
  core_.probe_.message_sent("stop");
  core_.send(effect.peer, std::move(message));
}

void EffectRunner::act(const SendHold& effect) {
  proto::BrokerMessage message;
  address(*message.mutable_hold(), effect);
  message.mutable_hold()->set_step(effect.step);
  core_.probe_.message_sent("hold");
  core_.send(effect.peer, std::move(message));
}

void EffectRunner::act(const SendMeasure& effect) {
  proto::BrokerMessage message;
  message.mutable_measure()->set_reason(effect.reason);
  core_.probe_.message_sent("measure");
  core_.send(effect.peer, std::move(message));
}

void EffectRunner::act(const SendDrain& effect) {
  proto::BrokerMessage message;
  message.mutable_drain()->set_reason(effect.reason);
  core_.probe_.message_sent("drain");
  core_.send(effect.peer, std::move(message));
}

void EffectRunner::act(const SendRemoved& effect) {
  proto::BrokerMessage message;
  message.mutable_removed()->set_reason(effect.reason);
  core_.probe_.message_sent("removed");
  core_.send(effect.peer, std::move(message));
}

void EffectRunner::act(const Revoke& effect) {
  core_.revocations_.emplace_back(core_.now_ms() + kRevokeAfterMs, effect.curve_public);
}

void EffectRunner::act(const ErasePeer& effect) {
  core_.peer_blobs_.erase(effect.peer);
}

void EffectRunner::act(const EraseJob& effect) {
  core_.loaded_.erase(effect.job);
  core_.known_jobs_.erase(effect.job);
  core_.step_logs_.erase(effect.job);
  core_.work_traffic_.erase(effect.job);
  if (core_.news_) core_.news_(effect.job);
}

void EffectRunner::act(const PersistJob& effect) {
  const auto found = core_.state_.jobs.find(effect.job);
  if (found == core_.state_.jobs.end() || !ended(found->second.phase)) return;
  core_.work_traffic_.erase(effect.job);
  const auto log = core_.step_logs_.find(effect.job);
  if (log == core_.step_logs_.end()) return;
  core_.flush_steps(effect.job, log->second.log, true);
  core_.step_logs_.erase(effect.job);
}

void EffectRunner::act(const CommitCheckpoint&) {
  core_.probe_.checkpoint_committed();
}

// What changes nothing makes no event; all else is logged as one.
void EffectRunner::act(const Decided& effect) {
  if (effect.decision == "keep") log_info("job {} keep: {}", effect.job, effect.reason);
}

void EffectRunner::act(const EmitEvent& effect) {
  log_info("{} {}: {}", effect.job.empty() ? "cluster" : "job " + effect.job, effect.kind,
           effect.message);
  if (effect.kind == "state" && effect.data.contains("to")) {
    const auto phase = phase_from_name<JobPhase>(effect.data["to"].get<std::string>());
    if (phase && ended(*phase)) core_.probe_.job_ended(*phase);
  }
  if (core_.news_) core_.news_(effect.job);
}

}  // namespace weft::broker
