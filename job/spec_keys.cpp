#include "job/spec_keys.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "job/names.h"

namespace weft::job {
namespace {

using nlohmann::json;

constexpr size_t kMaxTextBytes = 4096;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

Error not_a(const char* what, const json& value) {
  return make_error(Code::kInvalid, fmt::format("must be {}, not {}", what, shown(value)));
}

// Numbers from min to max; above: min itself is excluded.
struct Bounds {
  double min = -kInfinity, max = kInfinity;
  bool above = false, below = false;

  std::string text() const {
    std::string out;
    if (above) out = fmt::format("above {}", min);
    if (!above && std::isfinite(min) && !std::isfinite(max)) out = fmt::format("at least {}", min);
    if (!above && std::isfinite(min) && std::isfinite(max)) {
      return below ? fmt::format("from {} to below {}", min, max)
                   : fmt::format("from {} to {}", min, max);
    }
    if (std::isfinite(max)) out += fmt::format(", {} {}", below ? "below" : "at most", max);
    return out;
  }
  bool holds(double x) const {
    return std::isfinite(x) && x >= min && x <= max && !(above && x == min) && !(below && x == max);
  }
};

Result<double> as_number(const json& value, const Bounds& bounds) {
  if (!value.is_number()) return not_a("a number", value);
  const double number = value.get<double>();
  if (!bounds.holds(number)) {
    return make_error(Code::kInvalid,
                      fmt::format("must be a number {}, not {}", bounds.text(), shown(value)));
  }
  return number;
}

Result<int64_t> as_integer(const json& value, int64_t min, int64_t max) {
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX));
  if (!fits || value.get<int64_t>() < min || value.get<int64_t>() > max) {
    return make_error(Code::kInvalid, fmt::format("must be a whole number from {} to {}, not {}",
                                                  min, max, shown(value)));
  }
  return value.get<int64_t>();
}

Result<std::string> as_text(const json& value) {
  if (!value.is_string()) return not_a("a text", value);
  const std::string& text = value.get_ref<const std::string&>();
  if (text.size() > kMaxTextBytes || text.find('\0') != std::string::npos) {
    return make_error(Code::kTooLarge,
                      fmt::format("is longer than {} bytes or holds a zero byte", kMaxTextBytes));
  }
  return text;
}

// ---- one builder a type; get names the field: [](auto& s) -> auto& { return s.train.lr; } -----

template <typename S, typename Get>
Key<S> text_key(std::string path, std::string help, Get get, const char* type = "text") {
  Key<S> key{std::move(path), type, std::move(help), false, false, {}, {}};
  key.read = [get](S& s, const json& value) -> Status {
    WEFT_TRY(get(s), as_text(value));
    return {};
  };
  key.write = [get](const S& s) { return json(get(s)); };
  return key;
}

template <typename S, typename Get>
Key<S> path_key(std::string path, std::string help, Get get) {
  Key<S> key = text_key<S>(std::move(path), std::move(help), get, "file");
  key.is_path = true;
  return key;
}

json number_json(double number) {
  return number;
}
json number_json(const std::optional<double>& number) {
  return number ? json(*number) : json();
}

// Of double or std::optional<double>.
template <typename S, typename Get>
Key<S> number_key(std::string path, Bounds bounds, std::string help, Get get) {
  Key<S> key{std::move(path), "number, " + bounds.text(), std::move(help), false, false, {}, {}};
  key.read = [get, bounds](S& s, const json& value) -> Status {
    WEFT_TRY(get(s), as_number(value, bounds));
    return {};
  };
  key.write = [get](const S& s) { return number_json(get(s)); };
  return key;
}

template <typename S, typename Get>
Key<S> integer_key(std::string path, int64_t min, int64_t max, std::string help, Get get) {
  Key<S> key{std::move(path),
             fmt::format("whole number, {} to {}", min, max),
             std::move(help),
             false,
             false,
             {},
             {}};
  key.read = [get, min, max](S& s, const json& value) -> Status {
    WEFT_TRY(const int64_t number, as_integer(value, min, max));
    get(s) = static_cast<std::remove_reference_t<decltype(get(s))>>(number);
    return {};
  };
  key.write = [get](const S& s) { return json(get(s)); };
  return key;
}

