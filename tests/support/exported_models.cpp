#include "tests/support/exported_models.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#include "base/statistics.h"
#include "executor/check_inputs.h"
#include "job/safetensors.h"
#include "opdag/derive.h"
#include "opdag/import.h"
#include "tests/support/op_db.h"

namespace weft::executor::testing {

namespace fs = std::filesystem;

namespace {

fs::path make_models(const std::string& set, const std::string& device) {
  const std::string given = from_environment("WEFT_MODELS", "");
  if (!given.empty()) return fs::path(given) / set;
  const fs::path made = fs::path(::testing::TempDir()) / ("weft_models_" + device) / set;
  const fs::path source = from_environment("WEFT_SOURCE_DIR", ".");
  const fs::path own = source / ".venv/bin/python";
  const std::string python =
      from_environment("WEFT_PYTHON", fs::exists(own) ? own.string() : "python3");
  const std::string scripts = python + " " + (source / "tests/models").string();
  const std::string folder = made.string() + " --device " + device;
  const std::string commands = set == "zoo"
                                   ? scripts + "/zoo.py --out " + folder
                                   : scripts + "/export_models.py --out " + made.string() + " && " +
                                         scripts + "/reference.py --dir " + folder;
  if (std::system(commands.c_str()) != 0) throw std::runtime_error("the scripts failed");
  return made;
}

// NAME, or zoo/NAME: the file's path without its ending. Models are made by the first call.
fs::path stem_of(const std::string& name, const std::string& device) {
  static std::map<std::string, fs::path> made;  // by kind
  const size_t slash = name.find('/');
  const std::string set = slash == std::string::npos ? "" : name.substr(0, slash);
  if (!made.contains(set)) made[set] = make_models(set, device);
  return made[set] / (slash == std::string::npos ? name : name.substr(slash + 1));
}

at::Tensor parts(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
}

opdag::Partition cut_into(const opdag::Graph& graph, const RunSpec& spec) {
  Rng rng(derive_seed({spec.cut_seed, static_cast<uint64_t>(spec.stages)}));
  if (spec.stages > 1) return must(opdag::random_partition(graph, spec.stages, rng));
  opdag::Partition whole;
  whole.stage_of.assign(graph.nodes.size(), 0);
  return whole;
}

}  // namespace

fs::path exported(const std::string& name, const std::string& device) {
  return stem_of(name, device).string() + ".pt2";
}

Model load(const std::string& name, bool f64, const std::string& device) {
  at::set_num_threads(1);
  auto archive = must(opdag::Archive::open(exported(name, device)));
  Model model;
  model.graph = must(opdag::prune_to(must(opdag::import_graph(archive)), {}));
  if (f64) model.graph = must(opdag::promote_f64(model.graph));
  model.weights = [archive](const opdag::WeightRef& ref) { return archive.entry(ref.path); };
  model.inputs =
      must(inputs_from_file(model.graph, stem_of(name, device).string() + ".inputs.safetensors"));
  return model;
}

Tensors reference(const std::string& name, const std::string& kind) {
  Tensors result;
  const auto file =
      must(job::read_safetensors(stem_of(name, "cpu").string() + "." + kind + ".safetensors"));
  for (const auto& [key, view] : file.tensors) result[key] = must(tensor_of(view)).to(at::kDouble);
  return result;
}

Tensors part_of(const Tensors& all, const std::string& prefix) {
  Tensors part;
  for (const auto& [name, tensor] : all) {
    if (name.starts_with(prefix)) part[name.substr(prefix.size())] = tensor;
  }
  return part;
}

double difference(const at::Tensor& truth, const at::Tensor& found, double least) {
  const at::Tensor a = parts(truth).to(at::kCPU, at::kDouble);
  const at::Tensor b = parts(found).to(at::kCPU, at::kDouble);
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  if (a.numel() == 0) return 0;
  const double scale = std::max(a.abs().max().item<double>(), least);
  const double gap = (a - b).abs().max().item<double>();
  return scale > 0 ? gap / scale : gap;
}

Result<at::Tensor> RolledFeed::input(const std::string& name, Split split, int64_t /*step*/,
                                     int32_t micro_batch) {
  const at::Tensor& tensor = inputs_.at(name);
  if (tensor.dim() == 0 || split == Split::kEval) return tensor;
  return tensor.roll(micro_batch, -1);
}

std::unique_ptr<LocalCluster> cluster_of(const Model& model, const RunSpec& spec, Feed& feed) {
  ClusterOptions options;
  options.runtime.plan = local_plan(cut_into(model.graph, spec), spec.schedule);
  for (auto& stage : options.runtime.plan.stages) stage.recompute = spec.recompute;
  options.runtime.train.steps = kSteps;
  options.runtime.train.lr = 1e-3;
  options.runtime.train.weight_decay = 0.01;
  options.runtime.train.precision = spec.precision;
  if (spec.precision == Precision::kFp16) {  // as in train_fp16 of reference.py
    options.runtime.train.optimizer = job::Optimizer::kSgd;
    options.runtime.train.lr = 1e-2;
    options.runtime.train.loss_scale.init = 1 << 20;
    options.runtime.train.loss_scale.growth_interval = 4;
  }
  options.runtime.train.seed = spec.seed;
  options.runtime.device = spec.device;
  options.runtime.capture = spec.capture;
  options.runtime.differentiation = spec.differentiation;
  options.runtime.micro_batches = kMicroBatches;
  options.runtime.keep_gradients = spec.keep_gradients;
  options.seed = options.network.seed = static_cast<uint64_t>(spec.stages);
  return must(LocalCluster::make(model.graph, {}, options, model.weights, feed));
}

Computed differentiate(const Model& model, RunSpec spec) {
  RolledFeed feed(model.inputs);
  spec.keep_gradients = true;
  const auto cluster = cluster_of(model, spec, feed);
  Computed computed;
  computed.loss = must(cluster->step(0)).loss;
  computed.gradients = cluster->gradients();
  computed.state = cluster->state();
  return computed;
}

Tensors train(const Model& model, const RunSpec& spec, int64_t steps) {
  RolledFeed feed(model.inputs);
  const auto cluster = cluster_of(model, spec, feed);
  for (int64_t step = 0; step < steps; ++step) must(cluster->step(step));
  return cluster->state();
}

ScaledRun train_fp16(const Model& model, RunSpec spec) {
  RolledFeed feed(model.inputs);
  spec.precision = Precision::kFp16;
  const auto cluster = cluster_of(model, spec, feed);
  ScaledRun run;
  for (int64_t step = 0; step < kSteps; ++step) {
    const StepResult told = must(cluster->step(step));
    run.losses.push_back(told.loss);
    run.scales.push_back(told.loss_scale);
    run.skipped.push_back(told.skipped ? 1 : 0);
  }
  run.state = cluster->state();
  return run;
}

void expect_as_grad_scaler(const ScaledRun& found, const Tensors& truth, double losses_tolerance,
                           double parameters_tolerance, const std::string& what) {
  const auto row = [&](const char* name) {
    const at::Tensor tensor = truth.at(name).to(at::kDouble).contiguous();
    const auto* data = tensor.const_data_ptr<double>();
    return std::vector<double>(data, data + tensor.numel());
  };
  EXPECT_EQ(found.scales, row("scales"));
  EXPECT_EQ(found.skipped, row("skipped"));
  const double losses =
      difference(truth.at("losses"), at::tensor(at::ArrayRef<double>(found.losses), at::kDouble));
  EXPECT_LE(losses, losses_tolerance);
  double worst = 0;
  std::string name_of_worst;
  const Tensors parameters = part_of(truth, "param.");
  EXPECT_GT(parameters.size(), 5u);
  for (const auto& [name, tensor] : parameters) {
    ASSERT_TRUE(found.state.contains(name)) << name;
    const double gap = difference(tensor, found.state.at(name));
    if (gap <= worst) continue;
    worst = gap;
    name_of_worst = name;
  }
  EXPECT_LE(worst, parameters_tolerance) << name_of_worst;
  const auto skipped = std::count(found.skipped.begin(), found.skipped.end(), 1.0);
  EXPECT_GT(skipped, 0) << "no step overflowed";
  std::printf(
      "%s: %d of %d steps skipped, scale %g at the end; losses differ by %.2g, parameters by %.2g "
      "(%s)\n",
      what.c_str(), static_cast<int>(skipped), static_cast<int>(kSteps), found.scales.back(),
      losses, worst, name_of_worst.c_str());
}

void expect_equals_f64(const Computed& found, const Tensors& truth) {
  const double loss = truth.at("loss").item<double>();
  EXPECT_LE(std::abs(found.loss - loss), 1e-10 * std::abs(loss));
  const Tensors gradients = part_of(truth, "grad.");
  EXPECT_EQ(gradients.size(), found.gradients.size());
  for (const auto& [name, tensor] : gradients) {
    ASSERT_TRUE(found.gradients.contains(name)) << name;
    EXPECT_LE(difference(tensor, found.gradients.at(name)), 1e-10) << name;
  }
}

void expect_as_near_as_torch(const Computed& found, const Tensors& truth, const Tensors& torch32) {
  const double loss = truth.at("loss").item<double>();
  // PyTorch's number may be right to the last bit by luck: for the loss one rounding of float32 is
  // allowed, for a gradient the usual noise of this model's gradients.
  const double loss_noise = std::max(std::abs(torch32.at("loss").item<double>() - loss),
                                     std::abs(loss) * std::numeric_limits<float>::epsilon());
  EXPECT_LE(std::abs(found.loss - loss), 3 * loss_noise);
  std::map<std::string, double> noise;
  std::vector<double> all;
  for (const auto& [name, tensor] : part_of(torch32, "grad.")) {
    all.push_back(noise[name] = difference(truth.at("grad." + name), tensor));
  }
  const double usual = median(all);
  ASSERT_EQ(found.gradients.size(), noise.size());
  for (const auto& [name, tensor] : found.gradients) {
    EXPECT_LE(difference(truth.at("grad." + name), tensor), 3 * std::max(noise.at(name), usual))
        << name;
  }
}

void expect_same_bits(const Tensors& truth, const Tensors& found) {
  ASSERT_EQ(truth.size(), found.size());
  for (const auto& [name, tensor] : truth) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(at::equal(tensor.cpu(), found.at(name).cpu())) << name;
  }
}

}  // namespace weft::executor::testing
