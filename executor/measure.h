// Measuring a device: chains of operators of every class (measure_cases.h) run forward and backward
// by the program a stage uses (tape, autocast, device graphs), timed, and fitted as a0 + a1 FLOPs +
// a2 bytes (job/cost_fit.h). Bounded in time and memory. Compute thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/os/jail.h"
#include "executor/aten.h"
#include "job/cost_fit.h"
#include "job/device_profile.h"

namespace weft::executor {

struct MeasureOptions {
  std::string device = "cpu";
  int32_t threads = 1;
  // For both precisions. Twice that where fits need it, once more where a card loads kernels for
  // long, many times on a machine that has much else to do; of the processor where one thread
  // measures a CPU.
  double seconds = 8;
  // What a case may need. None given: 256 MiB; on a card a sixteenth of what it has free where that
  // is more, up to 4 GiB: what is small there is decided by starting operators, not by FLOPs, and
  // fits in its caches.
  std::optional<uint64_t> max_case_bytes;
  int least_runs = 3, most_runs = 15;  // of a case; their lower quartile counts
};

// One case: what its graph holds and how long a pass took.
struct MeasuredCase {
  std::string name;
  job::OpClass op_class = job::OpClass::kElementwise;
  job::Work work;
  double forward_s = 0, backward_s = 0;
  bool captured = false;  // ran as device graphs
};

// What a pass takes beside its operators: to start it and to see its end.
struct PassOverhead {
  double forward_s = 0, backward_s = 0;
};

// The lower quartile of the runs of one graph; kCancelled where a warm-up alone took longer than
// patience_s. On a card the first run is no part of that: loading_s is what it took to load
// kernels, known after errors too.
Result<MeasuredCase> run_case(const std::string& name, const opdag::Graph& graph,
                              job::OpClass op_class, job::Precision precision,
                              const MeasureOptions& options, double patience_s, double& loading_s);

// Every family up to the size that its share of the time allows.
Result<std::vector<MeasuredCase>> run_cases(job::Precision precision, const MeasureOptions& options,
                                            double seconds);

// Of device graphs: out of a short and a long chain of operators on next to nothing. Zero on a CPU,
// where a pass starts by its first operator.
Result<PassOverhead> pass_overhead(job::Precision precision, const MeasureOptions& options);

// overhead: of a case that was captured.
job::MeasuredCosts fit_cases(const std::vector<MeasuredCase>& cases,
                             const PassOverhead& overhead = {});

// All of it. Errors: kInvalid for a device nobody knows, kUnavailable for one that is not there.
Result<job::DeviceProfile> measure_device(const MeasureOptions& options);

// weft-worker measure [--device cpu|cuda:N] [--threads N] [--seconds S]; argv[0] is "measure".
// Prints the profile as one line of JSON. Exit: 0 done, 1 failed, 2 wrong usage.
int measure_command(int argc, char** argv, os::JailMode jail);

}  // namespace weft::executor
