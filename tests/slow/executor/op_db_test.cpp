// Every allowed overload against PyTorch: the samples of PyTorch's own operator database as
// one-operator models (tests/models/op_db_export.py), whole and cut before and after the operator,
// loss and gradients equal to PyTorch's to 1e-10 (float64) and the cut equal to the whole bit for
// bit.
//
// Environment: WEFT_OP_DB reuses a folder made before; WEFT_OP_DB_ARGS are passed to the script
// (--all, --only TEXT, --limit-per-overload N); WEFT_OP_DB_REPORT names a file for the counts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "tests/support/op_db.h"

namespace weft::executor::testing {
namespace {

namespace fs = std::filesystem;

std::string make_cases() {
  if (const std::string given = from_environment("WEFT_OP_DB", ""); !given.empty()) return given;
  const fs::path made = fs::path(::testing::TempDir()) / "weft_op_db";
  const fs::path source = from_environment("WEFT_SOURCE_DIR", ".");
  const fs::path own = source / ".venv/bin/python";
  const std::string python =
      from_environment("WEFT_PYTHON", fs::exists(own) ? own.string() : "python3");
  const std::string command =
      fmt::format("{} {}/tests/models/op_db_export.py --out {} --limit-per-overload 1 {}", python,
                  source.string(), made.string(), from_environment("WEFT_OP_DB_ARGS", ""));
  if (std::system(command.c_str()) != 0) throw std::runtime_error("op_db_export.py failed");
  return made.string();
}

TEST(OperatorDatabase, EveryAllowedOverloadEqualsPyTorch) {
  run_operator_database({.folders = {make_cases()}});
}

}  // namespace
}  // namespace weft::executor::testing
