// Every allowed overload on a card against PyTorch on the same card; scripts/gpu_check.sh opdb
// makes the cases. 1e-9 in 64 bits and 1e-3 where a tensor is float32 or complex64: the kernels are
// the same, but some add with atomics.
//
// Environment: WEFT_OP_DB_SHARDS folders of op_db_export.py --device, with colons between;
// WEFT_OP_DB_SECONDS bounds the run; WEFT_OP_DB_DEVICE, WEFT_OP_DB_REPORT.
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "tests/support/op_db.h"

namespace weft::executor::testing {
namespace {

TEST(GpuOperatorDatabase, EveryAllowedOverloadEqualsPyTorch) {
  OperatorDatabaseOptions options;
  std::istringstream shards(from_environment("WEFT_OP_DB_SHARDS", ""));
  for (std::string shard; std::getline(shards, shard, ':');) options.folders.push_back(shard);
  if (options.folders.empty()) {
    GTEST_SKIP() << "WEFT_OP_DB_SHARDS is not set: scripts/gpu_check.sh opdb runs this";
  }
  options.device = from_environment("WEFT_OP_DB_DEVICE", "cuda:0");
  options.tolerance = 1e-9;
  options.same_bits = false;
  options.seconds = std::stod(from_environment("WEFT_OP_DB_SECONDS", "240"));
  run_operator_database(options);
}

}  // namespace
}  // namespace weft::executor::testing
