// What the stages tell each other before the optimizer steps, as messages of one row of float64:
//   kNorms  each stage to the loss stage: scale, overflow (0 or 1), then of every gradient of a
//           weight it owns the weight's id and the squared norm, ids ascending
//   kClip   the loss stage to each: global norm (-1: not asked for), apply (0 or 1), then the loss
//           scaler's next scale, good steps and skipped steps (0, 0, 0: no loss scaling)
// Both are exchanged where the job clips or scales. Nothing received is trusted. Pure but for the
// tensors that hold the bytes.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/result.h"
#include "executor/loss_scaler.h"
#include "net/message.h"

namespace weft::executor {

struct StageReport {
  float scale = 0;        // of its gradients, divided out by now; 0: no loss scaling
  bool overflow = false;  // inf or NaN in a gradient
  std::vector<std::pair<int32_t, double>> squares;  // Parameter::id, squared norm
};

struct StepVerdict {
  double norm = -1;
  bool apply = true;  // false: no stage steps
  LossScale next{0, 0, 0};
};

Result<net::Message> encode_report(const net::MessageKey& key, const StageReport& report);
// scale: of this stage, which every stage must share. leaves: of the graph; ids are below.
// kCorrupt for whatever no stage of this job would say.
Result<StageReport> decode_report(const net::Message& message, float scale, size_t leaves);

// What the reports of all stages come to. scaler: nullptr without loss scaling.
Result<StepVerdict> judge(const std::vector<StageReport>& reports, bool clips,
                          const LossScaler* scaler);

Result<net::Message> encode_verdict(const net::MessageKey& key, const StepVerdict& verdict);
// The receiver makes the scaler's move itself; a verdict that made another is refused.
Result<StepVerdict> decode_verdict(const net::Message& message, bool clips,
                                   const LossScaler* scaler);

}  // namespace weft::executor