template <typename S, typename Get>
Key<S> boolean_key(std::string path, std::string help, Get get) {
  Key<S> key{std::move(path), "true or false", std::move(help), false, false, {}, {}};
  key.read = [get](S& s, const json& value) -> Status {
    if (!value.is_boolean()) return not_a("true or false", value);
    get(s) = value.get<bool>();
    return {};
  };
  key.write = [get](const S& s) { return json(get(s)); };
  return key;
}

template <typename E, typename S, typename Get>
Key<S> choice_key(std::string path, std::string help, Get get) {
  std::string choices;
  for (const auto& [name, value] : Names<E>::kAll) {
    choices += fmt::format("{}\"{}\"", choices.empty() ? "" : ", ", name);
  }
  Key<S> key{std::move(path), choices, std::move(help), false, false, {}, {}};
  key.read = [get, choices](S& s, const json& value) -> Status {
    const auto found =
        value.is_string() ? value_of<E>(value.get_ref<const std::string&>()) : std::nullopt;
    if (!found) return not_a(("one of " + choices).c_str(), value);
    get(s) = *found;
    return {};
  };
  key.write = [get](const S& s) { return json(name_of(get(s))); };
  return key;
}

template <typename S>
Key<S> required(Key<S> key) {
  key.required = true;
  return key;
}

// ---- the two keys with a form of their own -----------------------------------------------------

Key<JobSpec> betas_key() {
  const Bounds bounds{0, 1, false, true};
  Key<JobSpec> key{"train.betas",
                   "two numbers, " + bounds.text(),
                   "decay of Adam's first and second moment",
                   false,
                   false,
                   {},
                   {}};
  key.read = [bounds](JobSpec& s, const json& value) -> Status {
    if (!value.is_array() || value.size() != 2) return not_a("two numbers like [0.9, 0.95]", value);
    WEFT_TRY(s.train.beta1, as_number(value[0], bounds));
    WEFT_TRY(s.train.beta2, as_number(value[1], bounds));
    return {};
  };
  key.write = [](const JobSpec& s) { return json{s.train.beta1, s.train.beta2}; };
  return key;
}

// A count that the planner chooses where it is "auto", 0 in the spec.
Key<JobSpec> planned_key(const char* path, const char* help, int64_t most,
                         int32_t PipelineSpec::*field) {
  Key<JobSpec> key{path, fmt::format("\"auto\" or 1 to {}", most), help, false, false, {}, {}};
  key.read = [most, field](JobSpec& s, const json& value) -> Status {
    s.pipeline.*field = 0;
    if (value == "auto") return {};
    if (!value.is_number()) return not_a("\"auto\" or a whole number", value);
    WEFT_TRY(const int64_t count, as_integer(value, 1, most));
    s.pipeline.*field = static_cast<int32_t>(count);
    return {};
  };
  key.write = [field](const JobSpec& s) {
    return s.pipeline.*field == 0 ? json("auto") : json(s.pipeline.*field);
  };
  return key;
}

#define WEFT_FIELD(member) \
  [](auto& s) -> auto& {   \
    return s.member;       \
  }

