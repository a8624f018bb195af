#include "job/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/hash.h"
#include "job/json_read.h"

namespace weft::job {
namespace {

using nlohmann::json;

constexpr int32_t kMaxStages = 4096;
constexpr size_t kMaxTensors = 1 << 20;

Result<Shard> shard_from_json(const json& value) {
  Shard shard;
  JsonReader reader(value, "manifest.shards[]");
  reader.require("stage");
  reader.require("sha256");
  reader.integer("stage", shard.stage, 0, kMaxStages);
  reader.text("sha256", shard.sha256);
  reader.integer("bytes", shard.bytes, 0);
  reader.texts("tensors", shard.tensors, kMaxTensors);
  WEFT_TRY_STATUS(reader.status());
  if (!is_sha256_hex(shard.sha256)) {
    return make_error(Code::kInvalid, "manifest.shards[].sha256 is not a SHA-256 digest");
  }
  return shard;
}

bool same(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.sizes == b.sizes && a.bytes.size() == b.bytes.size() &&
         (a.bytes.size() == 0 || std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0);
}

}  // namespace

bool Manifest::complete() const {
  std::set<int32_t> present;
  for (const Shard& shard : shards) {
    if (shard.stage >= 0 && shard.stage < stages) present.insert(shard.stage);
  }
  return present.size() == static_cast<size_t>(stages);
}

json manifest_to_json(const Manifest& manifest) {
  json shards = json::array();
  for (const Shard& shard : manifest.shards) {
    shards.push_back({{"stage", shard.stage},
                      {"sha256", shard.sha256},
                      {"bytes", shard.bytes},
                      {"tensors", shard.tensors}});
  }
  return {{"step", manifest.step}, {"stages", manifest.stages}, {"shards", std::move(shards)}};
}

Result<Manifest> manifest_from_json(const json& value) {
  Manifest manifest;
  JsonReader reader(value, "manifest");
  reader.require("step");
  reader.require("stages");
  reader.integer("step", manifest.step, 0);
  reader.integer("stages", manifest.stages, 1, kMaxStages);
  if (const json* shards = reader.array("shards", kMaxStages)) {
    std::set<int32_t> seen;
    for (const json& entry : *shards) {
      WEFT_TRY(Shard shard, shard_from_json(entry));
      if (shard.stage >= manifest.stages || !seen.insert(shard.stage).second) {
        return make_error(Code::kInvalid,
                          fmt::format("manifest: shard of stage {} is one too many", shard.stage));
      }
      manifest.shards.push_back(std::move(shard));
    }
  }
  WEFT_TRY_STATUS(reader.status());
  return manifest;
}

Result<Safetensors> merge_export(const std::vector<Safetensors>& shards) {
  Safetensors merged;
  merged.metadata["format"] = "pt";  // what transformers looks for
  for (const Safetensors& shard : shards) {
    for (const auto& [name, view] : shard.tensors) {
      if (name.rfind(kOptimizerPrefix, 0) == 0) continue;
      const auto [known, added] = merged.tensors.emplace(name, view);
      if (!added && !same(known->second, view)) {
        return make_error(Code::kCorrupt,
                          fmt::format("\"{}\" differs between two shards of the checkpoint", name),
                          "export an older checkpoint, or resume the job from one");
      }
    }
  }
  if (merged.tensors.empty()) {
    return make_error(Code::kInvalid, "the checkpoint holds no tensor of the model");
  }
  return merged;
}

}  // namespace weft::job
