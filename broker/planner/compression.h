// What codecs do to the tensors that cross from stage to stage, as the planner sees it: a function
// that is asked for each value and each direction by itself, and answers what goes over the wire
// and what the two ends work for it. It is policy and cost in one: whoever answers with the bytes
// he was asked about leaves that way as it is.
//
// Codecs run where their stage computes, between its other work: encoding delays the next forward
// as well as the message. Shared weights are not compressed. Pure: the same question gets the same
// answer.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/dtype.h"
#include "base/result.h"

namespace weft::broker {

// What memory of a peer's device takes: codecs are bound by it. Zero where it is unknown.
struct MemorySpeed {
  double op_s = 0;    // a pass, however short
  double byte_s = 0;  // a byte that is read or written
};

struct Crossing {
  double bytes = 0;  // of a micro-batch, as sent without a codec; above 0
  DType dtype = DType::kFloat32;
  bool gradient = false;  // goes back; else an activation
  // Of the way, every line that it shares with others for itself; 0: delays nothing.
  double latency_s = 0, byte_s = 0;
  MemorySpeed sender, receiver;
  // What the slowest stage works for a micro-batch: a message that takes no longer does not slow a
  // full pipeline down.
  double slowest_stage_s = 0;
};

// All of one micro-batch.
struct Coded {
  double wire_bytes = 0;
  double encode_s = 0, decode_s = 0;  // of the sender, of the receiver
  std::string codec;                  // what was chosen, for reports; empty: sent as it is
};

// Pure: two threads may ask at once.
using CompressionPolicy = std::function<Coded(const Crossing&)>;

struct Compression {
  std::string name = "none";
  // Of numbers that somebody wrote down: what they say; told wherever they counted.
  std::string assumed;
  CompressionPolicy policy;  // empty: everything is sent as it is
};

// A policy held to its bounds: wire bytes above 0 and at most twice the tensor's and a header,
// seconds finite and not negative. What breaks them counts as sent as it is, and status() tells of
// the first; copies share it. One thread at a time.
class Compressor {
 public:
  Compressor() = default;
  explicit Compressor(const Compression& compression);
  explicit operator bool() const { return policy_ != nullptr; }
  Coded ask(const Crossing& crossing) const;
  Status status() const;

 private:
  CompressionPolicy policy_;
  std::string name_;
  std::shared_ptr<Status> status_;
};

// A codec as its user assumes it, to see what one would bring. Only floating tensors are
// compressed.
struct AssumedCodec {
  double ratio = 1;         // bytes on the wire, of the tensor's
  double gbyte_s = 0;       // of the tensor, either end; 0: as memory moves it twice
  double below_mbit_s = 0;  // on ways slower than that; 0: wherever the message arrives sooner so
};
Compression assumed_compression(const AssumedCodec& codec);

}  // namespace weft::broker
