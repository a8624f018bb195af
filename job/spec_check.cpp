// Checks between the keys of a job; each key's own type and bounds stand in its table row.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/config.h"
#include "base/dtype.h"
#include "job/names.h"
#include "job/spec_keys.h"

namespace weft::job {
namespace {

Error invalid(std::string message, std::string next = {}) {
  return make_error(Code::kInvalid, std::move(message), std::move(next));
}

Status check_name(const std::string& name) {
  const auto allowed = [](unsigned char c) {
    return c < 128 && (std::isalnum(c) || c == '.' || c == '_' || c == '-');
  };
  const bool good = !name.empty() && name.size() <= 64 && name[0] != '.' && name[0] != '-' &&
                    std::all_of(name.begin(), name.end(), allowed);
  if (good) return {};
  return invalid(fmt::format("name = \"{}\" cannot name a job", name.substr(0, 80)),
                 "use 1 to 64 letters, digits, '.', '_', '-', beginning with a letter or digit");
}

Status check_column(const JobSpec& spec, const std::string& key, const std::string& column) {
  std::vector<std::string> columns;
  for (const ArrayFile& array : spec.data.arrays) columns.push_back(array.name);
  if (!spec.data.train.empty()) columns.insert(columns.end(), {"tokens", "next_tokens"});
  if (std::find(columns.begin(), columns.end(), column) != columns.end()) return {};
  const auto nearest = nearest_name(column, columns);
  std::string list;
  for (const std::string& known : columns) list += (list.empty() ? "" : ", ") + known;
  return invalid(fmt::format("{}: there is no data column \"{}\"", key, column),
                 nearest ? fmt::format("did you mean \"{}\"?", *nearest) : "columns: " + list);
}

Status check_data(const JobSpec& spec) {
  const DataSpec& data = spec.data;
  if (data.train.empty() && data.arrays.empty()) {
    return invalid("data: there is nothing to train on",
                   "set data.train to a token file, or add [data.arrays.NAME]");
  }
  if (!data.train.empty() && !data.arrays.empty()) {
    return invalid("data: a token file and arrays cannot be mixed",
                   "keep either data.train or [data.arrays]");
  }
  if (data.train.empty() && !data.eval.empty()) {
    return invalid("data.eval is a token file, but data.train is missing");
  }
  size_t with_eval = 0;
  for (const ArrayFile& array : data.arrays) {
    if (array.train_path.empty()) {
      return invalid(fmt::format("data.arrays.{}.train is empty", array.name));
    }
    with_eval += array.eval_path.empty() ? 0 : 1;
  }
  if (with_eval != 0 && with_eval != data.arrays.size()) {
    return invalid("data.arrays: either all arrays have an eval file, or none");
  }
  if (spec.train.eval_every > 0 && data.eval.empty() && with_eval == 0) {
    return invalid("train.eval_every is set, but there is no evaluation data",
                   "set data.eval, or remove train.eval_every");
  }
  return {};
}

Status check_bindings(const JobSpec& spec) {
  if (spec.data.bindings.empty()) {
    return invalid("data.bind: no graph input is bound to a data column",
                   "add [data.bind] with a line like input_ids = \"tokens\"; `weft model inspect` "
                   "lists the inputs");
  }
  for (const Binding& binding : spec.data.bindings) {
    const std::string key = "data.bind." + binding.input;
    if (binding.input.empty()) return invalid("data.bind: an input without a name");
    WEFT_TRY_STATUS(check_column(spec, key, binding.column));
    if (!binding.cast.empty() && !dtype_from_name(binding.cast)) {
      return invalid(fmt::format("{}.cast = \"{}\" is not a dtype", key, binding.cast),
                     "dtypes are named as in PyTorch: float32, int64, uint8");
    }
    const bool to_integer =
        !binding.cast.empty() && !dtype_is_floating(*dtype_from_name(binding.cast));
    if (to_integer && binding.scale != 1) {
      return invalid(fmt::format("{}.scale needs a floating cast, not {}", key, binding.cast));
    }
  }
  return {};
}

Status check_loss(const JobSpec& spec) {
  if (spec.loss == LossSource::kGraph) {
    if (spec.loss_output.empty() && spec.loss_target.empty()) return {};
    return invalid("loss_output and loss_target have no meaning with loss = \"graph\"",
                   "set loss to \"cross_entropy\" or \"mse\", or remove them");
  }
  if (spec.loss_output.empty() || spec.loss_target.empty()) {
    return invalid(
        fmt::format("loss = \"{}\" needs loss_output and loss_target", name_of(spec.loss)),
        "`weft model inspect` lists the outputs");
  }
  return check_column(spec, "loss_target", spec.loss_target);
}

Status check_train(const TrainSpec& train) {
  if (train.warmup_steps > train.steps) {
    return invalid(fmt::format("train.warmup_steps = {} is more than train.steps = {}",
                               train.warmup_steps, train.steps));
  }
  if (train.min_lr > train.lr) {
    return invalid(fmt::format("train.min_lr = {} is above train.lr = {}", train.min_lr, train.lr));
  }
  if (train.min_lr > 0 && train.schedule == LrSchedule::kConstant) {
    return invalid("train.min_lr has no meaning with train.schedule = \"constant\"",
                   "set train.schedule to \"cosine\" or \"linear\", or remove train.min_lr");
  }
  if (train.momentum > 0 && train.optimizer != Optimizer::kSgd) {
    return invalid(fmt::format("train.momentum has no meaning with train.optimizer = \"{}\"",
                               name_of(train.optimizer)),
                   "set train.betas instead, or use \"sgd\"");
  }
  const TrainSpec standard;
  const bool adam_keys =
      train.beta1 != standard.beta1 || train.beta2 != standard.beta2 || train.eps != standard.eps;
  if (adam_keys && train.optimizer == Optimizer::kSgd) {
    return invalid("train.betas and train.eps have no meaning with train.optimizer = \"sgd\"",
                   "set train.momentum instead, or use \"adam\" or \"adamw\"");
  }
  if (!(train.loss_scale == standard.loss_scale) && train.precision != Precision::kFp16) {
    return invalid(fmt::format("train.loss_scale has no meaning with train.precision = \"{}\"",
                               name_of(train.precision)),
                   "set train.precision to \"fp16\", or remove [train.loss_scale]");
  }
  return {};
}

Status check_groups(const JobSpec& spec) {
  for (const ParamGroup& group : spec.groups) {
    if (group.match.empty()) return invalid("group: match is empty", "use \"*\" for all");
    if (group.frozen && (group.lr || group.weight_decay)) {
      return invalid(fmt::format("group \"{}\" is frozen and has a rate or decay", group.match),
                     "remove frozen, or lr and weight_decay");
    }
  }
  return {};
}

}  // namespace

Status check_spec(const JobSpec& spec) {
  WEFT_TRY_STATUS(check_name(spec.name));
  if (spec.model.empty()) return invalid("model is empty", "name the .pt2 file");
  WEFT_TRY_STATUS(check_data(spec));
  WEFT_TRY_STATUS(check_bindings(spec));
  WEFT_TRY_STATUS(check_loss(spec));
  WEFT_TRY_STATUS(check_train(spec.train));
  return check_groups(spec);
}

}  // namespace weft::job
