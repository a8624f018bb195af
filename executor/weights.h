// Weights from raw bytes to tensors: one leaf, checked against its file, with its own strides, on
// the worker's device and in the graph's element type (a graph promoted to float64 keeps float32
// files). Any thread.
#pragma once

#include "base/buffer.h"
#include "base/result.h"
#include "executor/aten.h"
#include "opdag/graph.h"

namespace weft::executor {

Result<at::Tensor> tensor_from_bytes(const opdag::WeightRef& ref, const Buffer& bytes, DType dtype,
                                     at::Device device);

}  // namespace weft::executor
