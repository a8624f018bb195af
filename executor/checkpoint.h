// Checkpoint shards: the state of one stage (parameters, buffers, optimizer) as a safetensors file,
// keyed by original names, so that any other partition of the same model can resume from the
// shards of all stages. Compute thread only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/os/file.h"
#include "base/result.h"
#include "executor/aten.h"

namespace weft::executor {

struct ShardInfo {
  std::string job;
  uint32_t epoch = 0;
  int32_t stage = 0;
  int64_t step = 0;  // steps done
};

// "shard-<step>-<stage>.safetensors"
std::string shard_name(const ShardInfo& info);

// Copies the tensors to the CPU and writes the file atomically: a reader sees all of it or none.
Status write_shard(const os::Path& path, const std::map<std::string, at::Tensor>& state,
                   const ShardInfo& info);

// Tensors by name, mapped read-only: they must be copied from, never written.
Result<std::map<std::string, at::Tensor>> read_tensors(const os::Path& path);

// The union of several shards of one checkpoint. A name in two shards (a tied weight) must agree
// in shape and dtype; the first is taken. kInvalid when a shard is of another job or step.
Result<std::map<std::string, at::Tensor>> read_shards(const std::vector<os::Path>& paths,
                                                      const std::string& job, int64_t step);

}  // namespace weft::executor
