// Tensors as data-plane messages. The layout of Message::bytes, which both ends derive from sizes
// and strides alone:
//   * dimensions of stride 0 (expanded) carry one element;
//   * if what remains is non-overlapping and dense, its elements in memory order, as they lie in
//     storage (no copy on a CPU);
//   * otherwise its elements in row-major order; the receiver rebuilds the strides with gaps.
// Strides are always restored: a view, or the order of a sum, can depend on them.
//
// A bundle is several tensors of one shape under one key (gradients of separate uses of a value):
// one tensor travels plain, more as bytes (dtype uint8): per tensor a present byte, a dtype byte,
// 8-byte little-endian strides, and the elements as above.
// Nothing received is trusted: shapes must be the expected ones, strides bounded.
#pragma once

#include <optional>
#include <vector>

#include "base/result.h"
#include "executor/aten.h"
#include "executor/transfer.h"
#include "net/message.h"
#include "opdag/graph.h"

namespace weft::executor {

// What a receiver knows of a tensor before it comes.
struct ExpectedTensor {
  std::vector<int64_t> sizes;
  DType dtype = DType::kFloat32;
  bool any_float = false;        // autocast: the element type may be another floating one
  int64_t storage_elements = 0;  // as exported; bounds the strides
};
ExpectedTensor expected_tensor(const opdag::TensorMeta& meta, bool any_float);

using OptionalTensors = std::vector<std::optional<at::Tensor>>;

// The message keeps the tensor's storage alive; it must not be written before release. Its bytes
// are there once the transfer's next mark has passed.
Result<net::Message> encode_tensor(const net::MessageKey& key, const at::Tensor& tensor,
                                   Transfer& transfer);
net::Message encode_none(const net::MessageKey& key);
Result<net::Message> encode_bundle(const net::MessageKey& key, const OptionalTensors& tensors,
                                   Transfer& transfer);

// Fresh tensors on the transfer's device; nullopt for an explicit "none".
Result<std::optional<at::Tensor>> decode_tensor(const net::Message& message,
                                                const ExpectedTensor& expected, Transfer& transfer);
Result<OptionalTensors> decode_bundle(const net::Message& message, size_t count,
                                      const ExpectedTensor& expected, Transfer& transfer);

}  // namespace weft::executor
