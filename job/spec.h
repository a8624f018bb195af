// JobSpec: what a user asks for, as data. Read from a TOML job file (every key is documented in
// docs/job-file.md, generated from the same table), sent to the broker as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::job {

enum class Optimizer { kSgd, kAdam, kAdamW };
enum class LrSchedule { kConstant, kCosine, kLinear };
enum class Precision { kFp32, kBf16, kFp16, kFp64 };
enum class PipelineSchedule { kAuto, kGPipe, k1F1B, kZbH1 };
// Whether a running job may move to another plan.
enum class Replan { kAuto, kNever };
enum class LossSource { kGraph, kCrossEntropy, kMse };

// One column of the data bound to one graph input.
struct Binding {
  std::string input;   // the graph's user input: "input_ids"
  std::string column;  // "tokens", "next_tokens", or the name of an array of [data.arrays]
  std::string cast;    // dtype name; empty: the input's declared dtype
  double scale = 1.0;  // multiplied after the cast of integers to floating
};

// Columns that come from the token file, not from an array.
bool is_token_column(std::string_view column);

// A named .npy array, one row a sample.
struct ArrayFile {
  std::string name;  // "images"
  std::string train_path;
  std::string eval_path;
};

struct DataSpec {
  std::string train;  // token file, or empty when arrays are used
  std::string eval;
  std::vector<ArrayFile> arrays;
  std::vector<Binding> bindings;
};

struct ParamGroup {
  std::string match;         // glob on original parameter names
  std::optional<double> lr;  // absolute; scheduled like the base rate
  std::optional<double> weight_decay;
  bool frozen = false;
};

// Dynamic loss scaling of fp16, as torch.amp.GradScaler names and defaults it.
struct LossScaleSpec {
  double init = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // good steps in a row before the scale grows
  bool operator==(const LossScaleSpec&) const = default;
};

struct TrainSpec {
  int64_t steps = 0;
  int64_t batch = 0;        // samples a step; a multiple of the exported batch
  int64_t micro_batch = 0;  // where the export leaves it open; 0: the export's
  Optimizer optimizer = Optimizer::kAdamW;
  double lr = 0;
  double min_lr = 0;
  double momentum = 0;  // sgd
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  LrSchedule schedule = LrSchedule::kConstant;
  int64_t warmup_steps = 0;
  double clip_norm = 0;  // 0: off
  double weight_decay = 0;
  Precision precision = Precision::kFp32;
  LossScaleSpec loss_scale;  // fp16
  uint64_t seed = 0;
  int64_t eval_every = 0;        // steps; 0: only at the end
  int64_t eval_batches = 0;      // micro-batches of an evaluation; 0: the whole eval set
  int64_t checkpoint_every = 0;  // steps; 0: only at the end
  int64_t checkpoint_keep = 2;

  // An update waits for what all stages found: clipping, loss scaling.
  bool stages_agree() const { return clip_norm > 0 || precision == Precision::kFp16; }
};

// Whether stages keep only the inputs of micro-batches in flight and run forwards again.
enum class Recompute { kAuto, kAlways, kNever };

struct PipelineSpec {
  int32_t stages = 0;  // 0: auto
  PipelineSchedule schedule = PipelineSchedule::kAuto;
  int32_t gap = 0;  // 0: auto
  Recompute recompute = Recompute::kAuto;
  Replan replan = Replan::kAuto;
};

struct JobSpec {
  std::string name;
  std::string model;       // .pt2
  std::string eval_model;  // .pt2 exported in eval mode, or empty: derived
  std::string init;        // safetensors with starting weights, or empty
  DataSpec data;
  LossSource loss = LossSource::kGraph;
  std::string loss_output;  // for cross_entropy and mse
  std::string loss_target;  // data column that is the target: "next_tokens", "labels"
  TrainSpec train;
  PipelineSpec pipeline;
  std::vector<ParamGroup> groups;
};

// Reads a job file. overrides: "train.lr=3e-4" (value in TOML syntax). Relative paths are resolved
// against the file's folder. Unknown keys and bad values name the key, and the nearest known key.
Result<JobSpec> load_job_file(const std::string& path, const std::vector<std::string>& overrides);
Result<JobSpec> parse_job_toml(const std::string& toml, const std::string& base_dir,
                               const std::vector<std::string>& overrides);

nlohmann::json spec_to_json(const JobSpec& spec);
Result<JobSpec> spec_from_json(const nlohmann::json& json);

// Learning-rate multiplier at a step (0-based) in [0, 1] terms of lr: returns the absolute rate for
// a base rate. Warm-up is linear from lr/warmup to lr; cosine and linear then fall to min_lr at the
// last step (as in torch's CosineAnnealingLR over the remaining steps).
double lr_at(const TrainSpec& train, double base_lr, int64_t step);

// Whether weight decay applies by default: not on norms and biases (tensors of one dimension).
bool decays_by_default(const std::string& parameter_name, size_t dimensions);

// Glob match (* and ?), used for parameter groups.
bool glob_match(std::string_view pattern, std::string_view text);

}  // namespace weft::job
