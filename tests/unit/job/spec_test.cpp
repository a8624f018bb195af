#include "job/spec.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/os/file.h"
#include "job/spec_keys.h"

namespace weft::job {
namespace {

using nlohmann::json;

constexpr const char* kFull = R"(
name = "gpt"
model = "gpt.pt2"
eval_model = "/abs/eval.pt2"
init = "start.safetensors"
loss = "cross_entropy"
loss_output = "logits"
loss_target = "next_tokens"
[data]
train = "book.train.bin"
eval = "../book.eval.bin"
[data.bind]
input_ids = "tokens"
mask = { column = "tokens", cast = "float32", scale = 0.5 }
[train]
steps = 100
batch = 8
optimizer = "adamw"
lr = 1e-3
min_lr = 1e-4
betas = [0.9, 0.95]
eps = 1e-6
schedule = "cosine"
warmup_steps = 10
clip_norm = 1
weight_decay = 0.1
precision = "bf16"
seed = 7
eval_every = 50
eval_batches = 4
[train.checkpoint]
every = 25
keep = 3
[[group]]
match = "*.wte.weight"
lr = 5e-4
weight_decay = 0.0
[[group]]
match = "h.0.*"
frozen = true
[pipeline]
stages = 3
schedule = "1f1b"
)";

constexpr const char* kSmall = R"(
name = "j"
model = "m.pt2"
[data]
train = "t.bin"
[data.bind]
x = "tokens"
[train]
steps = 10
batch = 2
lr = 0.1
)";

Result<JobSpec> parse(const std::string& toml, std::vector<std::string> overrides = {}) {
  return parse_job_toml(toml, "/jobs", overrides);
}

std::string error_of(const std::string& toml, std::vector<std::string> overrides = {}) {
  Result<JobSpec> spec = parse(toml, std::move(overrides));
  return spec.ok() ? "no error" : spec.error().text();
}

#define EXPECT_ERROR(text, ...)                                       \
  do {                                                                \
    const std::string got = error_of(__VA_ARGS__);                    \
    EXPECT_NE(got.find(text), std::string::npos) << "  got: " << got; \
  } while (false)

TEST(Spec, ReadsEveryKey) {
  Result<JobSpec> spec = parse(kFull);
  ASSERT_TRUE(spec.ok()) << spec.error().text();
  EXPECT_EQ(spec->model, "/jobs/gpt.pt2");
  EXPECT_EQ(spec->eval_model, "/abs/eval.pt2");
  EXPECT_EQ(spec->data.eval, "/book.eval.bin");
  EXPECT_EQ(spec->loss, LossSource::kCrossEntropy);
  ASSERT_EQ(spec->data.bindings.size(), 2u);
  EXPECT_EQ(spec->data.bindings[0].input, "input_ids");
  EXPECT_EQ(spec->data.bindings[1].cast, "float32");
  EXPECT_EQ(spec->data.bindings[1].scale, 0.5);
  EXPECT_EQ(spec->train.steps, 100);
  EXPECT_EQ(spec->train.beta2, 0.95);
  EXPECT_EQ(spec->train.eps, 1e-6);
  EXPECT_EQ(spec->train.precision, Precision::kBf16);
  EXPECT_EQ(spec->train.clip_norm, 1.0);
  EXPECT_EQ(spec->train.seed, 7u);
  EXPECT_EQ(spec->train.checkpoint_every, 25);
  EXPECT_EQ(spec->train.checkpoint_keep, 3);
  ASSERT_EQ(spec->groups.size(), 2u);
  EXPECT_EQ(spec->groups[0].lr, 5e-4);
  EXPECT_EQ(spec->groups[0].weight_decay, 0.0);
  EXPECT_FALSE(spec->groups[1].lr.has_value());
  EXPECT_TRUE(spec->groups[1].frozen);
  EXPECT_EQ(spec->pipeline.stages, 3);
  EXPECT_EQ(spec->pipeline.schedule, PipelineSchedule::k1F1B);
}

TEST(Spec, JsonIsTheSameLayoutAndRoundTrips) {
  for (const char* text : {kFull, kSmall}) {
    Result<JobSpec> spec = parse(text);
    ASSERT_TRUE(spec.ok()) << spec.error().text();
    const json first = spec_to_json(*spec);
    Result<JobSpec> again = spec_from_json(json::parse(first.dump()));
    ASSERT_TRUE(again.ok()) << again.error().text();
    EXPECT_EQ(spec_to_json(*again), first);
  }
  EXPECT_EQ(spec_to_json(*parse(kFull))["train"]["checkpoint"]["every"], 25);
  EXPECT_EQ(spec_to_json(*parse(kSmall))["pipeline"]["stages"], "auto");
}