std::vector<Key<JobSpec>> make_job_keys() {
  using S = JobSpec;
  constexpr int64_t kMany = 1'000'000'000;
  const Bounds positive{0, kInfinity, true, false}, natural{0, kInfinity, false, false};
  return {
      required(text_key<S>("name", "name of the job: letters, digits, `.`, `_`, `-`; at most 64",
                           WEFT_FIELD(name))),
      required(path_key<S>("model", "the exported model (`torch.export.save`)", WEFT_FIELD(model))),
      path_key<S>("eval_model",
                  "the same model exported in eval mode; without it evaluation runs the training "
                  "graph with dropout and batch statistics off",
                  WEFT_FIELD(eval_model)),
      path_key<S>("init", "safetensors with starting weights instead of the model's own",
                  WEFT_FIELD(init)),
      choice_key<LossSource, S>("loss", "the graph's own scalar output, or a loss put on an output",
                                WEFT_FIELD(loss)),
      text_key<S>("loss_output", "output that the loss is put on; not with `\"graph\"`",
                  WEFT_FIELD(loss_output)),
      text_key<S>("loss_target", "data column that is the target; not with `\"graph\"`",
                  WEFT_FIELD(loss_target)),
      path_key<S>("data.train", "token file to train on (`weft data tokens`)",
                  WEFT_FIELD(data.train)),
      path_key<S>("data.eval", "token file to evaluate on", WEFT_FIELD(data.eval)),
      required(integer_key<S>("train.steps", 1, kMany, "optimizer steps", WEFT_FIELD(train.steps))),
      required(integer_key<S>("train.batch", 1, 1 << 24,
                              "samples a step; a multiple of the exported batch, which is the "
                              "micro-batch",
                              WEFT_FIELD(train.batch))),
      integer_key<S>("train.micro_batch", 0, 1 << 24,
                     "samples of a micro-batch where the export leaves the batch open "
                     "(`torch.export.Dim`); 0: the export's, or that of its example inputs",
                     WEFT_FIELD(train.micro_batch)),
      choice_key<Optimizer, S>("train.optimizer", "as in `torch.optim`",
                               WEFT_FIELD(train.optimizer)),
      required(number_key<S>("train.lr", positive, "learning rate", WEFT_FIELD(train.lr))),
      number_key<S>("train.min_lr", natural, "rate at the last step of cosine and linear",
                    WEFT_FIELD(train.min_lr)),
      choice_key<LrSchedule, S>("train.schedule", "how the rate falls after the warm-up",
                                WEFT_FIELD(train.schedule)),
      integer_key<S>("train.warmup_steps", 0, kMany, "steps of linear warm-up, part of `steps`",
                     WEFT_FIELD(train.warmup_steps)),
      number_key<S>("train.momentum", {0, 1, false, true}, "of sgd", WEFT_FIELD(train.momentum)),
      betas_key(),
      number_key<S>("train.eps", positive, "of adam and adamw", WEFT_FIELD(train.eps)),
      number_key<S>("train.weight_decay", natural,
                    "not applied to norms and biases unless a group says so",
                    WEFT_FIELD(train.weight_decay)),
      number_key<S>("train.clip_norm", natural,
                    "largest norm of the gradient over all stages; 0: no clipping",
                    WEFT_FIELD(train.clip_norm)),
      choice_key<Precision, S>("train.precision",
                               "`bf16`, `fp16`: autocast of the forward pass, `fp16` with loss "
                               "scaling; `fp64`: everything in double precision",
                               WEFT_FIELD(train.precision)),
      number_key<S>("train.loss_scale.init", {0, 1e38, true, false},
                    "factor on the loss at the first step; fp16 only, as are the next three",
                    WEFT_FIELD(train.loss_scale.init)),
      number_key<S>("train.loss_scale.growth_factor", {1, 1e6, true, false},
                    "on the scale after `growth_interval` steps without inf or NaN",
                    WEFT_FIELD(train.loss_scale.growth_factor)),
      number_key<S>("train.loss_scale.backoff_factor", {0, 1, true, true},
                    "on the scale when a gradient has inf or NaN; that step is skipped",
                    WEFT_FIELD(train.loss_scale.backoff_factor)),
      integer_key<S>("train.loss_scale.growth_interval", 1, INT32_MAX,
                     "steps in a row without inf or NaN before the scale grows",
                     WEFT_FIELD(train.loss_scale.growth_interval)),
      integer_key<S>("train.seed", 0, INT64_MAX, "of sample order and dropout",
                     WEFT_FIELD(train.seed)),
      integer_key<S>("train.eval_every", 0, kMany, "steps between evaluations; 0: only at the end",
                     WEFT_FIELD(train.eval_every)),
      integer_key<S>("train.eval_batches", 0, kMany,
                     "micro-batches of an evaluation; 0: the whole evaluation set",
                     WEFT_FIELD(train.eval_batches)),
      integer_key<S>("train.checkpoint.every", 0, kMany,
                     "steps between checkpoints; 0: only at the end",
                     WEFT_FIELD(train.checkpoint_every)),
      integer_key<S>("train.checkpoint.keep", 1, 1000, "complete checkpoints kept",
                     WEFT_FIELD(train.checkpoint_keep)),
      planned_key("pipeline.stages", "into how many stages (peers) the model is cut", 1024,
                  &PipelineSpec::stages),
      choice_key<PipelineSchedule, S>(
          "pipeline.schedule",
          "order of passes: `auto` is `1f1b`, or `zb-h1` where the "
          "planner knows the peers' speeds and predicts it faster; "
          "`gpipe` keeps every micro-batch; `zb-h1` fills idle time with gradients of "
          "weights, stages near the loss keep more",
          WEFT_FIELD(pipeline.schedule)),
      planned_key("pipeline.gap",
                  "micro-batches by which a stage is ahead of the next, to hide latency; 1 is "
                  "textbook 1F1B, `auto` what links ask for and memory allows",
                  65536, &PipelineSpec::gap),
      choice_key<Recompute, S>(
          "pipeline.recompute",
          "whether stages keep only the inputs of micro-batches in flight and run each forward "
          "again before its backward: less memory, more computing, the same numbers; `auto` where "
          "a stage would not fit otherwise, or the step is predicted faster",
          WEFT_FIELD(pipeline.recompute)),
      choice_key<Replan, S>("pipeline.replan",
                            "`auto`: where steps take longer than they should or better peers "
                            "are idle, the job moves to another plan if that pays "
                            "(docs/planning.md); `never`: it keeps its plan",
                            WEFT_FIELD(pipeline.replan)),
  };
}

