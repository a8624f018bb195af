#include "executor/worker_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/os/file.h"
#include "executor/checkpoint.h"
#include "opdag/cut_eval.h"
#include "opdag/derive.h"
#include "opdag/memory_check.h"
#include "opdag/text.h"

namespace weft::executor {
namespace {

constexpr uint64_t kMaxGraphBytes = uint64_t{64} << 20;

Result<opdag::Graph> load_graph(const job::BlobRef& blob, const char* what, bool promote) {
  auto text = os::read_file(blob.path, kMaxGraphBytes);
  if (!text) return std::move(text).error().within(fmt::format("reading the {}", what));
  auto graph = opdag::parse_text(*text);
  if (!graph) return std::move(graph).error().within(fmt::format("the {}", what));
  if (!promote) return std::move(*graph);
  return opdag::promote_f64(*graph);
}

// Refuses a stage that cannot run here at all; else adds the inputs that its nodes read.
Status add_inputs(const opdag::Graph& graph, const opdag::Partition& partition, int32_t index,
                  uint64_t memory_bytes, std::set<std::string>& inputs) {
  WEFT_TRY(const opdag::Stage stage, opdag::extract_stage(graph, partition, index));
  WEFT_TRY_STATUS(opdag::check_memory(graph, stage, memory_bytes));
  for (const int32_t position : stage.leaves) {
    const opdag::Leaf& leaf = graph.leaves.at(static_cast<size_t>(position));
    if (leaf.kind == opdag::LeafKind::kUserInput) inputs.insert(leaf.target);
  }
  return {};
}

using Tensors = std::map<std::string, at::Tensor>;

// Of the leaves given, every parameter and persistent buffer must be among the tensors, under one
// name of its tied group at least. The missing one, or nothing.
const opdag::Leaf* missing_state(const opdag::Graph& graph, const std::vector<int32_t>& leaves,
                                 const Tensors& tensors) {
  std::set<int32_t> tied_present;
  for (const opdag::Leaf& leaf : graph.leaves) {
    if (leaf.tied_group != opdag::kNone && tensors.contains(leaf.target)) {
      tied_present.insert(leaf.tied_group);
    }
  }
  for (const int32_t index : leaves) {
    const opdag::Leaf& leaf = graph.leaves[static_cast<size_t>(index)];
    const bool stored = leaf.kind == opdag::LeafKind::kParameter ||
                        (leaf.kind == opdag::LeafKind::kBuffer && leaf.persistent);
    if (!stored || tensors.contains(leaf.target) || tied_present.contains(leaf.tied_group))
      continue;
    return &leaf;
  }
  return nullptr;
}

// The shards given are those with something this stage needs, of any number of stages.
Status resume(StageRuntime& runtime, const opdag::Graph& graph, const job::WorkerSpec& spec) {
  std::vector<os::Path> paths;
  for (const job::BlobRef& shard : spec.resume.shards) paths.emplace_back(shard.path);
  WEFT_TRY(const Tensors state, read_shards(paths, spec.job, spec.resume.step));
  WEFT_TRY(const auto stage, opdag::extract_stage(graph, spec.plan.partition, spec.stage));
  if (const opdag::Leaf* leaf = missing_state(graph, stage.leaves, state)) {
    return make_error(
        Code::kInvalid,
        fmt::format("the {} shards of step {} have no tensor {}, which stage {} needs",
                    paths.size(), spec.resume.step, leaf->target, spec.stage),
        "resume from another checkpoint");
  }
  return runtime.load_state(state);
}

Status load_start(StageRuntime& runtime, const opdag::Graph& graph, const job::WorkerSpec& spec) {
  if (spec.resume.step > 0) return resume(runtime, graph, spec);
  if (spec.init.sha256.empty() && spec.init.path.empty()) return {};
  WEFT_TRY(const auto state, read_tensors(spec.init.path));
  std::vector<int32_t> all(graph.leaves.size());
  std::iota(all.begin(), all.end(), 0);
  if (const opdag::Leaf* leaf = missing_state(graph, all, state)) {
    return make_error(
        Code::kInvalid,
        fmt::format("the init file {} has no tensor {}", spec.init.path, leaf->target),
        "save the model's whole state dict, with its original names");
  }
  return runtime.load_state(state);
}

bool job_evaluates(const job::WorkerSpec& spec) {
  const job::DataSpec& data = spec.spec.data;
  return !data.eval.empty() || std::any_of(data.arrays.begin(), data.arrays.end(),
                                           [](const auto& a) { return !a.eval_path.empty(); });
}

// All stages must come to the same number, also those without data files.
Result<int32_t> eval_micro_batches(const job::WorkerSpec& spec, const Feed& feed, bool feeds) {
  if (!job_evaluates(spec)) return 0;
  const int64_t asked = spec.spec.train.eval_batches;
  const int32_t there = feed.eval_micro_batches();
  if (asked == 0 && !feeds && spec.plan.partition.stages > 1) {
    return make_error(Code::kInvalid,
                      fmt::format("stage {} has no data and cannot tell how many micro-batches the "
                                  "eval set has",
                                  spec.stage),
                      "train.eval_batches must be resolved when the job is submitted");
  }
  if (asked > INT32_MAX || (feeds && asked > there)) {
    return make_error(Code::kInvalid,
                      fmt::format("train.eval_batches is {}, the eval set has {} whole "
                                  "micro-batches",
                                  asked, there),
                      "give more eval data, or lower train.eval_batches");
  }
  return asked == 0 ? there : static_cast<int32_t>(asked);
}

FeedFiles feed_files(const job::WorkerSpec& spec) {
  FeedFiles files;
  for (const auto& [key, blob] : spec.data) files.paths[key] = blob.path;
  files.token_dtype = spec.token_dtype;
  return files;
}

RuntimeOptions runtime_options(const job::WorkerSpec& spec, const BatchShape& batch,
                               Compute compute) {
  RuntimeOptions options;
  options.compute = compute;
  options.train = spec.spec.train;
  options.groups = spec.spec.groups;
  options.plan = spec.plan;
  options.stage = spec.stage;
  options.micro_batches = batch.micro_batches;
  options.device = spec.device.empty() ? "cpu" : spec.device;
  return options;
}

}  // namespace

Result<StageFiles> load_stage_files(const job::WorkerSpec& spec, const CardMemory& of_card) {
  StageFiles files;
  const bool promote = spec.spec.train.precision == job::Precision::kFp64;
  WEFT_TRY(files.graph, load_graph(spec.graph, "training graph", promote));
  WEFT_TRY(files.eval_graph, load_graph(spec.eval_graph, "evaluation graph", promote));
  const opdag::Partition& partition = spec.plan.partition;
  WEFT_TRY_STATUS(opdag::check_partition(files.graph, partition));
  WEFT_TRY(files.batch, batch_shape(files.graph, spec.spec));
  WEFT_TRY(files.links, plan_links(files.graph, files.eval_graph, spec.plan, spec.stage,
                                   files.batch.micro_batches));
  WEFT_TRY(const auto eval, opdag::eval_partition(files.graph, partition, files.eval_graph));
  WEFT_TRY(const uint64_t memory, total_memory_bytes(spec.device, of_card));
  WEFT_TRY_STATUS(add_inputs(files.graph, partition, spec.stage, memory, files.inputs));
  if (const int32_t mine = eval.stage_of(spec.stage); mine != opdag::kNone) {
    WEFT_TRY_STATUS(add_inputs(files.eval_graph, eval.partition, mine, memory, files.inputs));
  }
  return files;
}

Result<LoadedStage> load_stage(StageFiles files, const job::WorkerSpec& spec, Compute compute,
                               net::Endpoint& endpoint, const std::function<void()>& moved) {
  LoadedStage loaded;
  WEFT_TRY(loaded.feed,
           make_feed(files.graph, files.eval_graph, spec.spec, feed_files(spec), files.inputs));
  WEFT_TRY(loaded.eval_micro_batches,
           eval_micro_batches(spec, *loaded.feed, !files.inputs.empty()));
  const WeightSource weights = [&](const opdag::WeightRef& ref) -> Result<Buffer> {
    moved();
    const auto found = spec.weights.find(ref.path);
    if (found == spec.weights.end()) {
      return make_error(Code::kNotFound,
                        fmt::format("the assignment names no file for weight {}", ref.path));
    }
    return os::map_file(found->second.path);
  };
  opdag::Graph graph = files.graph;
  WEFT_TRY(loaded.runtime, StageRuntime::make(std::move(files.graph), std::move(files.eval_graph),
                                              runtime_options(spec, files.batch, compute), weights,
                                              endpoint, *loaded.feed));
  WEFT_TRY_STATUS(load_start(*loaded.runtime, graph, spec));
  return loaded;
}

}  // namespace weft::executor
