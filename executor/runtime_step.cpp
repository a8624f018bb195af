#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "executor/runtime_impl.h"

namespace weft::executor {

bool RuntimeImpl::owns(const Parameter& parameter) const {
  return parameter.trainable && parameter.owner() == options_.stage;
}

ExpectedTensor RuntimeImpl::expected_parameter(const Parameter& parameter) const {
  const opdag::Leaf& leaf = graph_.leaves[static_cast<size_t>(parameter.leaves[0])];
  return expected_tensor(graph_.value(leaf.value).meta, false);
}

// Runs as far as what has arrived allows.
Result<Progress> RuntimeImpl::step() {
  const at::NoGradGuard guard;
  const auto go_on = [this](StepPhase next) { phase_ = next; };
  switch (phase_) {
    case StepPhase::kSendTied:
      WEFT_TRY_STATUS(send_tied_gradients());
      go_on(StepPhase::kCollectTied);
      return Progress::kRan;
    case StepPhase::kCollectTied: {
      WEFT_TRY(const bool complete, collect_tied_gradients());
      if (!complete) return Progress::kWaiting;
      go_on(reports() ? StepPhase::kMeasure : StepPhase::kUpdate);
      return Progress::kRan;
    }
    case StepPhase::kMeasure:
      measure_gradients();
      go_on(StepPhase::kReport);
      return Progress::kRan;
    case StepPhase::kReport:
      if (measured_.copied && !measured_.copied->passed()) return Progress::kCopying;
      WEFT_TRY_STATUS(send_report());
      go_on(options_.stage == train_.stages.loss_stage ? StepPhase::kCollectReports
                                                       : StepPhase::kAwaitVerdict);
      return Progress::kRan;
    case StepPhase::kCollectReports: {
      WEFT_TRY(const bool complete, collect_reports());
      if (!complete) return Progress::kWaiting;
      go_on(StepPhase::kUpdate);
      return Progress::kRan;
    }
    case StepPhase::kAwaitVerdict: {
      WEFT_TRY(const bool complete, await_verdict());
      if (!complete) return Progress::kWaiting;
      go_on(StepPhase::kUpdate);
      return Progress::kRan;
    }
    case StepPhase::kUpdate:
      WEFT_TRY_STATUS(update());
      go_on(StepPhase::kReadLoss);
      return Progress::kRan;
    case StepPhase::kReadLoss:
      break;
  }
  if (loss_read_.copied && !loss_read_.copied->passed()) return Progress::kCopying;
  read_loss();
  phase_ = StepPhase::kSendTied;
  return Progress::kDone;
}

void RuntimeImpl::read_loss() {
  if (!loss_read_.host.defined()) return;  // another stage's
  result_.loss = loss_read_.host.item<double>() / micro_batches_;
}

Status RuntimeImpl::send_tied_gradients() {
  for (Parameter& parameter : parameters_) {
    if (!parameter.trainable || !parameter.shared() || owns(parameter)) continue;
    OptionalTensors sums;
    for (ParameterUse& use : parameter.uses) {
      if (use.stage != options_.stage) continue;
      sums.push_back(std::move(use.gradient));
      use.gradient.reset();
      use.owned = false;
    }
    const auto id = static_cast<uint32_t>(parameter.id());
    WEFT_TRY(net::Message message,
             encode_bundle(key(net::MessageKind::kTiedGradient, 0, id, options_.stage), sums,
                           *transfer_));
    post(parameter.owner(), std::move(message));
  }
  return {};
}

Result<bool> RuntimeImpl::collect_tied_gradients() {
  bool complete = true;
  for (Parameter& parameter : parameters_) {
    if (!owns(parameter)) continue;
    for (int32_t stage : parameter.stages) {
      if (stage == options_.stage || tied_received_.contains({parameter.id(), stage})) continue;
      const auto message = endpoint_.take(
          key(net::MessageKind::kTiedGradient, 0, static_cast<uint32_t>(parameter.id()), stage));
      if (!message) {
        complete = false;
        continue;
      }
      WEFT_TRY(OptionalTensors sums, decode_bundle(*message, parameter.uses_in(stage),
                                                   expected_parameter(parameter), *transfer_));
      tied_received_[{parameter.id(), stage}] = std::move(sums);
    }
  }
  if (!complete) return false;
  for (Parameter& parameter : parameters_) {
    if (!owns(parameter)) continue;
    std::map<int32_t, size_t> next;  // by stage; both ends list uses in the same order
    for (ParameterUse& use : parameter.uses) {
      if (use.stage == options_.stage) continue;
      use.gradient = tied_received_.at({parameter.id(), use.stage})[next[use.stage]++];
      use.owned = use.gradient.has_value();
    }
    fold_uses(parameter);
  }
  tied_received_.clear();
  return true;
}

Status RuntimeImpl::update() {
  if (scaler_) {
    result_.loss_scale = scaler_->now().scale;
    result_.skipped = !verdict_.apply;
    result_.skipped_steps = verdict_.next.skipped_steps;
    scaler_->set(verdict_.next);
  }
  if (clips() && verdict_.apply) {
    result_.grad_norm = verdict_.norm;
    // torch.nn.utils.clip_grad_norm_: the coefficient is capped at 1 (and NaN passes through).
    const double coefficient = options_.train.clip_norm / (verdict_.norm + 1e-6);
    for (Parameter& parameter : parameters_) {
      if (!parameter.gradient || coefficient >= 1.0) continue;
      parameter.gradient->mul_(coefficient);
    }
  }
  if (options_.keep_gradients) return {};
  for (Parameter& parameter : parameters_) {
    if (!owns(parameter)) continue;
    if (verdict_.apply) parameter.value.mutable_grad() = parameter.gradient.value_or(at::Tensor());
    parameter.gradient.reset();
  }
  // A skipped step changes no weight: there is nothing to publish and nobody waits.
  if (!verdict_.apply) return {};
  const int64_t skipped = scaler_ ? scaler_->now().skipped_steps : 0;
  WEFT_TRY_STATUS(optimizer_->step(step_ - skipped));
  return publish_weights();
}

Status RuntimeImpl::publish_weights() {
  for (const Parameter& parameter : parameters_) {
    if (!parameter.trainable || !parameter.shared()) continue;
    const auto id = static_cast<uint32_t>(parameter.id());
    if (!owns(parameter)) {
      awaited_weights_[parameter.id()] = step_;
      continue;
    }
    const at::Tensor copy = parameter.value.detach().clone();  // the next step writes the original
    for (int32_t stage : parameter.stages) {
      if (stage == options_.stage) continue;
      WEFT_TRY(net::Message message,
               encode_tensor(key(net::MessageKind::kTiedWeight, 0, id, options_.stage), copy,
                             *transfer_));
      post(stage, std::move(message));
    }
  }
  return {};
}

Result<bool> RuntimeImpl::collect_weights() {
  const at::NoGradGuard guard;
  for (Parameter& parameter : parameters_) {
    const auto awaited = awaited_weights_.find(parameter.id());
    if (awaited == awaited_weights_.end()) continue;
    net::MessageKey wanted = key(net::MessageKind::kTiedWeight, 0,
                                 static_cast<uint32_t>(parameter.id()), parameter.owner());
    wanted.step = static_cast<uint64_t>(awaited->second);
    const auto message = endpoint_.take(wanted);
    if (!message) continue;
    WEFT_TRY(const auto value, decode_tensor(*message, expected_parameter(parameter), *transfer_));
    if (!value) return make_error(Code::kCorrupt, fmt::format("{}: absent", wanted.text()));
    parameter.value.copy_(*value);
    awaited_weights_.erase(awaited);
  }
  return awaited_weights_.empty();
}

}  // namespace weft::executor
