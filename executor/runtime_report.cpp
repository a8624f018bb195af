#include "executor/runtime_impl.h"

namespace weft::executor {

// Divides the loss scale out of the gradients this stage owns, and measures them on the device.
void RuntimeImpl::measure_gradients() {
  std::vector<at::Tensor> gradients, numbers;
  for (const Parameter& parameter : parameters_) {
    if (owns(parameter) && parameter.gradient) gradients.push_back(*parameter.gradient);
  }
  if (scaler_) numbers.push_back(unscale(gradients, scaler_->now().scale, device_));
  if (clips()) {
    for (const at::Tensor& gradient : gradients) numbers.push_back(squared_norm(gradient));
  }
  measured_ = numbers.empty() ? PendingNumbers{} : fetch_numbers(at::stack(numbers));
}

StageReport RuntimeImpl::own_report() const {
  StageReport report;
  if (!measured_.host.defined()) return report;
  const auto* next = measured_.host.const_data_ptr<double>();
  if (scaler_) {
    report.scale = scaler_->now().scale;
    report.overflow = *next++ != 0;
  }
  for (const Parameter& parameter : parameters_) {
    if (!clips() || !owns(parameter) || !parameter.gradient) continue;
    report.squares.emplace_back(parameter.id(), *next++);
  }
  return report;
}

Status RuntimeImpl::send_report() {
  StageReport report = own_report();
  if (options_.stage == train_.stages.loss_stage) {
    reports_[options_.stage] = std::move(report);
    return {};
  }
  WEFT_TRY(net::Message message,
           encode_report(key(net::MessageKind::kNorms, 0, 0, options_.stage), report));
  return endpoint_.send(train_.stages.loss_stage, std::move(message));
}

Result<bool> RuntimeImpl::collect_reports() {
  const int32_t stages = options_.plan.partition.stages;
  const float scale = scaler_ ? scaler_->now().scale : 0;
  for (int32_t stage = 0; stage < stages; ++stage) {
    if (reports_.contains(stage)) continue;
    const auto message = endpoint_.take(key(net::MessageKind::kNorms, 0, 0, stage));
    if (!message) continue;
    WEFT_TRY(reports_[stage], decode_report(*message, scale, graph_.leaves.size()));
  }
  if (reports_.size() < static_cast<size_t>(stages)) return false;
  std::vector<StageReport> all;
  for (auto& [stage, report] : reports_) all.push_back(std::move(report));
  WEFT_TRY(verdict_, judge(all, clips(), scaler_ ? &*scaler_ : nullptr));
  for (int32_t stage = 0; stage < stages; ++stage) {
    if (stage == options_.stage) continue;
    WEFT_TRY(net::Message message,
             encode_verdict(key(net::MessageKind::kClip, 0, 0, options_.stage), verdict_));
    WEFT_TRY_STATUS(endpoint_.send(stage, std::move(message)));
  }
  return true;
}

Result<bool> RuntimeImpl::await_verdict() {
  const auto message = endpoint_.take(key(net::MessageKind::kClip, 0, 0, train_.stages.loss_stage));
  if (!message) return false;
  WEFT_TRY(verdict_, decode_verdict(*message, clips(), scaler_ ? &*scaler_ : nullptr));
  return true;
}

}  // namespace weft::executor
