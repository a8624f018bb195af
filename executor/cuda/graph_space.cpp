#include "executor/capture/graph_space.h"
// After aten.h: the one file that needs the headers of CUDA.
#include <ATen/DeviceAccelerator.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <map>
#include <mutex>
#include <utility>

namespace weft::executor {
namespace {

// cuBLAS keeps a workspace (32 MiB on Hopper) for each pair of handle and stream it meets. Captures
// use that of the current stream: graphs are replayed there, in turn with plain runs.
void lend_workspace(const c10::Stream& to) {
  void* const handle = at::cuda::getCurrentCUDABlasHandle();
  void* const from = c10::cuda::getCurrentCUDAStream().stream();
  auto& workspaces = at::cuda::cublas_handle_stream_to_workspace();
  const std::unique_lock lock(workspaces.mutex);
  const auto own = workspaces.map.find({handle, from});
  if (own == workspaces.map.end()) return;  // cuBLAS has its own
  workspaces.map.insert_or_assign({handle, to.native_handle()},
                                  at::DataPtr(own->second.get(), own->second.device()));
}

// One for all captures of a thread on a device. Graphs have memory of their own: what plain runs
// left in the cache would stand beside it.
c10::Stream capture_stream(c10::DeviceIndex device) {
  thread_local std::map<c10::DeviceIndex, c10::Stream> streams;
  const c10::DeviceGuard on_device(c10::Device(c10::kCUDA, device));
  auto known = streams.find(device);
  if (known == streams.end()) {
    const c10::Stream stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device);
    lend_workspace(stream);
    known = streams.emplace(device, stream).first;
  }
  at::accelerator::emptyCache();
  return known->second;
}

class CudaGraph final : public DeviceGraph {
 public:
  at::cuda::CUDAGraph graph;
  void replay() override { graph.replay(); }
};

class CudaGraphSpace final : public GraphSpace {
 public:
  explicit CudaGraphSpace(at::Device device)
      : pool_(at::cuda::graph_pool_handle()), stream_(capture_stream(device.index())) {}

  std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work) override {
    auto captured = std::make_unique<CudaGraph>();
    const c10::StreamGuard guard(stream_);
    // Thread local: what other threads do with CUDA is no business of this capture.
    captured->graph.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        captured->graph.capture_end();
      } catch (const std::exception&) {  // what went wrong first is what is told
      }
      throw;
    }
    captured->graph.capture_end();
    return captured;
  }

 private:
  at::cuda::MempoolId_t pool_;
  c10::Stream stream_;
};

}  // namespace

void allocate_cuda_workspace(at::Device device);
void allocate_cuda_workspace(at::Device device) {
  const c10::DeviceGuard guard(device);
  at::cuda::getCurrentCUDABlasHandle();
}

std::unique_ptr<GraphSpace> make_cuda_graph_space(at::Device device);
std::unique_ptr<GraphSpace> make_cuda_graph_space(at::Device device) {
  return std::make_unique<CudaGraphSpace>(device);
}

}  // namespace weft::executor