TEST(Spec, OverridesAreTomlValues) {
  Result<JobSpec> spec = parse(
      kSmall, {"train.lr=3e-4", "train.optimizer=sgd", "train.momentum=0.9", "pipeline.stages=auto",
               "data.bind.y=\"next_tokens\"", "init=w.safetensors", "train.checkpoint.every=5"});
  ASSERT_TRUE(spec.ok()) << spec.error().text();
  EXPECT_EQ(spec->train.lr, 3e-4);
  EXPECT_EQ(spec->train.optimizer, Optimizer::kSgd);
  EXPECT_EQ(spec->data.bindings.size(), 2u);
  EXPECT_EQ(spec->init, "/jobs/w.safetensors");
  EXPECT_EQ(spec->train.checkpoint_every, 5);
  EXPECT_ERROR("KEY=VALUE", kSmall, {"train.lr"});
  EXPECT_ERROR("KEY=VALUE", kSmall, {"=3"});
  EXPECT_ERROR("train.lr", kSmall, {"train.lr=fast"});
  EXPECT_ERROR("did you mean \"train.lr\"", kSmall, {"train.rl=1"});
  EXPECT_ERROR("not a table", kSmall, {"name.x=1"});
  EXPECT_ERROR("single line", kSmall, {"train.lr=1\nname=\"x\""});
  EXPECT_ERROR("unknown key", kSmall, {"..=1"});
}

TEST(Spec, UnknownKeysNameTheNearest) {
  EXPECT_ERROR("did you mean \"train.steps\"", std::string(kSmall) + "stpes = 3\n");
  EXPECT_ERROR("did you mean \"train.warmup_steps\"", std::string(kSmall) + "warmup = 3\n");
  EXPECT_ERROR("unknown key \"train.colour\"", std::string(kSmall) + "colour = 3\n");
  EXPECT_ERROR("did you mean \"train.steps\"", "steps = 3\n");
  EXPECT_ERROR("did you mean \"train\"", "[trian]\nsteps = 3\n");
  EXPECT_ERROR("did you mean \"train.checkpoint.every\"",
               std::string(kSmall) + "checkpoint = { evry = 3 }\n");
  EXPECT_ERROR("did you mean \"group[0].match\"",
               std::string(kSmall) + "[[group]]\nmatc = \"*\"\n");
  EXPECT_ERROR("did you mean \"data.bind.x.column\"", kSmall, {"data.bind.x={colum=\"tokens\"}"});
}

TEST(Spec, EachValueIsChecked) {
  for (const char* bad : {"train.steps=0",
                          "train.steps=1.5",
                          "train.steps=\"many\"",
                          "train.batch=-1",
                          "train.lr=0",
                          "train.lr=-1e-3",
                          "train.lr=nan",
                          "train.lr=inf",
                          "train.betas=[0.9]",
                          "train.betas=[0.9, 1.0]",
                          "train.eps=0",
                          "train.momentum=1.0",
                          "train.seed=-1",
                          "train.optimizer=adagrad",
                          "train.precision=fp8",
                          "train.loss_scale.init=0",
                          "train.loss_scale.init=1e39",
                          "train.loss_scale.growth_factor=1",
                          "train.loss_scale.backoff_factor=1",
                          "train.loss_scale.backoff_factor=0",
                          "train.loss_scale.growth_interval=0",
                          "train.loss_scale.growth_interval=0.5",
                          "train.loss_scale=65536",
                          "pipeline.stages=0",
                          "pipeline.stages=many",
                          "pipeline.schedule=zb",
                          "train.checkpoint.keep=0",
                          "name=true",
                          "train=3",
                          "data.bind=3",
                          "data.arrays=[]",
                          "group=3",
                          "train.clip_norm=-1",
                          "train.lr=1979-05-27",
                          "loss=hinge"}) {
    const std::string key = std::string(bad).substr(0, std::string(bad).find('='));
    EXPECT_ERROR(key, kSmall, {bad});
  }
  EXPECT_ERROR("train.lr is missing", "name=\"j\"\nmodel=\"m\"\n[train]\nsteps=1\nbatch=1\n");
  EXPECT_ERROR("line 2", "name = \"x\"\nmodel = \n");
}

