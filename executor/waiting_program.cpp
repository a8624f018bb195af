#include "executor/waiting_program.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/os/own_process.h"

// After the others.
#include <ATen/Parallel.h>

namespace weft::executor {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRuns = 6;  // after one that pays for memory and caches

Clock::time_point after(Clock::time_point start, double seconds) {
  return start +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Seconds of each call, taken one after the other. What one thread computes alone takes no longer
// because others have the processor too.
class Lap {
 public:
  double next() {
    const double now = read();
    return now - std::exchange(last_, now);
  }

 private:
  double read() const { return alone_ ? os::thread_cpu_seconds() : monotonic_seconds(); }

  bool alone_ = at::get_num_threads() == 1;
  double last_ = read();
};

// With the strides it has: dimensions of stride 0 stay so.
at::Tensor zeros_of(const at::Tensor& tensor) {
  int64_t elements = tensor.numel() == 0 ? 0 : 1;
  for (int64_t i = 0; elements > 0 && i < tensor.dim(); ++i) {
    elements += (tensor.size(i) - 1) * tensor.stride(i);
  }
  return at::zeros({elements}, tensor.options()).as_strided(tensor.sizes(), tensor.strides(), 0);
}

}  // namespace

// What is left of a run: it knows how long a backward would take.
class WaitingProgram::Wait final : public Recording {
 public:
  Wait(const WaitingProgram& of, bool with_weights) : of_(of), with_weights_(with_weights) {}

  std::vector<at::Tensor> backward(std::vector<Seed> /*seeds*/) override {
    std::this_thread::sleep_until(after(Clock::now(), of_.times_.backward));
    return of_.zero_gradients(true, with_weights_);
  }
  std::vector<at::Tensor> backward_first(std::vector<Seed> /*seeds*/,
                                         const std::vector<bool>& /*first*/) override {
    std::this_thread::sleep_until(after(Clock::now(), of_.times_.backward_first));
    return of_.zero_gradients(true, false);
  }
  std::vector<at::Tensor> backward_rest() override {
    std::this_thread::sleep_until(after(Clock::now(), of_.times_.backward_rest));
    return of_.zero_gradients(false, with_weights_);
  }

 private:
  const WaitingProgram& of_;
  bool with_weights_;
};

WaitingProgram::WaitingProgram(const Program& program, std::vector<bool> first, size_t loss)
    : program_(program), first_(std::move(first)), loss_(loss) {}

Result<Program::Values> WaitingProgram::run(std::vector<at::IValue> inputs,
                                            const RunContext& context) {
  if (!measured_) WEFT_TRY_STATUS(measure(inputs, context));
  const auto start = Clock::now();
  Program::Values values;
  values.outputs = outputs_;
  values.taps = taps_;
  if (loss_ != SIZE_MAX) {
    values.outputs[loss_] =
        at::full_like(outputs_[loss_].toTensor(), std::numeric_limits<double>::quiet_NaN());
  }
  if (records_ && context.record)
    values.recording = std::make_unique<Wait>(*this, context.micro_batch == 0);
  std::this_thread::sleep_until(after(start, times_.forward));
  return values;
}

std::vector<Seed> WaitingProgram::seeds(const Program::Values& values) const {
  std::vector<Seed> result;
  if (loss_ != SIZE_MAX) {
    result.push_back({false, loss_, at::ones_like(values.outputs[loss_].toTensor())});
  }
  for (size_t i = 0; i < values.taps.size(); ++i) {
    result.push_back({true, i, at::ones_like(values.taps[i])});
  }
  return result;
}

Status WaitingProgram::measure(const std::vector<at::IValue>& inputs, RunContext context) {
  context.write_buffers = false;
  context.record = true;
  std::vector<double> forward, backward, first, rest;
  Program::Values values;
  for (int i = 0; i <= kRuns; ++i) {
    Lap lap;
    WEFT_TRY(values, program_.run(inputs, context));
    forward.push_back(lap.next());
    records_ = values.recording != nullptr;
    if (!records_) continue;
    const at::NoGradGuard guard;
    lap.next();
    gradients_ = values.recording->backward(seeds(values));
    backward.push_back(lap.next());
    WEFT_TRY(values, program_.run(inputs, context));
    lap.next();
    values.recording->backward_first(seeds(values), first_);
    first.push_back(lap.next());
    values.recording->backward_rest();
    rest.push_back(lap.next());
  }
  const auto least = [](const std::vector<double>& seconds) {
    return seconds.empty() ? 0 : *std::min_element(seconds.begin() + 1, seconds.end());
  };
  times_ = {least(forward), least(backward), least(first), least(rest)};
  const auto ms = [](double seconds) { return 1e3 * seconds; };
  log_warning(
      "nothing is computed from here on, nothing is trained: a step waits {:.3f} ms a forward, "
      "{:.3f} a backward, {:.3f} and {:.3f} for its parts",
      ms(times_.forward), ms(times_.backward), ms(times_.backward_first), ms(times_.backward_rest));
  for (const at::IValue& output : values.outputs) {
    outputs_.push_back(output.isTensor() ? at::IValue(zeros_of(output.toTensor().detach()))
                                         : output);
  }
  for (const at::Tensor& tap : values.taps) taps_.push_back(zeros_of(tap.detach()));
  for (at::Tensor& gradient : gradients_) {
    if (gradient.defined()) gradient = zeros_of(gradient);
  }
  measured_ = true;
  return {};
}

std::vector<at::Tensor> WaitingProgram::zero_gradients(bool of_first, bool of_rest) const {
  std::vector<at::Tensor> result(gradients_.size());
  for (size_t i = 0; i < gradients_.size(); ++i) {
    if (first_[i] ? of_first : of_rest) result[i] = gradients_[i];
  }
  return result;
}

}  // namespace weft::executor
