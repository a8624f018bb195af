#include "broker/submission.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/hash.h"
#include "net/codec/graph_codec.h"
#include "opdag/derive.h"

namespace weft::broker {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxBlobs = 100000;
constexpr uint64_t kMaxGraphBytes = uint64_t{256} << 20;

Error bad_field(const std::string& name, const char* wanted) {
  return make_error(Code::kInvalid, fmt::format("field {} of the submission {}", name, wanted),
                    "send a JobSubmission as docs/api.md describes it");
}

Result<job::BlobRef> blob_from(const Json& json, const std::string& name) {
  if (!json.is_object() || json.size() != 2 || !json.contains("sha256") ||
      !json.contains("bytes")) {
    return bad_field(name, "must be {\"sha256\",\"bytes\"}");
  }
  const Json& sha = json["sha256"];
  const Json& bytes = json["bytes"];
  if (!sha.is_string() || !is_sha256_hex(sha.get<std::string>()) || !bytes.is_number_unsigned()) {
    return bad_field(name, "must name a blob by 64 hexadecimal digits and its size");
  }
  return job::BlobRef{sha.get<std::string>(), bytes.get<uint64_t>(), ""};
}

Result<std::map<std::string, job::BlobRef>> blob_map(const Json& json, const std::string& name) {
  if (!json.is_object()) return bad_field(name, "must be an object of blobs");
  if (json.size() > kMaxBlobs) return bad_field(name, "names too many blobs");
  std::map<std::string, job::BlobRef> result;
  for (const auto& [key, value] : json.items()) {
    WEFT_TRY(result[key], blob_from(value, name + "." + key));
  }
  return result;
}

}  // namespace

Result<Submission> submission_from_json(const Json& body) {
  static const std::set<std::string> kFields = {"spec", "graph", "eval_graph", "weights",
                                                "init", "data",  "token_dtype"};
  if (!body.is_object()) return bad_field("(body)", "must be a JSON object");
  for (const auto& [key, value] : body.items()) {
    if (!kFields.contains(key)) return bad_field(key, "is not known");
  }
  for (const char* name : {"spec", "graph", "eval_graph", "weights", "data"}) {
    if (!body.contains(name)) return bad_field(name, "is missing");
  }
  Submission result;
  WEFT_TRY(result.spec, job::spec_from_json(body["spec"]));
  WEFT_TRY(result.graph, blob_from(body["graph"], "graph"));
  WEFT_TRY(result.eval_graph, blob_from(body["eval_graph"], "eval_graph"));
  WEFT_TRY(result.weights, blob_map(body["weights"], "weights"));
  WEFT_TRY(result.data, blob_map(body["data"], "data"));
  if (body.contains("init") && !body["init"].is_null()) {
    WEFT_TRY(result.init, blob_from(body["init"], "init"));
  }
  if (body.contains("token_dtype") && !body["token_dtype"].is_null()) {
    if (!body["token_dtype"].is_string()) return bad_field("token_dtype", "must be a string");
    result.token_dtype = body["token_dtype"];
    if (!result.token_dtype.empty() && result.token_dtype != "uint16" &&
        result.token_dtype != "uint32") {
      return bad_field("token_dtype", "must be uint16 or uint32");
    }
  }
  return result;
}

std::vector<job::BlobRef> blobs_of(const Submission& submission) {
  std::map<std::string, job::BlobRef> once;
  const auto add = [&](const job::BlobRef& blob) {
    if (!blob.sha256.empty()) once.emplace(blob.sha256, blob);
  };
  add(submission.graph);
  add(submission.eval_graph);
  add(submission.init);
  for (const auto& [name, blob] : submission.weights) add(blob);
  for (const auto& [name, blob] : submission.data) add(blob);
  std::vector<job::BlobRef> result;
  for (const auto& [name, blob] : once) result.push_back(blob);
  return result;
}

namespace {

Result<opdag::Graph> load_graph(const job::BlobRef& blob, const char* what,
                                const net::BlobStore& blobs) {
  if (!blobs.has(blob.sha256)) {
    return make_error(Code::kNotFound,
                      fmt::format("the {} blob {} is not stored", what, blob.sha256),
                      "upload it first: PUT /api/v1/blobs/" + blob.sha256);
  }
  WEFT_TRY(const std::string bytes, os::read_file(blobs.path_of(blob.sha256), kMaxGraphBytes));
  auto graph = net::decode_graph(bytes);
  if (!graph.ok()) return std::move(graph).error().within(fmt::format("the {}", what));
  return graph;
}

}  // namespace

Result<JobGraphs> load_graphs(const Submission& submission, const net::BlobStore& blobs) {
  WEFT_TRY(opdag::Graph graph, load_graph(submission.graph, "training graph", blobs));
  WEFT_TRY(opdag::Graph eval, load_graph(submission.eval_graph, "evaluation graph", blobs));
  if (submission.spec.train.precision == job::Precision::kFp64) {
    // As the workers do: a plan counts the nodes of the graph that runs.
    WEFT_TRY(graph, opdag::promote_f64(graph));
    WEFT_TRY(eval, opdag::promote_f64(eval));
  }
  return JobGraphs{std::move(graph), std::move(eval)};
}

std::vector<std::string> warnings_of(const Submission& submission, const JobGraphs& graphs) {
  std::vector<std::string> warnings = graphs.graph.warnings;
  if (!graphs.graph.train_mode) {
    warnings.push_back(
        "the model was exported in eval mode: dropout and batch norm will not train as usual");
  }
  if (submission.data.size() > 0 &&
      std::none_of(submission.data.begin(), submission.data.end(),
                   [](const auto& entry) { return entry.first.starts_with("eval"); })) {
    warnings.push_back("no evaluation data: the job will report training loss only");
  }
  return warnings;
}

}  // namespace weft::broker