TEST(Spec, KeysThatContradictEachOtherAreRefused) {
  EXPECT_ERROR("cannot name a job", kSmall, {"name=\"a/b\""});
  EXPECT_ERROR("cannot name a job", kSmall, {"name=\"\""});
  EXPECT_ERROR("warmup_steps = 11", kSmall, {"train.warmup_steps=11"});
  EXPECT_ERROR("min_lr", kSmall, {"train.min_lr=0.2", "train.schedule=cosine"});
  EXPECT_ERROR("no meaning", kSmall, {"train.min_lr=0.01"});
  EXPECT_ERROR("no meaning", kSmall, {"train.momentum=0.9"});
  EXPECT_ERROR("no meaning", kSmall, {"train.optimizer=sgd", "train.eps=1e-3"});
  EXPECT_ERROR("no meaning", kSmall, {"loss_target=tokens"});
  EXPECT_ERROR("needs loss_output", kSmall, {"loss=mse"});
  EXPECT_ERROR("did you mean \"next_tokens\"", kSmall,
               {"loss=mse", "loss_output=o", "loss_target=next_token"});
  EXPECT_ERROR("no data column \"pixels\"", kSmall, {"data.bind.x=pixels"});
  EXPECT_ERROR("not a dtype", kSmall, {"data.bind.x={column=\"tokens\", cast=\"float\"}"});
  EXPECT_ERROR("floating cast", kSmall,
               {"data.bind.x={column=\"tokens\", cast=\"int64\", scale=2.0}"});
  EXPECT_ERROR("cannot be mixed", kSmall, {"data.arrays.a={train=\"a.npy\"}"});
  EXPECT_ERROR("no evaluation data", kSmall, {"train.eval_every=5"});
  EXPECT_ERROR("frozen", kSmall, {"group=[{match=\"*\", frozen=true, lr=0.1}]"});
  EXPECT_ERROR("nothing to train on", kSmall, {"data.train=\"\""});
}

TEST(Spec, LossScalingIsOfFp16) {
  const JobSpec standard = *parse(kSmall, {"train.precision=fp16"});
  EXPECT_EQ(standard.train.precision, Precision::kFp16);
  EXPECT_EQ(standard.train.loss_scale, (LossScaleSpec{65536, 2, 0.5, 2000}));
  const JobSpec own =
      *parse(kSmall, {"train.precision=fp16", "train.loss_scale={init=8.0, growth_interval=5}"});
  EXPECT_EQ(own.train.loss_scale, (LossScaleSpec{8, 2, 0.5, 5}));
  EXPECT_EQ(spec_from_json(spec_to_json(own))->train.loss_scale, own.train.loss_scale);
  EXPECT_ERROR("no meaning with train.precision = \"bf16\"", kSmall,
               {"train.precision=bf16", "train.loss_scale.init=8.0"});
  EXPECT_ERROR("did you mean \"train.loss_scale.init\"", kSmall,
               {"train.precision=fp16", "train.loss_scale.initial=8.0"});
}

TEST(Spec, ArraysReplaceTokens) {
  Result<JobSpec> spec = parse(R"(
name = "resnet"
model = "r.pt2"
loss = "cross_entropy"
loss_output = "logits"
loss_target = "labels"
[data.arrays.images]
train = "ti.npy"
eval = "ei.npy"
[data.arrays.labels]
train = "tl.npy"
eval = "el.npy"
[data.bind]
x = { column = "images", cast = "float32", scale = 0.0039 }
[train]
steps = 10
batch = 2
lr = 1
eval_every = 5
)");
  ASSERT_TRUE(spec.ok()) << spec.error().text();
  ASSERT_EQ(spec->data.arrays.size(), 2u);
  EXPECT_EQ(spec->data.arrays[0].train_path, "/jobs/ti.npy");
  EXPECT_EQ(spec->data.arrays[1].name, "labels");
}

TEST(Spec, LoadsAFileRelativeToItsFolder) {
  const os::Path path = os::Path(::testing::TempDir()) / fmt::format("job_{}.toml", ::getpid());
  ASSERT_TRUE(os::write_file_atomic(path, std::string_view(kSmall)).ok());
  Result<JobSpec> spec = load_job_file(path.string(), {});
  ASSERT_TRUE(spec.ok()) << spec.error().text();
  EXPECT_EQ(spec->model, (path.parent_path() / "m.pt2").lexically_normal().string());
  EXPECT_EQ(load_job_file("/nonexistent.toml", {}).error().code, Code::kNotFound);
  ASSERT_TRUE(os::remove_all(path).ok());
}

RC_GTEST_PROP(Spec, HostileJsonIsAnErrorAndNeverACrash, (const std::string& key, int number)) {
  for (json value : {json(key), json(number), json::array({key}), json{{key, number}}, json()}) {
    json document = spec_to_json(*parse(kFull));
    document[key] = value;
    (void)spec_from_json(document);
    for (auto& [name, member] : document.items()) {
      json changed = document;
      changed.erase(key);
      changed[name] = value;
      (void)spec_from_json(changed);
      if (member.is_object()) {
        for (auto& [inner, ignored] : member.items()) {
          json deeper = document;
          deeper.erase(key);
          deeper[name][inner] = value;
          (void)spec_from_json(deeper);
        }
      }
    }
  }
}

