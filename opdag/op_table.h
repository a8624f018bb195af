// The operator table: the allow-list between a stranger's graph and a volunteer's machine, and all
// that weft knows about an operator beyond its schema. One row per overload; a new operator or a
// new limit is a change of this table and nothing else.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "opdag/graph.h"

namespace weft::opdag {

// How time is spent; the workload estimator fits t = a0 + a1 FLOPs + a2 bytes per class.
enum class CostClass : uint8_t {
  kView,
  kMemory,
  kReduce,
  kMatmul,
  kConv,
  kAttention,
  kIndex,
  kCreate
};

struct Cost {
  double flops_forward = 0;  // multiply and add count as two
  double flops_backward = 0;
  double bytes_forward = 0;  // read and written, forward
};

struct OpInfo {
  std::string_view name;  // "aten::add.Tensor"
  CostClass cost_class = CostClass::kMemory;
  bool view = false;            // output 0 may alias the first tensor argument
  bool random = false;          // draws from a generator (when its train flag is on)
  bool deterministic = true;    // same inputs, same bits, on CPU and CUDA
  bool differentiable = true;   // gradient can flow through it
  std::string_view functional;  // of an in-place operator: its functional form
  std::span<const std::string_view>
      writes_buffers;           // arguments it updates though its schema does not say so
  std::string_view train_flag;  // argument that is true in training: "train", "training"
  std::string_view dropout_p;   // argument that is a dropout probability
};

// The operator weft runs for a custom operator of a well-known library, with the same arguments;
// other names are given back. docs/models.md lists them.
std::string_view native_of(std::string_view op);

// nullptr: not on the allow-list.
const OpInfo* find_op(std::string_view name);
std::span<const OpInfo> all_ops();

// Whether the node draws from a generator: a random operator, unless its train flag is off or its
// dropout probability zero.
bool draws_random(const Node& node);

// What to tell the user about an operator that is not on the list.
Error refused_op(const Node& node);

// Argument limits that keep a hostile graph from asking for absurd work (output elements, kernel
// sizes, repeats); checked by validate for every node.
Status check_limits(const Graph& graph, const Node& node);

Cost node_cost(const Graph& graph, const Node& node);

}  // namespace weft::opdag
