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
      go_on(clips() ? StepPhase::kMeasureNorms : StepPhase::kUpdate);
      return Progress::kRan;
    }
    case StepPhase::kMeasureNorms:
      measure_norms();
      go_on(StepPhase::kSendNorms);
      return Progress::kRan;
    case StepPhase::kSendNorms:
      if (squares_.copied && !squares_.copied->passed()) return Progress::kCopying;
      WEFT_TRY_STATUS(send_norms());
      go_on(options_.stage == train_.stages.loss_stage ? StepPhase::kCollectNorms
                                                       : StepPhase::kAwaitClip);
      return Progress::kRan;
    case StepPhase::kCollectNorms: {
      WEFT_TRY(const bool complete, collect_norms());
      if (!complete) return Progress::kWaiting;
      go_on(StepPhase::kUpdate);
      return Progress::kRan;
    }
    case StepPhase::kAwaitClip: {
      WEFT_TRY(const bool complete, await_clip());
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

void RuntimeImpl::measure_norms() {
  std::vector<at::Tensor> squares;
  for (const Parameter& parameter : parameters_) {
    if (owns(parameter) && parameter.gradient) squares.push_back(squared_norm(*parameter.gradient));
  }
  squares_ = squares.empty() ? PendingNumbers{} : fetch_numbers(at::stack(squares));
}

std::vector<std::pair<int32_t, double>> RuntimeImpl::own_norms() const {
  std::vector<std::pair<int32_t, double>> result;
  if (!squares_.host.defined()) return result;
  const auto* next = squares_.host.const_data_ptr<double>();
  for (const Parameter& parameter : parameters_) {
    if (owns(parameter) && parameter.gradient) result.emplace_back(parameter.id(), *next++);
  }
  return result;
}

Status RuntimeImpl::send_norms() {
  auto norms = own_norms();
  if (options_.stage == train_.stages.loss_stage) {
    norms_received_[options_.stage] = std::move(norms);
    return {};
  }
  const auto rows = static_cast<int64_t>(norms.size());
  at::Tensor table = at::empty({rows, 2}, at::kDouble);
  auto* data = table.data_ptr<double>();
  for (const auto& [id, square] : norms) {
    *data++ = id;
    *data++ = square;
  }
  WEFT_TRY(net::Message message, encode_tensor(key(net::MessageKind::kNorms, 0, 0, options_.stage),
                                               table, host_transfer()));
  return endpoint_.send(train_.stages.loss_stage, std::move(message));
}

Result<bool> RuntimeImpl::collect_norms() {
  bool complete = true;
  for (int32_t stage = 0; stage < options_.plan.partition.stages; ++stage) {
    if (norms_received_.contains(stage)) continue;
    const auto message = endpoint_.take(key(net::MessageKind::kNorms, 0, 0, stage));
    if (!message) {
      complete = false;
      continue;
    }
    const bool sane = !message->none && message->sizes.size() == 2 && message->sizes[1] == 2 &&
                      message->sizes[0] >= 0 &&
                      message->sizes[0] <= static_cast<int64_t>(graph_.leaves.size());
    if (!sane) {
      return make_error(Code::kCorrupt, fmt::format("{}: bad table", message->key.text()));
    }
    ExpectedTensor expected{message->sizes, DType::kFloat64, false, 0};
    WEFT_TRY(const auto table, decode_tensor(*message, expected, host_transfer()));
    auto& norms = norms_received_[stage];
    const auto* data = table->const_data_ptr<double>();
    for (int64_t i = 0; i < message->sizes[0]; ++i, data += 2) {
      // A double outside the range of int32_t has no conversion.
      const bool known = data[0] >= 0 && data[0] < static_cast<double>(graph_.leaves.size()) &&
                         data[0] == std::floor(data[0]);
      if (!known) {
        return make_error(Code::kCorrupt, fmt::format("{}: norm of an unknown weight {}",
                                                      message->key.text(), data[0]));
      }
      norms.emplace_back(static_cast<int32_t>(data[0]), data[1]);
    }
  }
  if (!complete) return false;
  std::vector<std::pair<int32_t, double>> all;
  for (const auto& [stage, norms] : norms_received_) {
    all.insert(all.end(), norms.begin(), norms.end());
  }
  std::sort(all.begin(), all.end());
  double sum = 0;
  for (const auto& [id, square] : all) sum += square;
  norm_ = std::sqrt(sum);
  for (int32_t stage = 0; stage < options_.plan.partition.stages; ++stage) {
    if (stage == options_.stage) continue;
    WEFT_TRY(net::Message message,
             encode_tensor(key(net::MessageKind::kClip, 0, 0, options_.stage),
                           at::full({}, norm_, at::kDouble), host_transfer()));
    WEFT_TRY_STATUS(endpoint_.send(stage, std::move(message)));
  }
  return true;
}

Result<bool> RuntimeImpl::await_clip() {
  const auto message = endpoint_.take(key(net::MessageKind::kClip, 0, 0, train_.stages.loss_stage));
  if (!message) return false;
  WEFT_TRY(const auto norm,
           decode_tensor(*message, ExpectedTensor{{}, DType::kFloat64, false, 1}, host_transfer()));
  if (!norm) return make_error(Code::kCorrupt, fmt::format("{}: absent", message->key.text()));
  norm_ = norm->item<double>();
  return true;
}

Status RuntimeImpl::update() {
  if (clips()) {
    result_.grad_norm = norm_;
    // torch.nn.utils.clip_grad_norm_: the coefficient is capped at 1 (and NaN passes through).
    const double coefficient = options_.train.clip_norm / (norm_ + 1e-6);
    for (Parameter& parameter : parameters_) {
      if (!parameter.gradient || coefficient >= 1.0) continue;
      parameter.gradient->mul_(coefficient);
    }
  }
  if (options_.keep_gradients) return {};
  for (Parameter& parameter : parameters_) {
    if (!owns(parameter)) continue;
    parameter.value.mutable_grad() = parameter.gradient.value_or(at::Tensor());
    parameter.gradient.reset();
  }
  WEFT_TRY_STATUS(optimizer_->step(step_));
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