// docs/job-file.md holds exactly the table of job/spec_keys.cpp. WEFT_UPDATE_DOCS=1 rewrites it.
TEST(Spec, TheDocumentationHoldsExactlyTheTable) {
  const char* source = std::getenv("WEFT_SOURCE_DIR");
  const os::Path path = os::Path(source != nullptr ? source : ".") / "docs" / "job-file.md";
  Result<std::string> page = os::read_file(path);
  ASSERT_TRUE(page.ok()) << page.error().text();
  const std::string open = "<!-- keys -->\n", close = "<!-- /keys -->";
  const size_t begin = page->find(open), end = page->find(close);
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  const size_t from = begin + open.size();
  if (std::getenv("WEFT_UPDATE_DOCS") != nullptr) {
    page->replace(from, end - from, keys_markdown());
    ASSERT_TRUE(os::write_file_atomic(path, *page).ok());
    return;
  }
  EXPECT_EQ(page->substr(from, end - from), keys_markdown());
}

TEST(Rates, WarmUpThenDownToTheLowestAtTheLastStep) {
  TrainSpec train;
  train.steps = 110;
  train.warmup_steps = 10;
  train.lr = 1;
  train.min_lr = 0.1;
  for (auto schedule : {LrSchedule::kConstant, LrSchedule::kCosine, LrSchedule::kLinear}) {
    train.schedule = schedule;
    EXPECT_DOUBLE_EQ(lr_at(train, 1, 0), 0.1);
    EXPECT_DOUBLE_EQ(lr_at(train, 1, 4), 0.5);
    EXPECT_DOUBLE_EQ(lr_at(train, 1, 9), 1);
    EXPECT_DOUBLE_EQ(lr_at(train, 1, 10), 1);
    const double last = schedule == LrSchedule::kConstant ? 1 : 0.1;
    EXPECT_DOUBLE_EQ(lr_at(train, 1, 109), last);
    EXPECT_DOUBLE_EQ(lr_at(train, 1, 5000), last);
    EXPECT_DOUBLE_EQ(lr_at(train, 0.5, 60), lr_at(train, 1, 60) / 2);
  }
  train.schedule = LrSchedule::kCosine;  // torch: min + (lr - min)(1 + cos(pi t / T)) / 2, T = 99
  EXPECT_NEAR(lr_at(train, 1, 43), 0.1 + 0.9 * (1 + std::cos(M_PI / 3)) / 2, 1e-12);
  train.schedule = LrSchedule::kLinear;
  EXPECT_NEAR(lr_at(train, 1, 43), 1 - 0.9 / 3, 1e-12);
  train.warmup_steps = 110;
  EXPECT_DOUBLE_EQ(lr_at(train, 1, 109), 1);
  train.warmup_steps = 109;
  EXPECT_DOUBLE_EQ(lr_at(train, 1, 109), 1);
}

TEST(Rates, NormsAndBiasesDoNotDecay) {
  EXPECT_TRUE(decays_by_default("transformer.h.0.attn.c_attn.weight", 2));
  EXPECT_TRUE(decays_by_default("conv1.weight", 4));
  EXPECT_TRUE(decays_by_default("weight", 2));
  EXPECT_TRUE(decays_by_default("bnet.weight", 2));
  for (const char* name : {"transformer.h.0.ln_1.weight", "bn2.weight", "norm.weight",
                           "model.layers.0.input_layernorm.weight", "ln_f.weight",
                           "enc.LayerNorm.weight", "fc.bias"}) {
    EXPECT_FALSE(decays_by_default(name, 1)) << name;
    EXPECT_FALSE(decays_by_default(name, 3)) << name;
  }
  EXPECT_FALSE(decays_by_default("fc.weight", 1));
}

TEST(Glob, MatchesStarsAndQuestionMarks) {
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("*.bias", "h.0.bias"));
  EXPECT_TRUE(glob_match("h.?.*.weight", "h.3.mlp.c_fc.weight"));
  EXPECT_TRUE(glob_match("a**b*c", "axxbyyc"));
  EXPECT_FALSE(glob_match("h.?.*", "h.10.x"));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_FALSE(glob_match("*.bias", "bias.x"));
  EXPECT_TRUE(glob_match("*b", "*ab"));
  // No exponential blow-up.
  EXPECT_FALSE(glob_match("*a*a*a*a*a*a*a*a*a*a*b", std::string(10000, 'a')));
}

}  // namespace
}  // namespace weft::job
