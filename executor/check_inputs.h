// Inputs of `weft model check`: from a safetensors file, or random ones of the declared shapes with
// integers below the embedding rows or class counts they index. A Feed that gives the same tensors
// in every step.
#pragma once

#include <map>
#include <string>

#include "executor/feed.h"
#include "job/safetensors.h"
#include "opdag/graph.h"

namespace weft::executor {

class FixedFeed final : public Feed {
 public:
  explicit FixedFeed(std::map<std::string, at::Tensor> inputs) : inputs_(std::move(inputs)) {}
  Result<at::Tensor> input(const std::string& name, Split split, int64_t step,
                           int32_t micro_batch) override;
  int32_t eval_micro_batches() const override { return 1; }

 private:
  std::map<std::string, at::Tensor> inputs_;
};

// A tensor of a safetensors file, copied.
Result<at::Tensor> tensor_of(const job::TensorView& view);
Result<job::TensorView> view_of(const at::Tensor& tensor);

// Checks that every user input is there with the declared shape.
Result<std::map<std::string, at::Tensor>> inputs_from_file(const opdag::Graph& graph,
                                                           const std::string& path);

// Exclusive upper bound of an integer input's values: embedding rows, classes, or indexed sizes
// reached from it through views; 2 where nothing is known.
int64_t integer_bound(const opdag::Graph& graph, opdag::ValueId input);

Result<std::map<std::string, at::Tensor>> random_inputs(const opdag::Graph& graph, uint64_t seed);

}  // namespace weft::executor
