#include "broker/worker_spec_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace weft::broker {
namespace {

class Builder {
 public:
  Builder(const Submission& submission, job::WorkerSpec& spec)
      : submission_(submission), spec_(spec) {}

  void add(const opdag::Leaf& leaf) {
    if (leaf.kind == opdag::LeafKind::kUserInput) {
      add_data(leaf.target);
      return;
    }
    const auto found = submission_.weights.find(leaf.weight.path);
    if (found != submission_.weights.end()) spec_.weights.insert(*found);
  }

 private:
  void add_data(const std::string& input) {
    for (const job::Binding& binding : submission_.spec.data.bindings) {
      if (binding.input != input) continue;
      const bool tokens = binding.column == "tokens" || binding.column == "next_tokens";
      for (const char* split : {"train", "eval"}) {
        const std::string key = tokens ? split : fmt::format("{}/{}", split, binding.column);
        const auto found = submission_.data.find(key);
        if (found != submission_.data.end()) spec_.data.insert(*found);
      }
    }
  }

  const Submission& submission_;
  job::WorkerSpec& spec_;
};

// Leaves of the evaluation graph this stage needs. A derived graph keeps the node ids, so its
// nodes follow those of the stage; of a separate export, which has ids of its own, every stage
// gets constants and buffers (small), and parameters by the trained names.
void add_eval_leaves(const JobGraphs& graphs, const opdag::Stage& stage, Builder& builder) {
  const opdag::Graph& graph = graphs.graph;
  const opdag::Graph& eval = graphs.eval_graph;
  std::set<opdag::NodeId> mine;
  std::set<std::string> targets;
  for (int32_t index : stage.nodes) mine.insert(graph.nodes[static_cast<size_t>(index)].id);
  for (int32_t index : stage.leaves)
    targets.insert(graph.leaves[static_cast<size_t>(index)].target);
  const bool derived = std::all_of(eval.nodes.begin(), eval.nodes.end(), [&](const auto& node) {
    const int32_t index = graph.node_index(node.id);
    return index >= 0 && graph.nodes[static_cast<size_t>(index)].op == node.op;
  });
  for (const opdag::Leaf& leaf : eval.leaves) {
    const auto& consumers = eval.value(leaf.value).consumers;
    const bool read_here = std::any_of(consumers.begin(), consumers.end(),
                                       [&](opdag::NodeId id) { return mine.contains(id); });
    const bool shared = leaf.kind == opdag::LeafKind::kConstant ||
                        leaf.kind == opdag::LeafKind::kBuffer ||
                        leaf.kind == opdag::LeafKind::kUserInput;
    if (derived ? read_here : (shared || targets.contains(leaf.target))) builder.add(leaf);
  }
}

}  // namespace

Result<job::WorkerSpec> build_worker_spec(const Job& job, const Submission& submission,
                                          const JobGraphs& graphs, int32_t stage) {
  if (!job.plan) return make_error(Code::kInternal, fmt::format("job {} has no plan", job.id));
  WEFT_TRY(const opdag::Stage part, opdag::extract_stage(graphs.graph, job.plan->partition, stage));
  job::WorkerSpec spec;
  spec.job = job.id;
  spec.stage = stage;
  spec.spec = submission.spec;
  spec.spec.train.steps = job.steps;
  spec.spec.pipeline.stages = static_cast<int32_t>(job.plan->stages.size());
  spec.plan = *job.plan;
  spec.graph = submission.graph;
  spec.eval_graph = submission.eval_graph;
  spec.init = submission.init;
  spec.token_dtype = submission.token_dtype;
  Builder builder(submission, spec);
  for (int32_t index : part.leaves) builder.add(graphs.graph.leaves[static_cast<size_t>(index)]);
  add_eval_leaves(graphs, part, builder);
  spec.resume.step = job.resume_step;
  if (job.resume_step > 0) {
    const auto found = job.checkpoints.find(job.resume_step);
    if (found == job.checkpoints.end() || !found->second.complete) {
      return make_error(Code::kInternal, fmt::format("job {} lost its checkpoint of step {}",
                                                     job.id, job.resume_step));
    }
    for (const auto& [index, shard] : found->second.shards) {
      spec.resume.shards.push_back(job::BlobRef{shard.sha256, shard.bytes, ""});
    }
  }
  return spec;
}

std::vector<job::BlobRef> blobs_of(const job::WorkerSpec& spec) {
  std::map<std::string, job::BlobRef> once;
  const auto add = [&](const job::BlobRef& blob) {
    if (!blob.sha256.empty()) once.emplace(blob.sha256, blob);
  };
  add(spec.graph);
  add(spec.eval_graph);
  add(spec.init);
  for (const auto& [name, blob] : spec.weights) add(blob);
  for (const auto& [name, blob] : spec.data) add(blob);
  for (const job::BlobRef& blob : spec.resume.shards) add(blob);
  std::vector<job::BlobRef> result;
  for (const auto& [name, blob] : once) result.push_back(blob);
  return result;
}

}  // namespace weft::broker
