#include "executor/parameters.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "executor/fan_out.h"

namespace weft::executor {

size_t Parameter::uses_in(int32_t stage) const {
  return static_cast<size_t>(std::count_if(
      uses.begin(), uses.end(), [stage](const auto& use) { return use.stage == stage; }));
}

std::vector<Parameter> find_parameters(const opdag::Graph& graph, const opdag::Partition& partition,
                                       int32_t stage) {
  std::map<int32_t, Parameter> found;  // by canonical leaf
  std::map<int32_t, int32_t> first_of_group;
  for (size_t i = 0; i < graph.leaves.size(); ++i) {
    const opdag::Leaf& leaf = graph.leaves[i];
    if (leaf.kind != opdag::LeafKind::kParameter) continue;
    auto index = static_cast<int32_t>(i);
    if (leaf.tied_group != opdag::kNone) {
      index = first_of_group.try_emplace(leaf.tied_group, index).first->second;
    }
    Parameter& parameter = found[index];
    parameter.leaves.push_back(static_cast<int32_t>(i));
    const std::vector<int32_t> readers = consumer_positions(graph, leaf.value);
    // What nothing reads gets no gradient; it is only kept for checkpoints.
    const bool trainable = leaf.trainable && !readers.empty() &&
                           dtype_can_have_gradient(graph.value(leaf.value).meta.dtype);
    parameter.trainable = parameter.trainable || trainable;
    for (int32_t position : readers) {
      const int32_t where = partition.stage_of[static_cast<size_t>(position)];
      parameter.stages.push_back(where);
      if (trainable) {
        ParameterUse use;
        use.value = leaf.value;
        use.position = position;
        use.stage = where;
        parameter.uses.push_back(std::move(use));
      }
    }
  }
  std::vector<Parameter> result;
  for (auto& [index, parameter] : found) {
    auto& stages = parameter.stages;
    if (stages.empty()) stages.push_back(0);  // as opdag::extract_stage
    std::sort(stages.begin(), stages.end());
    stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
    if (!std::binary_search(stages.begin(), stages.end(), stage)) continue;
    parameter.name = graph.leaves[static_cast<size_t>(index)].target;
    std::sort(parameter.uses.begin(), parameter.uses.end(), [](const auto& a, const auto& b) {
      return std::tie(a.position, a.value) < std::tie(b.position, b.value);
    });
    result.push_back(std::move(parameter));
  }
  return result;
}

void accumulate(ParameterUse& use, at::Tensor gradient, bool ours) {
  if (!gradient.defined()) return;
  if (!use.gradient) {
    // Results of one backward pass may share their memory.
    const bool alone = gradient.use_count() == 1 && gradient.storage().use_count() == 1;
    use.owned = (ours || alone) && gradient.is_non_overlapping_and_dense();
    use.gradient = std::move(gradient);
  } else if (!use.owned) {
    use.gradient = *use.gradient + gradient;
    use.owned = true;
  } else {
    use.gradient->add_(gradient);
  }
}

void fold_uses(Parameter& parameter) {
  parameter.gradient.reset();
  bool owned = false;
  for (ParameterUse& use : parameter.uses) {
    if (!use.gradient) continue;
    if (!parameter.gradient) {
      parameter.gradient = std::move(use.gradient);
      owned = use.owned;
    } else if (owned) {
      parameter.gradient->add_(*use.gradient);
    } else {
      parameter.gradient = *parameter.gradient + *use.gradient;
      owned = true;
    }
    use.gradient.reset();
    use.owned = false;
  }
  if (parameter.gradient && (!owned || !parameter.gradient->is_non_overlapping_and_dense())) {
    parameter.gradient = parameter.gradient->clone();
  }
}

at::Tensor squared_norm(const at::Tensor& gradient) {
  return at::linalg_vector_norm(gradient, 2, std::nullopt, false, at::kDouble).square();
}

}  // namespace weft::executor
