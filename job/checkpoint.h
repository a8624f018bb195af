// The merge of a checkpoint's shards into one file under the original parameter names. A shard is
// one stage's safetensors file: its parameters (all aliases), buffers, optimizer state
// ("weft.optimizer.<state>/<parameter>") and the loss scaler's ("weft.loss_scaler.<state>", the
// same in every shard). Storing them is the broker's business.
#pragma once

#include <cstddef>
#include <vector>

#include "base/result.h"
#include "job/safetensors.h"

namespace weft::job {

inline constexpr const char* kOwnPrefix = "weft.";  // what is not the model's

// A worker goes on behind a checkpoint while no more of its shards than that are on its machine:
// a slow uplink holds training back rather than fill the disk.
inline constexpr size_t kMaxStoredShards = 2;

// The model's own tensors of all shards. A name in two shards (a tied parameter known to several
// stages) must hold the same bytes, else kCorrupt. The result shares the shards' memory.
Result<Safetensors> merge_export(const std::vector<Safetensors>& shards);

}  // namespace weft::job
