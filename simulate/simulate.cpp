#include "simulate/simulate.h"

#include <fmt/format.h>

#include "job/names.h"
#include "simulate/engine.h"
#include "simulate/transformer.h"

namespace weft::simulate {
namespace {

template <typename E>
Result<E> named(const JobGroup& job, const char* key, const std::string& name) {
  if (const auto value = job::value_of<E>(name)) return *value;
  std::string known;
  for (const auto& [other, value] : job::Names<E>::kAll) {
    known += (known.empty() ? "" : ", ") + std::string(other);
  }
  return make_error(Code::kInvalid,
                    fmt::format("job \"{}\": there is no {} \"{}\"", job.name, key, name),
                    "use one of: " + known);
}

}  // namespace

Result<Outcome> simulate(const Scenario& scenario, const std::vector<JobModel>& models,
                         const SimulateOptions& options) {
  if (models.size() != scenario.jobs.size()) {
    return make_error(Code::kInvalid,
                      fmt::format("{} models for {} jobs", models.size(), scenario.jobs.size()));
  }
  size_t traces = 0;
  for (const ChurnSpec& churn : scenario.churn) traces += churn.trace.empty() ? 0 : 1;
  if (traces > 0 && options.traces.size() != scenario.churn.size()) {
    return make_error(Code::kInvalid, "a churn trace of the scenario was not read");
  }
  return Engine(scenario, models, options).run();
}

Result<JobModel> model_of(const JobGroup& job, const JobModel* loaded) {
  JobModel model;
  if (loaded != nullptr) {
    model = *loaded;
  } else {
    WEFT_TRY(model.graph, transformer_graph(job.transformer));
    model.spec = transformer_job();
  }
  job::JobSpec& spec = model.spec;
  spec.name = job.name;
  if (job.steps > 0) spec.train.steps = job.steps;
  if (job.batch > 0) spec.train.batch = job.batch;
  if (job.checkpoint_every > 0) spec.train.checkpoint_every = job.checkpoint_every;
  if (job.stages > 0) spec.pipeline.stages = job.stages;
  if (!job.schedule.empty()) {
    WEFT_TRY(spec.pipeline.schedule, named<job::PipelineSchedule>(job, "schedule", job.schedule));
  }
  if (!job.precision.empty()) {
    WEFT_TRY(spec.train.precision, named<job::Precision>(job, "precision", job.precision));
  }
  if (!job.replan.empty()) {
    WEFT_TRY(spec.pipeline.replan, named<job::Replan>(job, "replan", job.replan));
  }
  // Wrong batches are told before anything runs.
  WEFT_TRY(const int32_t micro_batches, broker::micro_batches_of(model.graph, spec));
  (void)micro_batches;
  return model;
}

}  // namespace weft::simulate
