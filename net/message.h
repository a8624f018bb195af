// What travels on the data plane between the stages of one job.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/dtype.h"

namespace weft::net {

enum class MessageKind : uint8_t {
  kActivation = 1,  // of edge, forward
  kGradient,        // of edge, back to its producer
  kEvalActivation,
  kTiedGradient,  // edge = tied group; to the owner
  kTiedWeight,    // edge = tied group; from the owner
  kNorms,         // a stage's report on its gradients, to the loss stage: norms, overflow
  kClip,          // what comes of the reports, from the loss stage: norm, step or skip, scale
};

// Names a message for life: sending or receiving it twice is harmless.
struct MessageKey {
  uint32_t epoch = 0;  // of the plan; another epoch is refused
  uint64_t step = 0;   // training step, or ordinal of an evaluation micro-batch pass
  uint32_t micro_batch = 0;
  uint32_t edge = 0;
  MessageKind kind = MessageKind::kActivation;
  int32_t from = 0;  // stage
  auto operator<=>(const MessageKey&) const = default;
  std::string text() const;  // "activation step 3 micro-batch 1 edge 4 from stage 0"
};

// One tensor, or an explicit "none" (a gradient that does not exist).
struct Message {
  MessageKey key;
  bool none = false;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // of the tensor at the sender, restored at the receiver
  Buffer bytes;                  // the elements; see stage code for the storage layout
};

}  // namespace weft::net
