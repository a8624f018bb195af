#include "opdag/cut_eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "opdag/cut_flow.h"
#include "opdag/derive.h"

namespace weft::opdag {
namespace {

using StagesOfWeight = std::map<std::string, std::set<int32_t>>;

// The stages that hold each parameter, under all its names, and each buffer that training writes.
StagesOfWeight weight_stages(const Graph& train, const Partition& partition) {
  std::set<std::string> written;
  for (const BufferUpdate& update : train.buffer_updates) written.insert(update.target);
  StagesOfWeight result;
  std::map<int32_t, std::set<int32_t>> of_group;
  for (const Leaf& leaf : train.leaves) {
    if (leaf.kind != LeafKind::kParameter && !written.contains(leaf.target)) continue;
    for (NodeId node : train.value(leaf.value).consumers) {
      const int32_t stage = partition.stage_of[static_cast<size_t>(train.node_index(node))];
      result[leaf.target].insert(stage);
      if (leaf.tied_group != kNone) of_group[leaf.tied_group].insert(stage);
    }
  }
  for (const Leaf& leaf : train.leaves) {
    const auto group = of_group.find(leaf.tied_group);
    if (leaf.tied_group != kNone && group != of_group.end()) result[leaf.target] = group->second;
  }
  return result;
}

Error does_not_fit(const Node& node, const std::string& why) {
  Error error = make_error(
      Code::kInvalid, fmt::format("eval_model: node {} ({}) {}", node.id, node.op, why),
      "leave eval_model out (evaluation is then derived from the model), or use fewer stages");
  error.node = std::to_string(node.id);
  error.op = node.op;
  return error;
}

// Lays the units of an evaluation graph, in topological order, along the training stages.
class Layout {
 public:
  Layout(const Graph& train, const Partition& partition, const Graph& eval, int32_t loss_stage)
      : eval_(eval),
        stages_of_(weight_stages(train, partition)),
        stages_(partition.stages),
        loss_stage_(loss_stage),
        flow_(eval) {
    if (eval.loss_output != kNone) {
      loss_ = eval.outputs[static_cast<size_t>(eval.loss_output)].value;
    }
    stage_of_.assign(eval.nodes.size(), kNone);
  }

  Result<std::vector<int32_t>> run() {
    for (const std::vector<int32_t>& unit : cut_units(eval_)) WEFT_TRY_STATUS(place(unit));
    return std::move(stage_of_);
  }

 private:
  Status place(const std::vector<int32_t>& unit) {
    int32_t stage = 0;
    bool makes_loss = false;
    std::map<std::string, const std::set<int32_t>*> needed;
    for (int32_t position : unit) {
      const Node& node = eval_.nodes[static_cast<size_t>(position)];
      for (ValueId id : inputs_of(node)) stage = std::max(stage, read(id, needed));
      makes_loss = makes_loss ||
                   (loss_ != kNone && std::find(node.outputs.begin(), node.outputs.end(), loss_) !=
                                          node.outputs.end());
    }
    if (makes_loss) stage = std::max(stage, loss_stage_);
    const int32_t earliest = stage;
    const auto holds = [&needed](int32_t candidate) {
      return std::all_of(needed.begin(), needed.end(), [candidate](const auto& weight) {
        return weight.second->contains(candidate);
      });
    };
    while (stage < stages_ && !holds(stage)) ++stage;
    const Node& first = eval_.nodes[static_cast<size_t>(unit.front())];
    if (stage == stages_) {
      return does_not_fit(first, fmt::format("needs weight {} in stage {} or later, where training "
                                             "does not use it",
                                             needed.begin()->first, earliest));
    }
    if (makes_loss && stage != loss_stage_) {
      return does_not_fit(first, fmt::format("gives the loss in stage {}, training in stage {}",
                                             stage, loss_stage_));
    }
    for (int32_t position : unit) stage_of_[static_cast<size_t>(position)] = stage;
    return {};
  }

  // The stage an input comes from; weights are noted.
  int32_t read(ValueId id, std::map<std::string, const std::set<int32_t>*>& needed) const {
    if (const int32_t from = flow_.sender[static_cast<size_t>(id)]; from != kNone) {
      return std::max(stage_of_[static_cast<size_t>(from)], 0);
    }
    const Leaf* leaf = eval_.leaf_of(id);
    if (leaf == nullptr || leaf->kind == LeafKind::kUserInput) return 0;
    const auto found = stages_of_.find(leaf->target);
    if (found != stages_of_.end()) needed[leaf->target] = &found->second;
    return 0;
  }

  const Graph& eval_;
  StagesOfWeight stages_of_;
  int32_t stages_, loss_stage_;
  CutFlow flow_;
  ValueId loss_ = kNone;
  std::vector<int32_t> stage_of_;
};

// Numbers the stages that have nodes from 0, keeping their order.
void leave_out_empty(EvalPartition& result) {
  std::set<int32_t> used(result.partition.stage_of.begin(), result.partition.stage_of.end());
  result.train_stage.assign(used.begin(), used.end());
  for (int32_t& stage : result.partition.stage_of) stage = result.stage_of(stage);
  result.partition.stages = static_cast<int32_t>(used.size());
}

void number_links(const StageGraph& train, EvalPartition& result) {
  for (const Edge& edge : result.stages.edges) {
    EvalPartition::Link link;
    link.from = result.train_stage[static_cast<size_t>(edge.from)];
    link.to = result.train_stage[static_cast<size_t>(edge.to)];
    // Two messages of one route may never have one number.
    link.wire = static_cast<uint32_t>(train.edges.size()) + static_cast<uint32_t>(edge.id);
    for (const Edge& known : train.edges) {
      if (!result.derived || known.value != edge.value) continue;
      if (known.from != link.from || known.to != link.to) continue;
      link.wire = static_cast<uint32_t>(known.id);
      link.trained = true;
    }
    result.links.push_back(link);
  }
}

}  // namespace

int32_t EvalPartition::stage_of(int32_t stage) const {
  const auto found = std::lower_bound(train_stage.begin(), train_stage.end(), stage);
  if (found == train_stage.end() || *found != stage) return kNone;
  return static_cast<int32_t>(found - train_stage.begin());
}

Result<EvalPartition> eval_partition(const Graph& train, const Partition& partition,
                                     const Graph& eval) {
  EvalPartition result;
  WEFT_TRY(const StageGraph trained, stage_graph(train, partition));
  if (eval.nodes.empty()) {
    result.partition.stages = 0;
    return result;
  }
  result.derived = derived_from(eval, train);
  if (result.derived) {
    for (const Node& node : eval.nodes) {
      result.partition.stage_of.push_back(
          partition.stage_of[static_cast<size_t>(train.node_index(node.id))]);
    }
  } else {
    WEFT_TRY(result.partition.stage_of, Layout(train, partition, eval, trained.loss_stage).run());
  }
  leave_out_empty(result);
  WEFT_TRY(result.stages, stage_graph(eval, result.partition));
  number_links(trained, result);
  return result;
}

}  // namespace weft::opdag
