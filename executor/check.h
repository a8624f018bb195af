// `weft model check`: does a model run here, whole and cut, with equal numbers? Runs forward and
// backward of the graph's scalar output in one stage and in K stages over a random legal cut, in
// this process over the simulated network, and compares. A graph without a scalar loss runs forward
// only and its outputs are compared.
//
// Equal means: float64, relative differences (to the largest magnitude of each tensor) up to 1e-10.
// float32, up to 1e-3: sums may be taken in another order by kernels that look at memory layout;
// the executor itself keeps the order (executor/program.h), so the usual difference is zero.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/os/jail.h"
#include "base/result.h"

namespace weft::executor {

struct CheckOptions {
  std::filesystem::path model;
  std::filesystem::path inputs;  // safetensors named as the graph's inputs; empty: random ones
  int64_t micro_batch = 0;       // samples, where the export leaves them open; 0: as exported
  int32_t stages = 2;
  uint64_t cut_seed = 0;
  bool f64 = false;
  std::filesystem::path grads;  // written; empty: not
  bool json = false;
};

struct CheckedStage {
  double seconds = 0;             // of computing
  int64_t peak_memory_bytes = 0;  // tensor memory: weights, activations, gradients
};

struct CheckReport {
  bool equal = false;
  bool forward_only = false;
  double loss = 0;  // of the whole model; NaN if forward_only
  double loss_cut = 0;
  double loss_difference = 0;      // relative
  double gradient_difference = 0;  // largest, relative to the tensor's largest magnitude
  std::string worst;               // the tensor it was found in
  double tolerance = 0;
  size_t tensors = 0;  // gradients (or outputs) compared
  CheckedStage whole;
  std::vector<CheckedStage> stages;
  std::vector<std::string> warnings;
};

// Errors of code kRefused name node and operator.
Result<CheckReport> check_model(const CheckOptions& options);

// 0 equal, 1 not equal.
int exit_code_of(const CheckReport& report);
nlohmann::json report_to_json(const CheckReport& report);
std::string report_to_text(const CheckReport& report);

// weft-worker check MODEL.pt2 [--inputs F] [--stages K] [--cut-seed S] [--micro-batch N]
//   [--precision f32|f64] [--grads F] [-o json]; argv[0] is "check".
// Exit: 0 equal, 1 not equal, 3 refused or unusable (JSON {code, node, operator, message, next}
// with -o json), 2 wrong usage.
int check_command(int argc, char** argv, os::JailMode jail);

}  // namespace weft::executor
