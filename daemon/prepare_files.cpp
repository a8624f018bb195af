#include "daemon/prepare_files.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "job/json_read.h"
#include "job/safetensors.h"
#include "net/codec/graph_codec.h"
#include "opdag/text.h"

namespace weft::daemon {
namespace {

using nlohmann::json;

// Peers that have the blob first, the broker last: it is everyone's source and the scarcest.
std::vector<net::HttpClientOptions> sources_of(const Membership& member,
                                               const proto::Prepare& prepare,
                                               const std::string& sha256) {
  std::vector<net::HttpClientOptions> sources;
  for (const proto::BlobSource& source : prepare.sources()) {
    if (source.sha256() != sha256) continue;
    for (const proto::PeerEndpoint& peer : source.peers()) {
      if (peer.peer() == member.peer) continue;
      net::HttpClientOptions options = member.broker_client();
      options.host = peer.host();
      options.port = static_cast<uint16_t>(peer.port());
      options.expect_subject = peer.peer();
      options.timeout_ms = 5000;
      sources.push_back(std::move(options));
    }
  }
  sources.push_back(member.broker_client());
  return sources;
}

class Fetcher {
 public:
  Fetcher(const Membership& member, net::BlobStore& blobs, const proto::Prepare& prepare,
          const std::function<bool()>& cancelled)
      : member_(member), blobs_(blobs), prepare_(prepare) {
    options_.cancelled = cancelled;
  }

  Status fetch(job::BlobRef& blob, const std::string& what) {
    if (blob.sha256.empty()) return {};
    if (!is_sha256_hex(blob.sha256)) {
      return make_error(Code::kInvalid, fmt::format("{}: not a blob name: {}", what, blob.sha256));
    }
    blobs_.touch(blob.sha256);  // in use: the cache drops what nobody needed for longest
    if (!blobs_.has(blob.sha256)) {
      auto status = net::fetch_blob(blobs_, blob.sha256, blob.bytes,
                                    sources_of(member_, prepare_, blob.sha256), options_);
      if (!status.ok()) return std::move(status).error().within("cannot fetch " + what);
    }
    blob.path = blobs_.path_of(blob.sha256).string();
    return {};
  }

 private:
  const Membership& member_;
  net::BlobStore& blobs_;
  const proto::Prepare& prepare_;
  net::TransferOptions options_;
};

Status fetch_all(Fetcher& fetcher, job::WorkerSpec& spec) {
  WEFT_TRY_STATUS(fetcher.fetch(spec.graph, "the graph"));
  WEFT_TRY_STATUS(fetcher.fetch(spec.eval_graph, "the evaluation graph"));
  WEFT_TRY_STATUS(fetcher.fetch(spec.init, "the initial weights"));
  for (auto& [path, blob] : spec.weights) WEFT_TRY_STATUS(fetcher.fetch(blob, "weight " + path));
  for (auto& [name, blob] : spec.data) WEFT_TRY_STATUS(fetcher.fetch(blob, "data " + name));
  for (job::BlobRef& shard : spec.resume.shards) {
    WEFT_TRY_STATUS(fetcher.fetch(shard, "a checkpoint shard"));
  }
  return {};
}

// The wire form is decoded and checked here; the worker reads the text form (no protobuf there).
Status graph_to_text(job::BlobRef& blob, const os::Path& file) {
  if (blob.path.empty()) return {};
  WEFT_TRY(std::string wire, os::read_file(blob.path));
  WEFT_TRY(opdag::Graph graph, net::decode_graph(wire));
  WEFT_TRY_STATUS(os::write_file_atomic(file, opdag::to_text(graph)));
  blob.path = file.string();
  return {};
}

Status certify(const Membership& member, const proto::Prepare& prepare, const os::Path& dir) {
  WEFT_TRY(net::KeyPair key, net::make_key());
  WEFT_TRY(std::string request, net::make_request_pem(key, member.peer));
  const json body = {{"job", prepare.job()},
                     {"epoch", prepare.epoch()},
                     {"stage", prepare.stage()},
                     {"request_pem", request}};
  net::HttpClient client(member.broker_client());
  WEFT_TRY(net::HttpResponse response,
           client.request("POST", "/api/v1/assignments/certificate", body.dump()));
  if (response.status >= 400) {
    return net::error_from_response(response).within("no certificate for this assignment");
  }
  const json answer = json::parse(response.body, nullptr, false);
  if (!answer.is_object() || !answer.contains("certificate_pem") ||
      !answer["certificate_pem"].is_string()) {
    return make_error(Code::kCorrupt, "the broker's certificate answer is not understood");
  }
  WEFT_TRY_STATUS(os::write_file_atomic(dir / "worker.key", key.private_pem, 0600));
  WEFT_TRY_STATUS(
      os::write_file_atomic(dir / "worker.pem", answer["certificate_pem"].get<std::string>()));
  return os::write_file_atomic(dir / "ca.pem", member.ca_pem);
}

}  // namespace

Result<job::WorkerSpec> prepare_files(const Membership& member, net::BlobStore& blobs,
                                      const proto::Prepare& prepare, const os::Path& dir,
                                      const std::function<bool()>& cancelled) {
  WEFT_TRY_STATUS(os::make_directories(dir, 0700));
  WEFT_TRY(const json parsed, job::parse_json(prepare.worker_spec_json(), "the worker's spec"));
  WEFT_TRY(job::WorkerSpec spec, job::worker_spec_from_json(parsed));
  if (spec.job != prepare.job() || spec.stage != prepare.stage() ||
      spec.plan.epoch != prepare.epoch()) {
    return make_error(
        Code::kInvalid,
        fmt::format("the worker's spec is of job {} epoch {} stage {}, the assignment of job {} "
                    "epoch {} stage {}",
                    spec.job, spec.plan.epoch, spec.stage, prepare.job(), prepare.epoch(),
                    prepare.stage()),
        "broker and daemon must be of the same version");
  }
  Fetcher fetcher(member, blobs, prepare, cancelled);
  WEFT_TRY_STATUS(fetch_all(fetcher, spec));
  WEFT_TRY_STATUS(graph_to_text(spec.graph, dir / "graph.txt"));
  WEFT_TRY_STATUS(graph_to_text(spec.eval_graph, dir / "eval_graph.txt"));
  WEFT_TRY_STATUS(certify(member, prepare, dir));
  spec.work_dir = dir.string();
  spec.certificate_path = (dir / "worker.pem").string();
  spec.key_path = (dir / "worker.key").string();
  spec.ca_path = (dir / "ca.pem").string();
  return spec;
}

Result<proto::CheckpointStored> upload_shard(const Membership& member, const os::Path& file,
                                             const std::function<bool()>& cancelled) {
  proto::CheckpointStored stored;
  {
    WEFT_TRY(Buffer bytes, os::map_file(file));
    stored.set_sha256(sha256_hex(bytes.bytes()));
    stored.set_bytes(bytes.size());
  }
  WEFT_TRY(job::Safetensors content, job::read_safetensors(file));
  for (const auto& [name, tensor] : content.tensors) stored.add_tensors(name);
  net::HttpClient client(member.broker_client());
  net::TransferOptions options;
  options.cancelled = cancelled;
  WEFT_TRY([[maybe_unused]] uint64_t sent,
           net::upload_blob(client, stored.sha256(), file, options));
  return stored;
}

}  // namespace weft::daemon
