// simulate(): the production coordinator and planner, and the schedules workers run, over a
// scenario's peers and network under a virtual clock. The same scenario, models and seed give the
// same outcome, bit for bit on one machine.
//
// Real: every decision of the coordinator (broker/coordinator/), the planner and what it is told
// (planner_inputs), the actions of each stage (job/schedule.h). Modelled: daemons, workers and the
// network. Each action takes the time the planner's cost model gives for the peer's true speed;
// messages, downloads and checkpoints share lines; peers that vanish are noticed by time-outs. What
// crosses between stages is compressed as the scenario says: messages weigh what is on the wire,
// codecs take their stages' time.
// Not modelled: the optimizer's time, evaluation, loading of data, credits beyond two steps.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "job/spec.h"
#include "opdag/graph.h"
#include "simulate/job_play.h"
#include "simulate/outcome.h"
#include "simulate/scenario.h"

namespace weft::simulate {

struct JobModel {
  opdag::Graph graph;  // trained
  job::JobSpec spec;
};

struct SimulateOptions {
  // By ChurnSpec: its trace, or empty.
  std::vector<std::vector<TraceRow>> traces;
  // Called for what stages of jobs do (name of the job, number of its deployment), and for what the
  // coordinator tells of jobs and peers (empty name); empty: nobody looks.
  std::function<void(const std::string& job, int32_t deployment, const PlaySpan&)> on_span;
  std::function<void(double time_s, const std::string& job, const std::string& kind,
                     const std::string& message)>
      on_event;
  std::function<double()> seconds;  // a clock, for Outcome::wall_s and planning_s; empty: zero
};

// models: one for each scenario.jobs. Errors: kInvalid where a model does not fit its job's batch
// or schedule.
Result<Outcome> simulate(const Scenario& scenario, const std::vector<JobModel>& models,
                         const SimulateOptions& options = {});

// The model of a job of the scenario: the built-in transformer, or loaded from a job file by the
// caller; with the scenario's own steps, batch, stages, schedule and precision.
Result<JobModel> model_of(const JobGroup& job, const JobModel* loaded);

}  // namespace weft::simulate
