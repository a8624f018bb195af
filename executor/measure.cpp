#include "executor/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "base/clock.h"
#include "base/log.h"
#include "base/os/own_process.h"
#include "base/os/process.h"
#include "base/version.h"
#include "executor/autocast_guard.h"
#include "executor/capture/capturable.h"
#include "executor/capture/captured_program.h"
#include "executor/convert.h"
#include "executor/device_memory.h"
#include "executor/measure_cases.h"
#include "executor/parameters.h"
#include "executor/program.h"
#include "executor/transfer.h"

// After the others: waiting for whatever accelerator there is.
#include <ATen/DeviceAccelerator.h>

namespace weft::executor {
namespace {

constexpr uint64_t kSeed = 20;
constexpr size_t kCopyBytes = size_t{64} << 20;
constexpr int kCopyRuns = 5;
constexpr int kLeastCases = 3;  // of a family, and of a class: as many as it has coefficients

// The lower quartile: what disturbs a run only makes it longer.
double typical(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 4];
}

bool one_thread(const MeasureOptions& options) {
  return options.device == "cpu" && options.threads == 1;
}

// The clock of the time there is. What one thread does alone takes no longer, and no more of the
// budget, because the machine has something else to do.
double budget_now(const MeasureOptions& options) {
  return one_thread(options) ? os::thread_cpu_seconds() : monotonic_seconds();
}

// Kernels run on after a call returns: nothing is timed before they are done.
void finish(at::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

uint64_t tensor_bytes(const opdag::Graph& graph) {
  uint64_t bytes = 0;
  for (const opdag::Value& value : graph.values) {
    bytes += static_cast<uint64_t>(opdag::meta_bytes(value.meta));
  }
  return bytes;
}

// One graph as a stage would run it: every float leaf wants a gradient, weights add theirs up.
class CaseRun {
 public:
  static Result<std::unique_ptr<CaseRun>> make(const opdag::Graph& graph, at::Device device,
                                               job::Precision precision, int32_t threads) {
    std::unique_ptr<CaseRun> run(new CaseRun(device, precision, threads));
    ProgramSpec spec;
    spec.device = device;
    std::vector<bool> stable;
    for (size_t i = 0; i < graph.nodes.size(); ++i) spec.nodes.push_back(static_cast<int32_t>(i));
    spec.outputs = {graph.outputs.at(0).value};
    for (const opdag::Value& value : graph.values) {
      if (value.consumers.size() > 1) spec.fan_out.insert(value.id);
    }
    for (const opdag::Leaf& leaf : graph.leaves) {
      spec.inputs.push_back({leaf.value, opdag::kNone});
      const bool weight = leaf.kind == opdag::LeafKind::kParameter;
      spec.gradients.push_back(dtype_can_have_gradient(graph.value(leaf.value).meta.dtype));
      stable.push_back(weight);
      run->uses_.emplace_back();
      run->is_weight_.push_back(weight);
      run->inputs_.emplace_back(run->fill(graph, leaf));
    }
    WEFT_TRY(run->program_, Program::compile(graph, spec));
    if (!device.is_cpu() && why_not_capturable(graph, spec.nodes).empty() &&
        run->program_.differentiation() == Differentiation::kTape) {
      run->captured_ = std::make_unique<CapturedProgram>(run->program_, device, std::move(stable));
    }
    return run;
  }

  struct Times {
    double forward_s = 0, backward_s = 0;
  };
  Result<Times> once() {
    const RunContext context{kSeed, step_++, 0, true};
    finish(device_);
    const double start = now();
    Program::Values values;
    {
      const AutocastGuard autocast(autocast_type(precision_), device_.type());
      WEFT_TRY(values,
               captured_ ? captured_->run(inputs_, context) : program_.run(inputs_, context));
    }
    finish(device_);
    const double middle = now();
    if (!seed_.defined()) {
      const at::NoGradGuard guard;
      seed_ = at::ones_like(values.outputs.at(0).toTensor().detach());
    }
    finish(device_);
    const double again = now();
    backward(*values.recording);
    finish(device_);
    return Times{middle - start, now() - again};
  }

 private:
  CaseRun(at::Device device, job::Precision precision, int32_t threads)
      : device_(device), precision_(precision), alone_(device.is_cpu() && threads == 1) {}

  // What one thread does alone is not longer because the machine had something else to do.
  double now() const { return alone_ ? os::thread_cpu_seconds() : monotonic_seconds(); }

  void backward(Recording& recording) {
    const at::NoGradGuard guard;
    const bool borrowed = recording.borrows();
    std::vector<at::Tensor> found = recording.backward({{false, 0, seed_}});
    for (size_t i = 0; i < found.size(); ++i) {
      if (!is_weight_[i]) continue;
      if (borrowed && !uses_[i].gradient && found[i].defined()) found[i] = found[i].clone();
      accumulate(uses_[i], std::move(found[i]), borrowed);
    }
  }

  // Numbers of plausible size; activations as autocast's products leave them.
  at::Tensor fill(const opdag::Graph& graph, const opdag::Leaf& leaf) const {
    const at::NoGradGuard guard;
    const opdag::TensorMeta& meta = graph.value(leaf.value).meta;
    at::Generator generator = at::globalContext().defaultGenerator(device_).clone();
    generator.set_current_seed(kSeed + static_cast<uint64_t>(leaf.value));
    if (!dtype_can_have_gradient(meta.dtype)) {
      int64_t bound = 2;  // labels, or rows of the table
      for (const opdag::Leaf& other : graph.leaves) {
        const opdag::TensorMeta& wide = graph.value(other.value).meta;
        if (wide.sizes.size() != 2) continue;
        bound = wide.sizes[other.kind == opdag::LeafKind::kParameter ? 0 : 1];
      }
      return at::randint(bound, meta.sizes, generator,
                         at::TensorOptions(at::kLong).device(device_));
    }
    at::Tensor tensor = at::empty(meta.sizes, at::TensorOptions(at::kFloat).device(device_));
    const bool weight = leaf.kind == opdag::LeafKind::kParameter;
    double fan_in = 1;
    for (size_t i = 1; i < meta.sizes.size(); ++i) fan_in *= static_cast<double>(meta.sizes[i]);
    const double reach = weight && fan_in > 1 ? std::sqrt(3 / fan_in) : 1;
    tensor.uniform_(-reach, reach, generator);
    const auto half = autocast_type(precision_);
    return half && !weight ? tensor.to(*half) : tensor;
  }

  at::Device device_;
  job::Precision precision_;
  bool alone_;
  Program program_;
  std::unique_ptr<CapturedProgram> captured_;
  std::vector<at::IValue> inputs_;
  std::vector<bool> is_weight_;
  std::vector<ParameterUse> uses_;
  at::Tensor seed_;
  int64_t step_ = 0;
};

// GB/s between host memory and the device, in the way messages go; zero on a CPU.
void measure_copies(at::Device device, job::DeviceProfile& profile) {
  if (device.is_cpu()) return;
  const at::NoGradGuard guard;
  const auto transfer = Transfer::make(device);
  const at::Tensor host = transfer->host_bytes(kCopyBytes);
  std::vector<double> in, out;
  for (int run = 0; run < kCopyRuns; ++run) {
    finish(device);
    const double start = monotonic_seconds();
    const at::Tensor there = transfer->to_device(host);
    finish(device);
    const double middle = monotonic_seconds();
    transfer->copy_to_host(there, host);
    const auto mark = transfer->mark();
    finish(device);
    in.push_back(middle - start);
    out.push_back(monotonic_seconds() - middle);
  }
  profile.to_device_gbyte_s = 1e-9 * static_cast<double>(kCopyBytes) / typical(in);
  profile.from_device_gbyte_s = 1e-9 * static_cast<double>(kCopyBytes) / typical(out);
}

}  // namespace

Result<MeasuredCase> run_case(const std::string& name, const opdag::Graph& graph,
                              job::OpClass op_class, job::Precision precision,
                              const MeasureOptions& options, double patience_s) {
  try {
    WEFT_TRY(const at::Device device, parse_device(options.device));
    WEFT_TRY(const auto run, CaseRun::make(graph, device, precision, options.threads));
    MeasuredCase result{name, op_class, {}, 0, 0};
    for (const job::Work& work : job::node_work(graph)) result.work.add(work);
    // A program is captured in its third run; before that, libraries choose their kernels.
    const int warm_ups = device.is_cpu() ? 1 : 4;
    const double start = budget_now(options);
    for (int i = 0; i < warm_ups; ++i) {
      WEFT_TRY_STATUS(run->once());
      if (budget_now(options) - start > patience_s) {
        return make_error(Code::kCancelled, fmt::format("{} takes too long here", name));
      }
    }
    std::vector<double> forward, backward;
    for (int i = 0; i < options.most_runs; ++i) {
      if (i >= options.least_runs && budget_now(options) - start > patience_s) break;
      WEFT_TRY(const CaseRun::Times times, run->once());
      forward.push_back(times.forward_s);
      backward.push_back(times.backward_s);
    }
    result.forward_s = typical(forward);
    result.backward_s = typical(backward);
    return result;
  } catch (const std::exception& error) {
    return make_error(Code::kInternal, fmt::format("{}: {}", name, exception_text(error)));
  }
}

Result<std::vector<MeasuredCase>> run_cases(job::Precision precision, const MeasureOptions& options,
                                            double seconds) {
  struct Progress {
    bool over = false;
    double took = 0;  // by the level before
  };
  const std::vector<CaseFamily> families = measure_families();
  std::vector<Progress> progress(families.size());
  std::vector<MeasuredCase> cases;
  // until: a level that would take longer is not begun; patience: of its warm-up.
  const auto run_level = [&](size_t i, int level, double until, double patience) -> Status {
    const double start = budget_now(options);
    // A level is about four times as much as the one before.
    progress[i].over = level >= families[i].levels || start + 2 * progress[i].took > until;
    if (progress[i].over) return {};
    WEFT_TRY(const opdag::Graph graph, families[i].make(level));
    progress[i].over = true;
    // Three times: values, their gradients, and what the backward keeps.
    if (3 * tensor_bytes(graph) > options.max_case_bytes) return {};
    const std::string name = fmt::format("{} {}", families[i].name, level);
    auto measured = run_case(name, graph, families[i].op_class, precision, options, patience);
    if (!measured.ok()) {
      // One operator that a device cannot run says nothing about the others.
      if (measured.error().code != Code::kCancelled) {
        log_warning("not measured: {}", measured.error().text());
      }
      return {};
    }
    cases.push_back(std::move(measured).value());
    progress[i] = {false, budget_now(options) - start};
    return {};
  };
  const double end = budget_now(options) + seconds, last = end + seconds;
  // First what fits need at least, of every family, and be it later than the end: a class that is
  // slow here, as convolution in bf16 on a processor that emulates it, takes no other's time.
  for (int level = 0; level < kLeastCases; ++level) {
    for (size_t i = 0; i < families.size(); ++i) {
      if (progress[i].over) continue;
      WEFT_TRY_STATUS(run_level(i, level, last, (last - budget_now(options)) / 4));
    }
  }
  for (size_t i = 0; i < families.size(); ++i) {
    const double now = budget_now(options);
    const double family_end = now + (end - now) / static_cast<double>(families.size() - i);
    for (int level = kLeastCases; !progress[i].over; ++level) {
      const double left = family_end - budget_now(options);
      const int steps = std::clamp(families[i].levels - level, 1, 4);
      WEFT_TRY_STATUS(run_level(i, level, family_end, left / steps));
    }
  }
  return cases;
}

job::MeasuredCosts fit_cases(const std::vector<MeasuredCase>& cases) {
  std::map<job::OpClass, std::vector<const MeasuredCase*>> by_class;
  for (const MeasuredCase& one : cases) by_class[one.op_class].push_back(&one);
  job::MeasuredCosts result;
  for (const auto& [op_class, members] : by_class) {
    if (members.size() < static_cast<size_t>(kLeastCases)) continue;  // anything would fit them
    std::vector<job::CostSample> forward, backward;
    for (const MeasuredCase* one : members) {
      const job::ClassWork total = one->work.total();
      forward.push_back(
          {total.operators, total.flops_forward, total.bytes_forward, one->forward_s});
      backward.push_back(
          {total.operators, total.flops_backward, total.bytes_backward, one->backward_s});
    }
    const auto at = static_cast<size_t>(op_class);
    const job::CostFit ahead = job::fit_costs(forward), back = job::fit_costs(backward);
    result.costs[at] = {ahead.cost, back.cost};
    result.errors[at] = {ahead.error, back.error, static_cast<int32_t>(members.size())};
  }
  return result;
}

Result<job::DeviceProfile> measure_device(const MeasureOptions& options) {
  const double start = budget_now(options);
  try {
    WEFT_TRY(const at::Device device, parse_device(options.device));
    job::DeviceProfile profile;
    profile.device = options.device;
    profile.version = kVersion;
    profile.threads = options.threads;
    WEFT_TRY(profile.memory_total_bytes, total_memory_bytes(options.device));
    WEFT_TRY(profile.memory_free_bytes, free_memory_bytes(options.device));
    measure_copies(device, profile);
    const double half = (options.seconds - (budget_now(options) - start)) / 2;
    WEFT_TRY(const auto single, run_cases(job::Precision::kFp32, options, half));
    profile.fp32 = fit_cases(single);
    const double left = options.seconds - (budget_now(options) - start);
    WEFT_TRY(const auto mixed, run_cases(job::Precision::kBf16, options, left));
    profile.bf16 = fit_cases(mixed);
    profile.seconds = budget_now(options) - start;
    return profile;
  } catch (const std::exception& error) {
    return make_error(Code::kInternal,
                      fmt::format("measuring {}: {}", options.device, exception_text(error)));
  }
}

}  // namespace weft::executor
