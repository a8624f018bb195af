// CapturedProgram: runs a Program and its backward as device graphs. The first runs are plain (they
// warm up libraries); then a pass is captured for each micro-batch that is in flight at once, and
// used again for later ones. Numbers are those of the plain run: the same kernels on the same
// values, and draws of the same seeds. Compute thread only.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "executor/capture/graph_space.h"
#include "executor/program.h"

namespace weft::executor {

class CapturedProgram {
 public:
  // stable: inputs whose memory stays where it is, weights say; others are copied to a fixed place.
  // The program must be capturable (capturable.h) and outlive this.
  CapturedProgram(const Program& program, at::Device device, std::vector<bool> stable);
  // Graphs of another kind, for tests.
  using MakeSpace = std::function<std::unique_ptr<GraphSpace>()>;
  CapturedProgram(const Program& program, MakeSpace make_space, std::vector<bool> stable);
  ~CapturedProgram();

  // As Program::run. The recording's gradients of stable inputs are written again by a later run:
  // Recording::borrows() says so. A capture that fails is told once; it and what follows run
  // plainly.
  Result<Program::Values> run(std::vector<at::IValue> inputs, const RunContext& context);

  size_t passes() const { return passes_.size(); }
  // Runs and backwards so far that were made ready for later ones: warm-ups and captures.
  size_t preparations() const { return preparations_; }
  // Runs are device graphs by now, and none had to be given up.
  bool captures() const { return usable_ && !passes_.empty(); }

 private:
  struct Pass;
  class PassRecording;
  static constexpr int kWarmUps = 2;

  Pass* free_pass(const std::vector<at::IValue>& inputs);
  Result<Program::Values> capture(Pass& pass, std::vector<at::IValue> inputs,
                                  const RunContext& context);
  Program::Values replay(Pass& pass, const RunContext& context);
  std::unique_ptr<Recording> recording_again(const Pass& pass, const RunContext& context);
  void give_up(const std::string& reason);

  const Program& program_;
  MakeSpace make_space_;
  std::vector<bool> stable_;
  std::list<Pass> passes_;
  int runs_ = 0;
  size_t preparations_ = 0;
  bool usable_ = true;
};

}  // namespace weft::executor
