// The job file: TOML, its checks, and the JSON form that goes to the broker and comes back.
#include <nlohmann/json.hpp>

#include "job/spec.h"
#include "tests/fuzz/fuzz.h"

std::vector<std::string> weft::fuzz::seeds() {
  return {R"(name = "gpt"
model = "gpt.pt2"
loss = "graph"
[data]
train = "train.bin"
eval = "eval.bin"
[data.bind]
input_ids = { column = "tokens" }
labels = { column = "next_tokens", cast = "int64", scale = 0.5 }
[train]
steps = 10
batch = 8
optimizer = "adamw"
lr = 1e-3
schedule = "cosine"
warmup_steps = 2
clip_norm = 1.0
precision = "bf16"
[pipeline]
stages = 2
schedule = "1f1b"
[[group]]
match = "*.bias"
weight_decay = 0.0
)",
          R"(name = "x"
model = "m.pt2"
loss = { kind = "cross_entropy", output = "logits", target = "labels" }
[data.arrays]
images = { train = "a.npy", eval = "b.npy" }
[train]
steps = 1
batch = 2
optimizer = "sgd"
lr = 0.1
)"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const std::string_view input = fuzz::text_of(data, size);
  const size_t end = std::min(input.find('\0'), input.size());
  std::vector<std::string> overrides;
  if (end < input.size()) overrides.emplace_back(input.substr(end + 1));
  const auto spec = job::parse_job_toml(std::string(input.substr(0, end)), "/jobs", overrides);
  if (!spec.ok()) return 0;
  const std::string text =
      job::spec_to_json(*spec).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto again = job::spec_from_json(nlohmann::json::parse(text));
  WEFT_CHECK(again.ok());
  for (const int64_t step : {int64_t{0}, spec->train.steps / 2}) {
    (void)job::lr_at(spec->train, spec->train.lr, step);
  }
  for (const job::ParamGroup& group : spec->groups) (void)job::glob_match(group.match, "a.b.bias");
  return 0;
}
