#include "cli/submit/submission.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/hash.h"
#include "cli/submit/training_graphs.h"
#include "job/token_file.h"
#include "net/codec/graph_codec.h"

namespace weft::cli {
namespace {

using nlohmann::json;

json blob_json(const UploadFile& file) {
  return {{"sha256", file.sha256}, {"bytes", file.bytes}};
}

}  // namespace

struct Submission::Builder {
  Submission& out;

  UploadFile add(UploadFile file) {
    for (const UploadFile& known : out.files_) {
      if (known.sha256 == file.sha256) return known;
    }
    out.files_.push_back(file);
    return file;
  }

  Result<json> add_bytes(std::span<const std::byte> data) {
    UploadFile file;
    file.sha256 = sha256_hex(data);
    file.bytes = data.size();
    file.path = out.temporary_ / file.sha256;
    WEFT_TRY_STATUS(os::write_file_atomic(file.path, data));
    return blob_json(add(std::move(file)));
  }

  Result<json> add_file(const os::Path& path) {
    WEFT_TRY(Buffer bytes, os::map_file(path));
    return blob_json(add({sha256_hex(bytes.bytes()), bytes.size(), path}));
  }

  Result<json> add_graph(const opdag::Graph& graph) {
    const std::string wire = net::encode_graph(graph);
    return add_bytes(std::as_bytes(std::span(wire.data(), wire.size())));
  }

  Status add_weights(const opdag::Graph& graph, const opdag::Archive& archive, json& weights) {
    for (const opdag::Leaf& leaf : graph.leaves) {
      if (leaf.kind == opdag::LeafKind::kUserInput || weights.contains(leaf.weight.path)) continue;
      std::string entry = leaf.weight.path;
      if (entry.starts_with(kEvalPrefix)) entry = entry.substr(std::string(kEvalPrefix).size());
      WEFT_TRY(Buffer bytes, archive.entry(entry));
      WEFT_TRY(weights[leaf.weight.path], add_bytes(bytes.bytes()));
    }
    return {};
  }

  Status add_tokens(const job::DataSpec& data) {
    json& blobs = out.body_["data"];
    for (const auto& [name, path] : {std::pair{"train", data.train}, {"eval", data.eval}}) {
      if (path.empty()) continue;
      WEFT_TRY(job::TokenFile tokens, job::open_token_file(path));
      out.body_["token_dtype"] = std::string(dtype_name(tokens.dtype));
      WEFT_TRY(blobs[name], add_file(path));
    }
    return {};
  }

  Status add_arrays(const job::DataSpec& data) {
    json& blobs = out.body_["data"];
    for (const job::ArrayFile& array : data.arrays) {
      WEFT_TRY(blobs["train/" + array.name], add_file(array.train_path));
      if (array.eval_path.empty()) continue;
      WEFT_TRY(blobs["eval/" + array.name], add_file(array.eval_path));
    }
    return {};
  }

  Status build(const job::JobSpec& asked) {
    WEFT_TRY(TrainingGraphs graphs, load_training_graphs(asked));
    out.warnings_ = graphs.warnings;
    out.body_ = {{"spec", job::spec_to_json(graphs.spec)},
                 {"weights", json::object()},
                 {"data", json::object()},
                 {"init", nullptr},
                 {"token_dtype", ""}};
    WEFT_TRY(out.body_["graph"], add_graph(graphs.train));
    WEFT_TRY(out.body_["eval_graph"], add_graph(graphs.eval));
    WEFT_TRY_STATUS(add_weights(graphs.train, graphs.archive, out.body_["weights"]));
    WEFT_TRY_STATUS(add_weights(graphs.eval, graphs.eval_archive, out.body_["weights"]));
    if (!asked.init.empty()) {
      WEFT_TRY(out.body_["init"], add_file(asked.init));
    }
    WEFT_TRY_STATUS(add_tokens(asked.data));
    return add_arrays(asked.data);
  }
};

Result<Submission> Submission::prepare(const job::JobSpec& spec) {
  Submission submission;
  WEFT_TRY(submission.temporary_, os::make_temporary_directory("weft-submit-"));
  WEFT_TRY_STATUS((Builder{submission}.build(spec)));
  return submission;
}

Submission::Submission(Submission&& other) noexcept
    : body_(std::move(other.body_)),
      files_(std::move(other.files_)),
      warnings_(std::move(other.warnings_)),
      temporary_(std::exchange(other.temporary_, os::Path())) {}

Submission::~Submission() {
  if (temporary_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(temporary_, ignored);
}

}  // namespace weft::cli
