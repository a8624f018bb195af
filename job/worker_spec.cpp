#include "job/worker_spec.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "base/hash.h"
#include "job/json_read.h"

namespace weft::job {
namespace {

using nlohmann::json;

constexpr size_t kMaxBlobs = 1 << 16;

constexpr std::array<std::pair<const char*, WorkerEventKind>, 8> kEventNames = {
    {{"listening", WorkerEventKind::kListening},
     {"ready", WorkerEventKind::kReady},
     {"alive", WorkerEventKind::kAlive},
     {"step", WorkerEventKind::kStep},
     {"eval", WorkerEventKind::kEval},
     {"checkpoint", WorkerEventKind::kCheckpoint},
     {"finished", WorkerEventKind::kFinished},
     {"failed", WorkerEventKind::kFailed}}};

json blob_to_json(const BlobRef& blob) {
  return {{"sha256", blob.sha256}, {"bytes", blob.bytes}, {"path", blob.path}};
}

Result<BlobRef> blob_from_json(const json& value, const std::string& what) {
  BlobRef blob;
  JsonReader reader(value, what);
  reader.text("sha256", blob.sha256);
  reader.integer("bytes", blob.bytes, 0);
  reader.text("path", blob.path);
  WEFT_TRY_STATUS(reader.status());
  if (!blob.sha256.empty() && !is_sha256_hex(blob.sha256)) {
    return make_error(Code::kInvalid, fmt::format("{}.sha256 is not a SHA-256 digest", what));
  }
  return blob;
}

json blobs_to_json(const std::map<std::string, BlobRef>& blobs) {
  json object = json::object();
  for (const auto& [name, blob] : blobs) object[name] = blob_to_json(blob);
  return object;
}

void read_blob(JsonReader& reader, const char* name, BlobRef& out) {
  const json* value = reader.object(name);
  if (value == nullptr) return;
  Result<BlobRef> blob = blob_from_json(*value, name);
  if (!blob.ok()) return reader.fail(std::move(blob).error());
  out = std::move(*blob);
}

void read_blobs(JsonReader& reader, const char* name, std::map<std::string, BlobRef>& out) {
  const json* object = reader.object(name);
  if (object == nullptr) return;
  if (object->size() > kMaxBlobs) {
    return reader.fail(
        make_error(Code::kTooLarge, fmt::format("{}: {} blobs", name, object->size())));
  }
  for (const auto& [key, value] : object->items()) {
    Result<BlobRef> blob = blob_from_json(value, fmt::format("{}[\"{}\"]", name, key));
    if (!blob.ok()) return reader.fail(std::move(blob).error());
    out.emplace(key, std::move(*blob));
  }
}

void read_resume(JsonReader& reader, ResumePoint& out) {
  const json* object = reader.object("resume");
  if (object == nullptr) return;
  JsonReader inner(*object, "resume");
  inner.integer("step", out.step, 0);
  if (const json* shards = inner.array("shards", kMaxBlobs)) {
    for (const json& entry : *shards) {
      Result<BlobRef> blob = blob_from_json(entry, "resume.shards[]");
      if (!blob.ok()) return reader.fail(std::move(blob).error());
      out.shards.push_back(std::move(*blob));
    }
  }
  if (!inner.ok()) reader.fail(inner.status().error());
}

template <typename T>
void read_part(JsonReader& reader, const char* name, T& out, Result<T> (*parse)(const json&)) {
  reader.require(name);
  const json* object = reader.object(name);
  if (object == nullptr) return;
  Result<T> part = parse(*object);
  if (!part.ok()) return reader.fail(std::move(part).error().within(name));
  out = std::move(*part);
}

// Where this machine keeps things and how it runs the stage: filled by the daemon.
void write_local(const WorkerSpec& spec, json& out) {
  out["work_dir"] = spec.work_dir;
  out["device"] = spec.device;
  out["threads"] = spec.threads;
  out["listen_host"] = spec.listen_host;
  out["listen_port"] = spec.listen_port;
  out["certificate_path"] = spec.certificate_path;
  out["key_path"] = spec.key_path;
  out["ca_path"] = spec.ca_path;
  out["link_timeout_ms"] = spec.link_timeout_ms;
}

void read_local(JsonReader& reader, WorkerSpec& spec) {
  reader.text("work_dir", spec.work_dir);
  reader.text("device", spec.device);
  reader.integer("threads", spec.threads, 1, 4096);
  reader.text("listen_host", spec.listen_host);
  reader.integer("listen_port", spec.listen_port);
  reader.text("certificate_path", spec.certificate_path);
  reader.text("key_path", spec.key_path);
  reader.text("ca_path", spec.ca_path);
  reader.integer("link_timeout_ms", spec.link_timeout_ms, 1);
}

void read_edge_bytes(JsonReader& reader, std::map<int32_t, int64_t>& out) {
  const json* object = reader.object("edge_bytes");
  if (object == nullptr) return;
  for (const auto& [key, value] : object->items()) {
    int32_t edge = -1;
    const char* end = key.data() + key.size();
    const auto parsed = std::from_chars(key.data(), end, edge);
    if (parsed.ec != std::errc() || parsed.ptr != end || edge < 0 || !value.is_number_integer() ||
        value < 0) {
      return reader.fail(
          make_error(Code::kInvalid, fmt::format("event.edge_bytes[\"{}\"] is not a count", key)));
    }
    out[edge] = value.get<int64_t>();
  }
}

// Whether the numbers can be is for who believes them to judge.
void read_traffic(JsonReader& reader, std::vector<LinkTraffic>& out) {
  const json* links = reader.array("traffic");
  if (links == nullptr) return;
  for (const json& entry : *links) {
    LinkTraffic link;
    JsonReader inner(entry, "event.traffic[]");
    inner.require("stage");
    inner.integer("stage", link.stage, 0);
    inner.number("bytes_s", link.bytes_s);
    inner.number("round_trip_s", link.round_trip_s);
    if (!inner.ok()) return reader.fail(inner.status().error());
    out.push_back(link);
  }
}

}  // namespace

json worker_spec_to_json(const WorkerSpec& spec) {
  json shards = json::array();
  for (const BlobRef& shard : spec.resume.shards) shards.push_back(blob_to_json(shard));
  json out = {{"job", spec.job},
              {"stage", spec.stage},
              {"replica", spec.replica},
              {"spec", spec_to_json(spec.spec)},
              {"plan", plan_to_json(spec.plan)},
              {"graph", blob_to_json(spec.graph)},
              {"eval_graph", blob_to_json(spec.eval_graph)},
              {"weights", blobs_to_json(spec.weights)},
              {"init", blob_to_json(spec.init)},
              {"data", blobs_to_json(spec.data)},
              {"token_dtype", spec.token_dtype},
              {"resume", {{"step", spec.resume.step}, {"shards", std::move(shards)}}}};
  write_local(spec, out);
  return out;
}

Result<WorkerSpec> worker_spec_from_json(const json& value) {
  WorkerSpec spec;
  JsonReader reader(value, "assignment");
  reader.require("job");
  reader.require("stage");
  reader.text("job", spec.job);
  reader.integer("stage", spec.stage, 0);
  reader.integer("replica", spec.replica, 0);
  read_part<JobSpec>(reader, "spec", spec.spec, spec_from_json);
  read_part<Plan>(reader, "plan", spec.plan, plan_from_json);
  read_blob(reader, "graph", spec.graph);
  read_blob(reader, "eval_graph", spec.eval_graph);
  read_blobs(reader, "weights", spec.weights);
  read_blob(reader, "init", spec.init);
  read_blobs(reader, "data", spec.data);
  reader.text("token_dtype", spec.token_dtype);
  read_resume(reader, spec.resume);
  read_local(reader, spec);
  WEFT_TRY_STATUS(reader.status());
  if (spec.stage >= spec.plan.partition.stages) {
    return make_error(Code::kInvalid, fmt::format("assignment.stage {} of a plan with {} stages",
                                                  spec.stage, spec.plan.partition.stages));
  }
  return spec;
}

json event_to_json(const WorkerEvent& event) {
  json edges = json::object();
  for (const auto& [edge, bytes] : event.edge_bytes) edges[std::to_string(edge)] = bytes;
  json traffic = json::array();
  for (const LinkTraffic& link : event.traffic) {
    traffic.push_back({{"stage", link.stage},
                       {"bytes_s", number_to_json(link.bytes_s)},
                       {"round_trip_s", number_to_json(link.round_trip_s)}});
  }
  const char* type = "alive";
  for (const auto& [name, kind] : kEventNames) {
    if (kind == event.kind) type = name;
  }
  return {{"type", type},
          {"step", event.step},
          {"port", event.port},
          {"loss", number_to_json(event.loss)},
          {"accuracy", number_to_json(event.accuracy)},
          {"grad_norm", number_to_json(event.grad_norm)},
          {"loss_scale", number_to_json(event.loss_scale)},
          {"skipped_steps", event.skipped_steps},
          {"seconds", number_to_json(event.seconds)},
          {"compute_s", number_to_json(event.compute_s)},
          {"samples", event.samples},
          {"tokens", event.tokens},
          {"peak_memory_bytes", event.peak_memory_bytes},
          {"edge_bytes", std::move(edges)},
          {"traffic", std::move(traffic)},
          {"path", event.path},
          {"error_code", event.error_code},
          {"message", event.message},
          {"next", event.next}};
}

Result<WorkerEvent> event_from_json(const json& value) {
  WorkerEvent event;
  JsonReader reader(value, "event");
  std::string type;
  reader.require("type");
  reader.text("type", type);
  bool known = false;
  for (const auto& [name, kind] : kEventNames) {
    if (type != name) continue;
    event.kind = kind;
    known = true;
  }
  if (!known) {
    reader.fail(make_error(Code::kInvalid, fmt::format("event.type \"{}\" is unknown", type)));
  }
  reader.integer("step", event.step, 0);
  reader.integer("port", event.port);
  reader.number("loss", event.loss);
  reader.number("accuracy", event.accuracy);
  reader.number("grad_norm", event.grad_norm);
  reader.number("loss_scale", event.loss_scale);
  reader.integer("skipped_steps", event.skipped_steps, 0);
  reader.number("seconds", event.seconds);
  reader.number("compute_s", event.compute_s);
  reader.integer("samples", event.samples, 0);
  reader.integer("tokens", event.tokens, 0);
  reader.integer("peak_memory_bytes", event.peak_memory_bytes, 0);
  read_edge_bytes(reader, event.edge_bytes);
  read_traffic(reader, event.traffic);
  reader.text("path", event.path);
  reader.text("error_code", event.error_code);
  reader.text("message", event.message);
  reader.text("next", event.next);
  WEFT_TRY_STATUS(reader.status());
  return event;
}

}  // namespace weft::job