void add_rows(std::string& table, const std::string& prefix, const auto& keys) {
  for (const auto& key : keys) {
    const json value = key.write({});
    const std::string standard = key.required      ? "required"
                                 : value.is_null() ? "as `[train]`"
                                 : value == ""     ? "none"
                                                   : "`" + value.dump() + "`";
    table +=
        fmt::format("| `{}{}` | {} | {} | {} |\n", prefix, key.path, key.type, standard, key.help);
  }
}

}  // namespace

const std::vector<Key<JobSpec>>& job_keys() {
  static const std::vector<Key<JobSpec>> keys = make_job_keys();
  return keys;
}

const std::vector<Key<Binding>>& binding_keys() {
  using S = Binding;
  static const std::vector<Key<S>> keys = {
      required(text_key<S>("column",
                           "what feeds the input: `tokens`, `next_tokens` or an array's name",
                           WEFT_FIELD(column))),
      text_key<S>("cast", "dtype to convert to; without it the input's own", WEFT_FIELD(cast)),
      number_key<S>("scale", {-1e30, 1e30, false, false}, "factor after the cast to floating point",
                    WEFT_FIELD(scale))};
  return keys;
}

const std::vector<Key<ArrayFile>>& array_keys() {
  using S = ArrayFile;
  static const std::vector<Key<S>> keys = {
      required(path_key<S>("train", "`.npy` file to train on, one row a sample",
                           WEFT_FIELD(train_path))),
      path_key<S>("eval", "`.npy` file to evaluate on", WEFT_FIELD(eval_path))};
  return keys;
}

const std::vector<Key<ParamGroup>>& group_keys() {
  using S = ParamGroup;
  static const std::vector<Key<S>> keys = {
      required(text_key<S>("match", "parameter names, with `*` and `?`", WEFT_FIELD(match))),
      number_key<S>("lr", {0, kInfinity, false, false},
                    "learning rate of the group, scheduled like `train.lr`", WEFT_FIELD(lr)),
      number_key<S>("weight_decay", {0, kInfinity, false, false},
                    "decay of the group, norms and biases too", WEFT_FIELD(weight_decay)),
      boolean_key<S>("frozen", "not trained: no gradient, no optimizer state", WEFT_FIELD(frozen))};
  return keys;
}

std::string keys_markdown() {
  std::string table = "| key | value | default | meaning |\n|---|---|---|---|\n";
  add_rows(table, "", job_keys());
  add_rows(table, "data.bind.INPUT.", binding_keys());
  add_rows(table, "data.arrays.NAME.", array_keys());
  add_rows(table, "group[].", group_keys());
  return table;
}

}  // namespace weft::job
