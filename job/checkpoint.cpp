#include "job/checkpoint.h"

#include <fmt/format.h>

#include <cstring>

namespace weft::job {
namespace {

bool same(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.sizes == b.sizes && a.bytes.size() == b.bytes.size() &&
         (a.bytes.size() == 0 || std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0);
}

}  // namespace

Result<Safetensors> merge_export(const std::vector<Safetensors>& shards) {
  Safetensors merged;
  merged.metadata["format"] = "pt";  // what transformers looks for
  for (const Safetensors& shard : shards) {
    for (const auto& [name, view] : shard.tensors) {
      if (name.rfind(kOwnPrefix, 0) == 0) continue;
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
