#include "tests/support/exported_models.h"

#include <ATen/Parallel.h>

#include <cstdlib>
#include <filesystem>

#include "executor/check_inputs.h"
#include "job/safetensors.h"
#include "opdag/derive.h"
#include "opdag/import.h"

namespace weft::executor::testing {

namespace fs = std::filesystem;

namespace {

std::string from_environment(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

fs::path make_models(const std::string& device) {
  const std::string given = from_environment("WEFT_MODELS", "");
  if (!given.empty()) return given;
  const fs::path made = fs::path(::testing::TempDir()) / ("weft_models_" + device);
  const fs::path source = from_environment("WEFT_SOURCE_DIR", ".");
  const fs::path own = source / ".venv/bin/python";
  const std::string python =
      from_environment("WEFT_PYTHON", fs::exists(own) ? own.string() : "python3");
  const std::string scripts = (source / "tests/models").string();
  const std::string commands = python + " " + scripts + "/export_models.py --out " + made.string() +
                               " && " + python + " " + scripts + "/reference.py --device " +
                               device + " --dir " + made.string();
  if (std::system(commands.c_str()) != 0) throw std::runtime_error("the scripts failed");
  return made;
}

fs::path folder_made;  // NOLINT: by the first load of this process

opdag::Partition cut_into(const opdag::Graph& graph, const RunSpec& spec) {
  Rng rng(derive_seed({spec.cut_seed, static_cast<uint64_t>(spec.stages)}));
  if (spec.stages > 1) return must(opdag::random_partition(graph, spec.stages, rng));
  opdag::Partition whole;
  whole.stage_of.assign(graph.nodes.size(), 0);
  return whole;
}

}  // namespace

Model load(const std::string& name, bool f64, const std::string& device) {
  at::set_num_threads(1);
  if (folder_made.empty()) folder_made = make_models(device);
  auto archive = must(opdag::Archive::open(folder_made / (name + ".pt2")));
  Model model;
  model.graph = must(opdag::prune_to(must(opdag::import_graph(archive)), {}));
  if (f64) model.graph = must(opdag::promote_f64(model.graph));
  model.weights = [archive](const opdag::WeightRef& ref) { return archive.entry(ref.path); };
  model.inputs =
      must(inputs_from_file(model.graph, (folder_made / (name + ".inputs.safetensors")).string()));
  return model;
}

Tensors reference(const std::string& name, const std::string& kind) {
  Tensors result;
  const auto file = must(job::read_safetensors(folder_made / (name + "." + kind + ".safetensors")));
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

double difference(const at::Tensor& truth, const at::Tensor& found) {
  const at::Tensor a = truth.to(at::kCPU, at::kDouble), b = found.to(at::kCPU, at::kDouble);
  if (a.numel() == 0) return 0;
  const double scale = a.abs().max().item<double>();
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
  options.runtime.train.steps = kSteps;
  options.runtime.train.lr = 1e-3;
  options.runtime.train.weight_decay = 0.01;
  options.runtime.train.precision = spec.precision;
  options.runtime.train.seed = spec.seed;
  options.runtime.device = spec.device;
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
  return computed;
}

Tensors train(const Model& model, const RunSpec& spec, int64_t steps) {
  RolledFeed feed(model.inputs);
  const auto cluster = cluster_of(model, spec, feed);
  for (int64_t step = 0; step < steps; ++step) must(cluster->step(step));
  return cluster->state();
}

void expect_same_bits(const Tensors& truth, const Tensors& found) {
  ASSERT_EQ(truth.size(), found.size());
  for (const auto& [name, tensor] : truth) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(at::equal(tensor.cpu(), found.at(name).cpu())) << name;
  }
}

}  // namespace weft::executor::testing
