// DriftWatch: what the steps of one plan really take, robustly: medians over a window of steps,
// without the first ones of a run and those that followed a checkpoint. Pure; plain data of the
// coordinator's state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "job/plan.h"

namespace weft::broker {

class DriftWatch {
 public:
  static constexpr size_t kWindow = 8;        // steps
  static constexpr int64_t kWarmUpSteps = 2;  // memory, caches and libraries are new to them

  // A run of a plan begins after first_step. checkpoint_every: 0 where only the end has one.
  void begin(size_t stages, int64_t first_step, int64_t checkpoint_every);
  // A stage's step: its wall time, and how long it computed in it or, on a card, in the one before;
  // numbers that are no times change nothing.
  void add(size_t stage, int64_t step, double seconds, double compute_s);

  // Medians of full windows. A step is what the first stage sees, which is the last to end it.
  std::optional<double> step_s() const { return middle(step_s_); }
  std::optional<double> compute_s(size_t stage) const;
  // The least of each so far.
  std::optional<double> best_step_s() const { return best_step_s_; }
  std::optional<double> best_compute_s(size_t stage) const;

 private:
  static std::optional<double> middle(const std::vector<double>& window);
  bool counts(int64_t step) const;

  int64_t first_step_ = 0, checkpoint_every_ = 0;
  std::vector<double> step_s_;
  std::vector<std::vector<double>> compute_s_;  // by stage
  std::optional<double> best_step_s_;
  std::vector<std::optional<double>> best_compute_s_;
};

// Whether that much compute of a stage says how fast its peer is. Of one with next to nothing to do
// beside the busiest of the plan it says what passes cost, whatever there is in them.
bool tells_speed(const job::Plan& plan, size_t stage, double compute_s);

// What differs from the plan by more than noise does, in words; none: nothing. Steps slower than
// predicted or than the best of this plan, stages slower or faster than predicted.
std::optional<std::string> drift_of(const DriftWatch& watch, const job::Plan& plan);

// A stage's real compute is this many times what was predicted; none: not known, no more than
// noise, or too little to tell.
std::optional<double> stage_drift(const DriftWatch& watch, const job::Plan& plan, size_t stage);

// How many times the predicted compute the stages have taken at their best, the lower middle of
// them: what is wrong with the model of this job, not with a peer, so that it holds for peers that
// have shown nothing, too. 1 where it is noise or not known.
double model_error(const DriftWatch& watch, const job::Plan& plan);

}  // namespace weft::broker
