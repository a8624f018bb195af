#include "broker/coordinator/record.h"

#include <fmt/format.h>

namespace weft::broker {
namespace {

using Json = nlohmann::json;

// Runs a reader of our own records; a record that does not hold is corrupt, with the reason.
template <typename T, typename Read>
Result<T> guarded(const char* what, Read read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& error) {
    return make_error(Code::kCorrupt,
                      fmt::format("a {} record of the store is broken: {}", what, error.what()));
  }
}

Json optional_number(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::optional<double> number_or_none(const Json& record, const char* name) {
  const auto found = record.find(name);
  if (found == record.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

// Neither is in records of older brokers, and a profile of another format is measured anew.
void read_profile(const Json& record, Peer& peer) {
  const auto profile = record.find("profile");
  if (profile == record.end() || profile->is_null()) return;
  auto read = job::profile_from_json(*profile);
  if (!read.ok()) return;
  peer.profile = std::make_shared<const job::DeviceProfile>(std::move(read).value());
  const Json& correction = record.at("correction");
  peer.correction = {correction.at("factor"), correction.at("steps")};
}

}  // namespace

Json peer_to_record(const Peer& peer) {
  const Capabilities& c = peer.capabilities;
  const PeerPhase phase = peer.phase == PeerPhase::kSuspect ? peer.former : peer.phase;
  return {{"id", peer.id},
          {"name", peer.name},
          {"curve_public", peer.curve_public},
          {"key_fingerprint", peer.key_fingerprint},
          {"phase", phase_name(phase)},
          {"joined_ms", peer.joined_ms},
          {"last_seen_ms", peer.last_seen_ms},
          {"drain_requested", peer.drain_requested},
          {"profile", peer.profile ? job::profile_to_json(*peer.profile) : Json(nullptr)},
          {"correction", {{"factor", peer.correction.factor}, {"steps", peer.correction.steps}}},
          {"capabilities",
           {{"host", c.host},
            {"cores", c.cores},
            {"memory_bytes", c.memory_bytes},
            {"device", c.device},
            {"device_name", c.device_name},
            {"device_memory_bytes", c.device_memory_bytes},
            {"advertise_host", c.advertise_host},
            {"blob_port", c.blob_port},
            {"version", c.version}}}};
}

Result<Peer> peer_from_record(const Json& record) {
  return guarded<Peer>("peer", [&]() -> Result<Peer> {
    Peer peer;
    peer.id = record.at("id");
    peer.name = record.at("name");
    peer.curve_public = record.at("curve_public");
    peer.key_fingerprint = record.at("key_fingerprint");
    const auto phase = phase_from_name<PeerPhase>(record.at("phase").get<std::string>());
    if (!phase) return make_error(Code::kCorrupt, "a peer record has an unknown phase");
    peer.phase = *phase;
    peer.joined_ms = record.at("joined_ms");
    peer.last_seen_ms = record.at("last_seen_ms");
    peer.drain_requested = record.at("drain_requested");
    read_profile(record, peer);
    const Json& c = record.at("capabilities");
    peer.capabilities =
        Capabilities{c.at("host"),           c.at("cores"),       c.at("memory_bytes"),
                     c.at("device"),         c.at("device_name"), c.at("device_memory_bytes"),
                     c.at("advertise_host"), c.at("blob_port"),   c.at("version")};
    return peer;
  });
}

Json job_to_record(const Job& job) {
  Json stages = Json::array();
  for (const StageState& stage : job.stages) stages.push_back(stage.peer);
  return {{"id", job.id},
          {"name", job.name},
          {"phase", phase_name(job.phase)},
          {"reason", job.reason},
          {"next", job.next},
          {"created_ms", job.created_ms},
          {"started_ms", job.started_ms},
          {"ended_ms", job.ended_ms},
          {"step", job.step},
          {"steps", job.steps},
          {"loss", optional_number(job.loss)},
          {"first_loss", optional_number(job.first_loss)},
          {"eval_loss", optional_number(job.eval_loss)},
          {"eval_accuracy", optional_number(job.eval_accuracy)},
          {"requested_stages", job.requested_stages},
          {"checkpoint_every", job.checkpoint_every},
          {"checkpoint_keep", job.checkpoint_keep},
          {"replan", job.replan},
          {"epoch", job.epoch},
          {"resume_step", job.resume_step},
          {"plan", job.plan ? job::plan_to_json(*job.plan) : Json(nullptr)},
          {"peers", std::move(stages)}};
}

Result<Job> job_from_record(const Json& record) {
  return guarded<Job>("job", [&]() -> Result<Job> {
    Job job;
    job.id = record.at("id");
    job.name = record.at("name");
    const auto phase = phase_from_name<JobPhase>(record.at("phase").get<std::string>());
    if (!phase) return make_error(Code::kCorrupt, "a job record has an unknown phase");
    job.phase = *phase;
    job.reason = record.at("reason");
    job.next = record.at("next");
    job.created_ms = record.at("created_ms");
    job.started_ms = record.at("started_ms");
    job.ended_ms = record.at("ended_ms");
    job.step = record.at("step");
    job.steps = record.at("steps");
    job.loss = number_or_none(record, "loss");
    job.first_loss = number_or_none(record, "first_loss");
    job.eval_loss = number_or_none(record, "eval_loss");
    job.eval_accuracy = number_or_none(record, "eval_accuracy");
    job.requested_stages = record.at("requested_stages");
    job.checkpoint_every = record.value("checkpoint_every", int64_t{0});  // older brokers: none
    job.checkpoint_keep = record.at("checkpoint_keep");
    job.replan = record.value("replan", true);
    job.epoch = record.at("epoch");
    job.resume_step = record.at("resume_step");
    if (!record.at("plan").is_null()) {
      WEFT_TRY(job.plan, job::plan_from_json(record.at("plan")));
    }
    for (const Json& peer : record.at("peers")) {
      job.stages.push_back(StageState{peer.get<std::string>(), StagePhase::kStopped, "", 0});
    }
    return job;
  });
}

Json checkpoint_to_record(const Checkpoint& checkpoint) {
  Json shards = Json::array();
  for (const auto& [stage, shard] : checkpoint.shards) {
    shards.push_back({{"stage", shard.stage},
                      {"sha256", shard.sha256},
                      {"bytes", shard.bytes},
                      {"tensors", shard.tensors}});
  }
  return {{"step", checkpoint.step},         {"time_ms", checkpoint.time_ms},
          {"epoch", checkpoint.epoch},       {"stages", checkpoint.stages},
          {"complete", checkpoint.complete}, {"shards", std::move(shards)}};
}

Result<Checkpoint> checkpoint_from_record(const Json& record) {
  return guarded<Checkpoint>("checkpoint", [&]() -> Result<Checkpoint> {
    Checkpoint checkpoint;
    checkpoint.step = record.at("step");
    checkpoint.time_ms = record.at("time_ms");
    checkpoint.epoch = record.at("epoch");
    checkpoint.stages = record.at("stages");
    checkpoint.complete = record.at("complete");
    for (const Json& entry : record.at("shards")) {
      Shard shard{entry.at("stage"), entry.at("sha256"), entry.at("bytes"),
                  entry.at("tensors").get<std::vector<std::string>>()};
      checkpoint.shards.emplace(shard.stage, std::move(shard));
    }
    return checkpoint;
  });
}

}  // namespace weft::broker
