// Checkpoints as data: the manifest that makes a set of shards a checkpoint, and the merge of
// shards into one file under the original parameter names. Storing them is the broker's business.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "job/safetensors.h"

namespace weft::job {

// One stage's part: a safetensors file with its parameters (all aliases), buffers and optimizer
// state ("weft.optimizer.<state>/<parameter>").
struct Shard {
  int32_t stage = 0;
  std::string sha256;
  uint64_t bytes = 0;
  std::vector<std::string> tensors;  // names inside
};

// Complete only when every stage of the plan has its shard; then it is committed, not before.
struct Manifest {
  int64_t step = 0;    // steps done
  int32_t stages = 1;  // of the plan that wrote it; resuming may use another number
  std::vector<Shard> shards;
  bool complete() const;
};

nlohmann::json manifest_to_json(const Manifest& manifest);
Result<Manifest> manifest_from_json(const nlohmann::json& json);

inline constexpr const char* kOptimizerPrefix = "weft.optimizer.";

// The model's own tensors of all shards. A name in two shards (a tied parameter known to several
// stages) must hold the same bytes, else kCorrupt. The result shares the shards' memory.
Result<Safetensors> merge_export(const std::vector<Safetensors>& shards);

}  // namespace weft::job
