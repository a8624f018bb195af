#include "broker/step_log.h"

#include <algorithm>
#include <cmath>

namespace weft::broker {
namespace {

constexpr size_t kMaxPending = 64;

nlohmann::json number(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

void keep_max(nlohmann::json& field, double value) {
  if (std::isfinite(value) && (!field.is_number() || field.get<double>() < value)) field = value;
}
void keep_max(nlohmann::json& field, int64_t value) {
  if (!field.is_number() || field.get<int64_t>() < value) field = value;
}

}  // namespace

void StepLog::add_step(int32_t stage, const job::WorkerEvent& event) {
  Row& row = rows_[event.step];
  if (row.json.is_null()) {
    row.json = {{"step", event.step},   {"loss", nullptr},
                {"grad_norm", nullptr}, {"lr", nullptr},
                {"seconds", nullptr},   {"tokens", 0},
                {"samples", 0},         {"edges", nlohmann::json::object()}};
    // The rate stands still while loss scaling skips steps.
    const int64_t updates = event.step - 1 - event.skipped_steps;
    row.json["lr"] = number(job::lr_at(train_, train_.lr, std::max<int64_t>(0, updates)));
  }
  if (std::isfinite(event.loss)) row.json["loss"] = event.loss;
  if (event.grad_norm >= 0) keep_max(row.json["grad_norm"], event.grad_norm);
  if (event.loss_scale > 0) {
    keep_max(row.json["loss_scale"], event.loss_scale);
    keep_max(row.json["skipped_steps"], event.skipped_steps);
  }
  keep_max(row.json["seconds"], event.seconds);
  keep_max(row.json["tokens"], event.tokens);
  keep_max(row.json["samples"], event.samples);
  const bool timed = event.seconds > 0 && event.compute_s > 0;
  const double busy = timed ? std::min(event.compute_s / event.seconds, 1.0) : std::nan("");
  row.stages[stage] = {
      {"stage", stage}, {"busy", number(busy)}, {"peak_memory_bytes", event.peak_memory_bytes}};
  for (const auto& [edge, bytes] : event.edge_bytes) {
    nlohmann::json& sum = row.json["edges"][std::to_string(edge)];
    sum = (sum.is_number() ? sum.get<int64_t>() : 0) + bytes;
  }
}

nlohmann::json StepLog::add_eval(const job::WorkerEvent& event) {
  last_eval_ = std::max(last_eval_, event.step);
  return {{"step", event.step},
          {"loss", number(event.loss)},
          {"accuracy", event.accuracy >= 0 ? number(event.accuracy) : nlohmann::json(nullptr)}};
}

bool StepLog::eval_due(int64_t step) const {
  if (!evaluates_ || last_eval_ >= step) return false;
  return step == train_.steps || (train_.eval_every > 0 && step % train_.eval_every == 0);
}

bool StepLog::whole(const Row& row) const {
  return static_cast<int32_t>(row.stages.size()) >= stages_;
}

std::vector<std::pair<int64_t, nlohmann::json>> StepLog::take(bool all) {
  // A later step that is whole shows that nothing more will come for the ones before it.
  int64_t upto = -1;
  for (const auto& [step, row] : rows_) {
    const bool later_whole = upto < step && whole(row);
    if (later_whole && !eval_due(step)) upto = step;
    if (later_whole && eval_due(step)) upto = std::max(upto, step - 1);
  }
  std::vector<std::pair<int64_t, nlohmann::json>> ready;
  while (!rows_.empty() && (all || rows_.begin()->first <= upto || rows_.size() > kMaxPending)) {
    auto node = rows_.extract(rows_.begin());
    nlohmann::json stages = nlohmann::json::array();
    for (auto& [stage, entry] : node.mapped().stages) stages.push_back(std::move(entry));
    node.mapped().json["stages"] = std::move(stages);
    ready.emplace_back(node.key(), std::move(node.mapped().json));
  }
  return ready;
}

}  // namespace weft::broker
