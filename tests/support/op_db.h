// PyTorch's own operator database against the executor: cases of tests/models/op_db_export.py, each
// whole and cut before and after the operator, on a CPU or a card.
#pragma once

#include <string>
#include <vector>

namespace weft::executor::testing {

struct OperatorDatabaseOptions {
  std::vector<std::string> folders;  // of the script, one a shard
  std::string device = "cpu";
  // Of loss and gradients against PyTorch's, relative: of cases whose tensors are 64 bits wide a
  // number, and of those with float32 or complex64.
  double tolerance = 1e-10, narrow_tolerance = 1e-3;
  // A cut gives the bits of the whole. Not on a card, where kernels add with atomics: there it is
  // held to the tolerances.
  bool same_bits = true;
  double seconds = 1e9;  // cases begun later than this are not run, and counted
};

// Adds a test failure for every case that differs, and for every row of the operator table that no
// case holds and no reason explains. Prints the counts; WEFT_OP_DB_REPORT names a file for them.
void run_operator_database(const OperatorDatabaseOptions& options);

// The value of an environment variable, or `otherwise` where it is not set or empty.
std::string from_environment(const char* name, const std::string& otherwise);

}  // namespace weft::executor::testing
