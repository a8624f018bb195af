// What there is to do in a graph, by operator class, and what a device takes for it: seconds =
// a0 operators + a1 FLOPs + a2 bytes per class and direction (methods, section 3). Pure data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "opdag/graph.h"

namespace weft::job {

// Operators that spend their time alike. Finer than opdag::CostClass where the same bytes cost
// devices very different times.
enum class OpClass : uint8_t {
  kMatrix,       // products of matrices
  kConvolution,  // grouped ones too
  kAttention,    // fused
  kElementwise,  // add, mul, relu, copies: bound by memory
  kFunction,     // gelu, tanh, exp: arithmetic an element
  kRandom,       // draws: dropout
  kNorm,         // batch, layer and group norm
  kReduce,       // softmax, losses, pooling, sums
  kIndex,        // embedding, gather, what makes tensors
};
inline constexpr size_t kOpClasses = 9;
std::string_view op_class_name(OpClass op_class);
// Of classes that FLOPs decide once operators are large.
constexpr bool is_product(OpClass op_class) {
  return op_class == OpClass::kMatrix || op_class == OpClass::kConvolution ||
         op_class == OpClass::kAttention;
}
OpClass op_class_of(const opdag::Node& node);

struct ClassWork {
  double operators = 0;  // views left out
  double flops_forward = 0, flops_backward = 0;
  // Read and written, in the element types of the export; backward as the forward, and the whole
  // table where a gradient of a few rows is one of the table.
  double bytes_forward = 0, bytes_backward = 0;
  double forward_only = 0;  // of the operators, those without a backward
  void add(const ClassWork& other);
};

// For one micro-batch, of a node or of many.
struct Work {
  std::array<ClassWork, kOpClasses> of_class;
  ClassWork& of(OpClass op_class) { return of_class[static_cast<size_t>(op_class)]; }
  void add(const Work& other);
  ClassWork total() const;
};

// In the order of graph.nodes, every node with its backward.
std::vector<Work> node_work(const opdag::Graph& graph);
// The same in training: no backward where no gradient flows, as below the first trained parameter.
std::vector<Work> training_work(const opdag::Graph& graph);

struct OpCost {
  double op_s = 0, flop_s = 0, byte_s = 0;
};
struct ClassCost {
  OpCost forward, backward;
};
using OpCosts = std::array<ClassCost, kOpClasses>;

struct PassSeconds {
  double forward = 0, backward = 0;
};
PassSeconds seconds_of(const Work& work, const OpCosts& costs);

// One class for all, as people write it down: the backward moves twice the bytes of the forward.
OpCosts plain_costs(double flop_s, double byte_s, double op_s);

}  // namespace weft::job
