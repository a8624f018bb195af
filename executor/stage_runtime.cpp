#include "executor/stage_runtime.h"

#include <fmt/format.h>

#include <chrono>
#include <limits>

#include "executor/runtime_impl.h"

namespace weft::executor {

Result<std::unique_ptr<StageRuntime>> StageRuntime::make(opdag::Graph graph,
                                                         opdag::Graph eval_graph,
                                                         const RuntimeOptions& options,
                                                         const WeightSource& weights,
                                                         net::Endpoint& endpoint, Feed& feed) {
  WEFT_TRY(const at::Device device, parse_device(options.device));
  if (options.compute == Compute::kWaited && !device.is_cpu()) {
    return make_error(Code::kInvalid, "compute can be replaced by waiting on the CPU only",
                      "start weft-worker without --wait");
  }
  if (options.micro_batches < 1) {
    return make_error(Code::kInvalid,
                      fmt::format("{} micro-batches in a step", options.micro_batches));
  }
  if (options.stage < 0 || options.stage >= options.plan.partition.stages) {
    return make_error(Code::kInvalid, fmt::format("stage {} of a plan of {}", options.stage,
                                                  options.plan.partition.stages));
  }
  try {
    auto runtime = std::make_unique<RuntimeImpl>(std::move(graph), std::move(eval_graph), options,
                                                 device, endpoint, feed);
    WEFT_TRY_STATUS(runtime->build(weights));
    return std::unique_ptr<StageRuntime>(std::move(runtime));
  } catch (const std::exception& error) {
    return make_error(Code::kInternal,
                      fmt::format("building stage {}: {}", options.stage, exception_text(error)));
  }
}

RuntimeImpl::RuntimeImpl(opdag::Graph graph, opdag::Graph eval_graph, const RuntimeOptions& options,
                         at::Device device, net::Endpoint& endpoint, Feed& feed)
    : graph_(std::move(graph)),
      eval_graph_(std::move(eval_graph)),
      options_(options),
      device_(device),
      endpoint_(endpoint),
      feed_(feed),
      transfer_(options.transfer(device)),
      timer_(options.moments(device)) {
  if (options.train.precision == job::Precision::kFp16) scaler_.emplace(options.train.loss_scale);
}

Status RuntimeImpl::begin_step(int64_t step) {
  if (!train_.present) {
    return make_error(Code::kInvalid, "the graph has no scalar loss output: it cannot be trained",
                      "name a loss in the job file: loss = \"cross_entropy\" or \"mse\"");
  }
  const job::ScheduleOptions schedule{options_.plan.schedule, options_.micro_batches,
                                      options_.plan.gap};
  evaluating_ = false;
  step_ = step;
  micro_batches_ = options_.micro_batches;
  actions_ = job::make_schedule(train_.stages, schedule)[static_cast<size_t>(options_.stage)];
  next_action_ = 0;
  flights_.clear();
  loss_total_.reset();
  loss_read_ = {};
  phase_ = StepPhase::kSendTied;
  tied_received_.clear();
  reports_.clear();
  verdict_ = {};
  result_ = {};
  result_.loss = std::numeric_limits<double>::quiet_NaN();
  timer_.begin_step();
  prepared_ = preparations();
  return {};
}

Status RuntimeImpl::begin_eval(int64_t ordinal, int32_t micro_batches) {
  if (eval_graph_.nodes.empty()) {
    return make_error(Code::kInvalid, "this job has no evaluation graph");
  }
  if (micro_batches < 1) {
    return make_error(Code::kInvalid, "an evaluation needs at least one micro-batch",
                      "give more evaluation data");
  }
  evaluating_ = true;
  step_ = ordinal;
  micro_batches_ = micro_batches;
  actions_.clear();
  if (eval_.present) {
    actions_ =
        job::make_eval_schedule(eval_.stages, micro_batches)[static_cast<size_t>(eval_.stage)];
  }
  next_action_ = 0;
  flights_.clear();
  loss_sum_ = 0;
  correct_ = counted_ = 0;
  outputs_.clear();
  result_ = {};
  result_.loss = std::numeric_limits<double>::quiet_NaN();
  return {};
}

Result<Progress> RuntimeImpl::advance() {
  const auto rest = [this](Progress otherwise) {
    return outbox_.empty() ? otherwise : Progress::kCopying;
  };
  WEFT_TRY_STATUS(send_copied());
  if (next_action_ >= actions_.size()) return rest(Progress::kDone);
  const auto start = std::chrono::steady_clock::now();
  try {
    if (!evaluating_) timer_.begin_action();
    WEFT_TRY(const Progress progress, run_action(actions_[next_action_]));
    if (progress == Progress::kWaiting) return rest(progress);
    if (progress == Progress::kCopying) return progress;
    if (!evaluating_) timer_.end_action();
    result_.busy_s +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (progress == Progress::kDone) ++next_action_;
    if (next_action_ < actions_.size()) return Progress::kRan;
    if (!evaluating_) end_timing();
    return rest(Progress::kDone);
  } catch (const std::exception& error) {
    return make_error(Code::kInternal,
                      fmt::format("stage {}: {}", options_.stage, exception_text(error)));
  }
}

// A pass that is captured takes many times what it will.
void RuntimeImpl::end_timing() {
  if (preparations() == prepared_) timer_.end_step();
  result_.compute_s = timer_.take_seconds();
}

Result<Progress> RuntimeImpl::run_action(const job::Action& action) {
  // kDone: the action is over; kRan: a part of it ran.
  const auto done = [](const Status& status) -> Result<Progress> {
    if (!status.ok()) return status.error();
    return Progress::kDone;
  };
  switch (action.kind) {
    case job::ActionKind::kRecvActivation:
      return receive_activation(action);
    case job::ActionKind::kForward:
      return forward(action.micro_batch);
    case job::ActionKind::kSendActivation:
      return done(send_activation(action));
    case job::ActionKind::kRecvGradient:
      return receive_gradient(action);
    case job::ActionKind::kBackward:
      return done(backward(action.micro_batch));
    case job::ActionKind::kBackwardInput:
      return done(backward_input(action.micro_batch));
    case job::ActionKind::kBackwardWeight:
      return done(backward_weight(action.micro_batch));
    case job::ActionKind::kSendGradient:
      return done(send_gradient(action));
    case job::ActionKind::kStep:
      return step();
  }
  return make_error(Code::kInternal, "unknown action");
}

}  // namespace weft::executor
