// Transfer: tensors between the computing device and the host. On a card both directions go through
// pinned memory on streams of their own, ordered with the compute stream by events: copies overlap
// compute, and nobody waits for the card. On a CPU the host tensor is the device tensor.
// Compute thread only.
#pragma once

#include <c10/core/Stream.h>

#include <memory>

#include "executor/aten.h"

namespace weft::executor {

class Transfer {
 public:
  static std::unique_ptr<Transfer> make(at::Device device);
  virtual ~Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // The copies to the host begun before it; it keeps their sources alive.
  class Mark {
   public:
    virtual ~Mark() = default;
    virtual bool passed() = 0;  // all of them are done; does not wait
  };

  // Uninitialised host memory, as at::kByte, that copies can run to and from beside compute.
  virtual at::Tensor host_bytes(int64_t size) = 0;

  // A host tensor that holds `dense` (non-overlapping and dense, strides kept) once the mark made
  // next has passed; on a CPU `dense` itself.
  virtual at::Tensor to_host(const at::Tensor& dense) = 0;
  // The same into host memory of the same type and length; both have one dimension.
  virtual void copy_to_host(const at::Tensor& row, const at::Tensor& host) = 0;
  virtual std::unique_ptr<Mark> mark() = 0;

  // `host` (dense) on the device, for whatever the compute thread queues from now on. `host` may be
  // dropped at once and must not be written; on a CPU it is the result. Memory of host_bytes is
  // copied from as it lies, other memory by way of it.
  virtual at::Tensor to_device(const at::Tensor& host) = 0;

 protected:
  Transfer() = default;
};

// What is queued on `then` from now on comes after what is queued on `first`.
void order(const c10::Stream& first, const c10::Stream& then);

// Of tensors that never leave the host. It has no state: any thread.
Transfer& host_transfer();

// The elements of a dense tensor in memory order, as one dimension of at::kByte.
at::Tensor byte_row(const at::Tensor& dense);

}  // namespace weft::executor
