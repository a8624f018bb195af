#include "broker/worker_spec_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "opdag/cut_eval.h"

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
    targets_.insert(leaf.target);
    const auto found = submission_.weights.find(leaf.weight.path);
    if (found != submission_.weights.end()) spec_.weights.insert(*found);
  }
  // Names of the weights and buffers added.
  const std::set<std::string>& targets() const { return targets_; }

 private:
  void add_data(const std::string& input) {
    for (const job::Binding& binding : submission_.spec.data.bindings) {
      if (binding.input != input) continue;
      const bool tokens = job::is_token_column(binding.column);
      for (const char* split : {"train", "eval"}) {
        const std::string key = tokens ? split : fmt::format("{}/{}", split, binding.column);
        const auto found = submission_.data.find(key);
        if (found != submission_.data.end()) spec_.data.insert(*found);
      }
    }
  }

  const Submission& submission_;
  job::WorkerSpec& spec_;
  std::set<std::string> targets_;
};

// The optimizer's tensors are named ".../<parameter>", the others as their leaves.
bool holds(const Shard& shard, const std::set<std::string>& wanted) {
  for (const std::string& name : shard.tensors) {
    if (wanted.contains(name)) return true;
    for (size_t at = name.find('/'); at != std::string::npos; at = name.find('/', at + 1)) {
      if (wanted.contains(name.substr(at + 1))) return true;
    }
  }
  return false;
}

// A shard keeps a tied weight under one of its names, whichever its stage used.
std::set<std::string> with_aliases(const opdag::Graph& graph, std::set<std::string> names) {
  std::set<int32_t> groups;
  for (const opdag::Leaf& leaf : graph.leaves) {
    if (leaf.tied_group != opdag::kNone && names.contains(leaf.target)) {
      groups.insert(leaf.tied_group);
    }
  }
  for (const opdag::Leaf& leaf : graph.leaves) {
    if (groups.contains(leaf.tied_group)) names.insert(leaf.target);
  }
  return names;
}

Result<const Checkpoint*> resume_point(const Job& job) {
  const auto found = job.checkpoints.find(job.resume_step);
  if (found == job.checkpoints.end() || !found->second.complete) {
    return make_error(Code::kInternal, fmt::format("job {} lost its checkpoint of step {}", job.id,
                                                   job.resume_step));
  }
  return &found->second;
}

// Leaves of the evaluation graph this stage needs: those its part of it reads.
Status add_eval_leaves(const JobGraphs& graphs, const opdag::Partition& partition, int32_t stage,
                       Builder& builder) {
  const opdag::Graph& eval = graphs.eval_graph;
  WEFT_TRY(const opdag::EvalPartition where, opdag::eval_partition(graphs.graph, partition, eval));
  const int32_t index = where.stage_of(stage);
  if (index == opdag::kNone) return {};
  WEFT_TRY(const opdag::Stage part, opdag::extract_stage(eval, where.partition, index));
  for (int32_t leaf : part.leaves) builder.add(eval.leaves[static_cast<size_t>(leaf)]);
  return {};
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
  spec.token_dtype = submission.token_dtype;
  Builder builder(submission, spec);
  for (int32_t index : part.leaves) builder.add(graphs.graph.leaves[static_cast<size_t>(index)]);
  WEFT_TRY_STATUS(add_eval_leaves(graphs, job.plan->partition, stage, builder));
  spec.resume.step = job.resume_step;
  if (job.resume_step == 0) {
    // One file of the whole model: only who takes a weight of it, and a checkpoint has them all.
    if (!builder.targets().empty()) spec.init = submission.init;
  } else {
    WEFT_TRY(const Checkpoint* point, resume_point(job));
    const std::set<std::string> wanted = with_aliases(graphs.graph, builder.targets());
    for (const auto& [index, shard] : point->shards) {
      if (!holds(shard, wanted)) continue;
      spec.resume.shards.push_back(job::BlobRef{shard.sha256, shard.bytes, ""});
    }
    // Every shard has the loss scaler's state, and every stage needs it.
    if (spec.resume.shards.empty() && spec.spec.train.precision == job::Precision::kFp16) {
      const auto smallest = std::min_element(
          point->shards.begin(), point->shards.end(),
          [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
      if (smallest != point->shards.end()) {
        const Shard& shard = smallest->second;
        spec.resume.shards.push_back(job::BlobRef{shard.sha256, shard.bytes, ""});
      }
    }
  }
  return spec;
}

Status check_resume_point(const Job& job, const opdag::Graph& graph) {
  if (job.resume_step == 0) return {};
  WEFT_TRY(const Checkpoint* point, resume_point(job));
  std::set<std::string> stored;
  for (const auto& [index, shard] : point->shards) {
    stored.insert(shard.tensors.begin(), shard.tensors.end());
  }
  stored = with_aliases(graph, std::move(stored));
  for (const opdag::Leaf& leaf : graph.leaves) {
    const bool wanted = leaf.kind == opdag::LeafKind::kParameter ||
                        (leaf.kind == opdag::LeafKind::kBuffer && leaf.persistent);
    if (!wanted || stored.contains(leaf.target)) continue;
    return make_error(
        Code::kCorrupt,
        fmt::format("the checkpoint of step {} holds no tensor {}", job.resume_step, leaf.target),
        "submit the job again, with an export of an older checkpoint as its init");
  }
  return {};
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
