#include "executor/eval_partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

namespace weft::executor {
namespace {

bool is_derived(const opdag::Graph& train, const opdag::Graph& eval) {
  return std::all_of(eval.nodes.begin(), eval.nodes.end(), [&](const opdag::Node& node) {
    const int32_t position = train.node_index(node.id);
    return position != opdag::kNone &&
           train.nodes[static_cast<size_t>(position)].outputs == node.outputs;
  });
}

using StagesOfWeight = std::map<std::string, std::set<int32_t>>;

StagesOfWeight weight_stages(const opdag::Graph& train, const opdag::Partition& partition) {
  StagesOfWeight result;
  for (const opdag::Leaf& leaf : train.leaves) {
    if (leaf.kind != opdag::LeafKind::kParameter) continue;
    for (opdag::NodeId node : train.value(leaf.value).consumers) {
      result[leaf.target].insert(partition.stage_of[static_cast<size_t>(train.node_index(node))]);
    }
  }
  return result;
}

Error does_not_fit(const opdag::Node& node, const std::string& weight, int32_t stage) {
  Error error = make_error(
      Code::kInvalid,
      fmt::format("eval_model: node {} ({}) needs weight {} in stage {}, which does not train it",
                  node.id, node.op, weight, stage),
      "leave eval_model out (evaluation is then derived from the model), or use fewer stages");
  error.node = std::to_string(node.id);
  error.op = node.op;
  return error;
}

Result<opdag::Partition> lay_along(const opdag::Graph& train, const opdag::Partition& partition,
                                   const opdag::Graph& eval) {
  const StagesOfWeight stages_of = weight_stages(train, partition);
  WEFT_TRY(const opdag::StageGraph stages, opdag::stage_graph(train, partition));
  const opdag::ValueId loss = eval.loss_output == opdag::kNone
                                  ? opdag::kNone
                                  : eval.outputs[static_cast<size_t>(eval.loss_output)].value;
  opdag::Partition result;
  result.stages = partition.stages;
  for (const opdag::Node& node : eval.nodes) {
    int32_t stage = 0;
    std::vector<const std::set<int32_t>*> needed;
    std::string weight;
    for (opdag::ValueId id : opdag::inputs_of(node)) {
      const opdag::Value& value = eval.value(id);
      if (value.producer != opdag::kNone) {
        const auto at = static_cast<size_t>(eval.node_index(value.producer));
        stage = std::max(stage, result.stage_of[at]);
        continue;
      }
      const opdag::Leaf* leaf = eval.leaf_of(id);
      if (leaf == nullptr || leaf->kind != opdag::LeafKind::kParameter) continue;
      const auto found = stages_of.find(leaf->target);
      if (found == stages_of.end()) continue;  // a weight training never uses: loaded from its file
      needed.push_back(&found->second);
      weight = leaf->target;
    }
    if (std::find(node.outputs.begin(), node.outputs.end(), loss) != node.outputs.end()) {
      stage = std::max(stage, stages.loss_stage);
    }
    const auto holds = [&needed](int32_t candidate) {
      return std::all_of(needed.begin(), needed.end(),
                         [candidate](const auto* set) { return set->contains(candidate); });
    };
    const int32_t earliest = stage;
    while (stage < partition.stages && !holds(stage)) ++stage;
    if (stage == partition.stages) return does_not_fit(node, weight, earliest);
    result.stage_of.push_back(stage);
  }
  return result;
}

// Numbers the stages that have nodes from 0, keeping their order.
void leave_out_empty(EvalPartition& result) {
  std::set<int32_t> used(result.partition.stage_of.begin(), result.partition.stage_of.end());
  result.train_stage.assign(used.begin(), used.end());
  for (int32_t& stage : result.partition.stage_of) {
    stage = static_cast<int32_t>(std::distance(used.begin(), used.find(stage)));
  }
  result.partition.stages = static_cast<int32_t>(std::max<size_t>(used.size(), 1));
}

}  // namespace

Result<EvalPartition> eval_partition(const opdag::Graph& train, const opdag::Partition& partition,
                                     const opdag::Graph& eval) {
  EvalPartition result;
  result.derived = is_derived(train, eval);
  if (result.derived) {
    result.partition.stages = partition.stages;
    for (const opdag::Node& node : eval.nodes) {
      result.partition.stage_of.push_back(
          partition.stage_of[static_cast<size_t>(train.node_index(node.id))]);
    }
  } else {
    WEFT_TRY(result.partition, lay_along(train, partition, eval));
  }
  leave_out_empty(result);
  return result;
}

}  // namespace weft::executor
