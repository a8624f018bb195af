// WaitingProgram: stands in for a Program on a machine whose cores cannot carry the compute of all
// the stages it plays (tests/netlab). Its first run computes, several times, and takes the times;
// from then on a pass waits that long and gives zeros of the shapes, types and strides that the
// first run gave. The loss is NaN: nothing was computed. All else of a stage (messages, credits,
// schedule, tied weights, optimizer) is the real thing.
//
// One thread's times are those of the processor, whatever else runs. Of several threads they are
// good only if the first run has the cores to itself, so no other stage may compute then. In a
// pipeline that holds by itself: a stage has its first input when those before it have measured
// theirs. CPU only; compute thread only.
#pragma once

#include <vector>

#include "executor/program.h"

namespace weft::executor {

class WaitingProgram {
 public:
  // first: as Recording::backward_first has it. loss: the program's output that is the loss, or
  // SIZE_MAX. The program must outlive this.
  WaitingProgram(const Program& program, std::vector<bool> first, size_t loss);

  // As Program::run. Gradients of inputs that are not `first` (weights) come with micro-batch 0
  // alone: their sum over a step is what the optimizer needs.
  Result<Program::Values> run(std::vector<at::IValue> inputs, const RunContext& context);

 private:
  class Wait;
  // The least of some runs, in seconds: others on the machine only ever add.
  struct Times {
    double forward = 0, backward = 0, backward_first = 0, backward_rest = 0;
  };

  Status measure(const std::vector<at::IValue>& inputs, RunContext context);
  std::vector<Seed> seeds(const Program::Values& values) const;
  std::vector<at::Tensor> zero_gradients(bool of_first, bool of_rest) const;

  const Program& program_;
  std::vector<bool> first_;
  size_t loss_;
  bool measured_ = false, records_ = false;
  Times times_;
  std::vector<at::IValue> outputs_;
  std::vector<at::Tensor> taps_, gradients_;
};

}  // namespace weft::executor
