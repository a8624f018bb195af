// What `weft model inspect` and `weft job submit --dry-run` tell about a graph: a pure summary, its
// text and its JSON. Works on graphs that keep refused operators (ImportOptions::keep_refused).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "opdag/graph.h"
#include "opdag/op_table.h"

namespace weft::opdag {

std::string_view cost_class_name(CostClass cost_class);  // "matmul"

struct OperatorSummary {
  std::string op;
  int64_t count = 0;
  double flops_forward = 0;
  double bytes_forward = 0;
};

struct ClassSummary {
  CostClass cost_class = CostClass::kMemory;
  int64_t nodes = 0;
  Cost cost;
};

struct TensorSummary {
  std::string name;  // original name
  DType dtype = DType::kFloat32;
  std::vector<int64_t> sizes;
};

// Elements and bytes; a weight that several leaves share counts once.
struct StorageSummary {
  int64_t tensors = 0;
  int64_t elements = 0;
  int64_t bytes = 0;
};

// A tensor that may travel between stages: made in one unit, used in another.
struct CutTensor {
  std::string value;  // "linear_3"
  std::string op;     // its producer
  NodeId node = kNone;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> sizes;
  int64_t bytes = 0;
  bool needs_grad = false;
  int32_t made_in = 0;  // units, in their topological order
  int32_t last_used_in = 0;
};

struct RefusedOperator {
  std::string op;
  int64_t count = 0;
  NodeId node = kNone;  // the first
  std::string advice;
};

struct ModelSummary {
  int64_t nodes = 0;
  std::vector<OperatorSummary> operators;  // most FLOPs first, then most frequent
  std::vector<ClassSummary> classes;       // those that occur, in the order of the enumeration
  Cost total;                              // of one micro-batch
  StorageSummary parameters, trainable, buffers, constants;
  std::vector<std::string> tied;  // "a = b": weights with several names
  std::vector<TensorSummary> inputs, outputs;
  std::string loss;                    // name of the output trained on; empty: none
  int64_t units = 0;                   // the largest number of stages
  std::vector<CutTensor> cut_tensors;  // in the order they are made
  std::vector<RefusedOperator> refused;
  std::vector<std::string> warnings;
  // The graph compares position t with label t + 1 itself (Hugging Face causal models): binding
  // next_tokens to this input would shift twice.
  bool labels_shifted_inside = false;
  std::string shifted_input;
};

ModelSummary summarize(const Graph& graph);

// For people; at most max_tensors lines of cut tensors (JSON has them all).
std::string to_text(const ModelSummary& summary, size_t max_tensors = 40);
nlohmann::json to_json(const ModelSummary& summary);

}  // namespace weft::opdag
