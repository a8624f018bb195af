#include "executor/measure_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/os/own_process.h"
#include "executor/autocast_guard.h"
#include "executor/capture/capturable.h"
#include "executor/capture/captured_program.h"
#include "executor/convert.h"
#include "executor/parameters.h"
#include "executor/program.h"

// After the others: waiting for whatever accelerator there is.
#include <ATen/DeviceAccelerator.h>

namespace weft::executor {
namespace {

constexpr uint64_t kSeed = 20;

bool one_thread(const MeasureOptions& options) {
  return options.device == "cpu" && options.threads == 1;
}

// One graph as a stage would run it: every float leaf wants a gradient, weights add theirs up.
class CaseRun {
 public:
  static Result<std::unique_ptr<CaseRun>> make(const opdag::Graph& graph, at::Device device,
                                               job::Precision precision, int32_t threads) {
    std::unique_ptr<CaseRun> run(new CaseRun(device, precision, threads));
    ProgramSpec spec;
    spec.device = device;
    // Leaves stay where they are: what it takes to copy inputs is no operator's.
    std::vector<bool> stable(graph.leaves.size(), true);
    for (size_t i = 0; i < graph.nodes.size(); ++i) spec.nodes.push_back(static_cast<int32_t>(i));
    spec.outputs = {graph.outputs.at(0).value};
    for (const opdag::Value& value : graph.values) {
      if (value.consumers.size() > 1) spec.fan_out.insert(value.id);
    }
    for (const opdag::Leaf& leaf : graph.leaves) {
      spec.inputs.push_back({leaf.value, opdag::kNone});
      const bool weight = leaf.kind == opdag::LeafKind::kParameter;
      spec.gradients.push_back(dtype_can_have_gradient(graph.value(leaf.value).meta.dtype));
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
  bool captured() const { return captured_ && captured_->captures(); }

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

}  // namespace

double typical(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 4];
}

double budget_now(const MeasureOptions& options) {
  return one_thread(options) ? os::thread_cpu_seconds() : monotonic_seconds();
}

void finish(at::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.has_index() ? device.index() : 0);
}

Result<MeasuredCase> run_case(const std::string& name, const opdag::Graph& graph,
                              job::OpClass op_class, job::Precision precision,
                              const MeasureOptions& options, double patience_s, double& loading_s) {
  loading_s = 0;
  try {
    WEFT_TRY(const at::Device device, parse_device(options.device));
    WEFT_TRY(const auto run, CaseRun::make(graph, device, precision, options.threads));
    MeasuredCase result;
    result.name = name;
    result.op_class = op_class;
    for (const job::Work& work : job::node_work(graph)) result.work.add(work);
    // A program is captured in its third run; before that, libraries choose their kernels.
    const int warm_ups = device.is_cpu() ? 1 : 4;
    double start = budget_now(options);
    for (int i = 0; i < warm_ups; ++i) {
      WEFT_TRY_STATUS(run->once());
      if (i == 0 && !device.is_cpu()) {
        loading_s = budget_now(options) - start;
        start += loading_s;
        continue;
      }
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
    result.captured = run->captured();
    result.forward_s = typical(forward);
    result.backward_s = typical(backward);
    loading_s = std::max(loading_s - result.forward_s - result.backward_s, 0.0);
    return result;
  } catch (const std::exception& error) {
    return make_error(Code::kInternal, fmt::format("{}: {}", name, exception_text(error)));
  }
}

}  // namespace weft::executor
