// The trainable weights a stage holds, and who owns each. A weight is one or several parameter
// leaves with the same bytes (tied). Every (leaf, consumer node) pair is a use with a gradient sum
// of its own; the weight's gradient is the fold of its uses in ascending node order, over all
// stages, made by the owner: the lowest stage with a use (stage 0 where nothing uses it). So the
// sum has one order under any cut.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/aten.h"
#include "executor/message_tensor.h"
#include "opdag/cut.h"
#include "opdag/graph.h"

namespace weft::executor {

struct ParameterUse {
  opdag::ValueId value = opdag::kNone;  // of the leaf
  int32_t position = 0;                 // of the consumer in graph.nodes
  int32_t stage = 0;
  // Of uses in this stage:
  std::optional<at::Tensor> gradient;  // sum over micro-batches, ascending
  bool owned = false;                  // gradient may be added to in place
};

struct Parameter {
  std::vector<int32_t> leaves;     // indices into graph.leaves, ascending
  std::string name;                // of leaves[0]: the same in every stage and every cut
  std::vector<ParameterUse> uses;  // of all stages, ascending (position, value)
  std::vector<int32_t> stages;     // with a use, ascending
  bool trainable = false;
  at::Tensor value;
  std::optional<at::Tensor> gradient;  // at the owner after the fold

  int32_t id() const { return leaves[0]; }  // canonical index; the edge of tied messages
  int32_t owner() const { return stages[0]; }
  bool shared() const { return stages.size() > 1; }
  size_t uses_in(int32_t stage) const;
};

// Weights with a use in `stage`, in canonical order; values are filled by the caller.
std::vector<Parameter> find_parameters(const opdag::Graph& graph, const opdag::Partition& partition,
                                       int32_t stage);

// Adds a micro-batch's gradient of one use (none: nothing). ours: nobody else uses its memory
// before the step ends; without it that is found out.
void accumulate(ParameterUse& use, at::Tensor gradient, bool ours = false);

// Folds the uses' gradients into parameter.gradient, which nothing else shares afterwards.
void fold_uses(Parameter& parameter);

// Square of the 2-norm in double precision, as a scalar tensor on the gradient's device.
at::Tensor squared_norm(const at::Tensor& gradient);

}  // namespace weft::executor
