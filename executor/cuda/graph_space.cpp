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

// cuBLAS keeps a workspace (32 MiB on Hopper) for each pair of handle and stream it meets.
void give_up_workspace_of_current_stream() {
  void* const handle = at::cuda::getCurrentCUDABlasHandle();
  void* const stream = c10::cuda::getCurrentCUDAStream().stream();
  auto& workspaces = at::cuda::cublas_handle_stream_to_workspace();
  const std::unique_lock lock(workspaces.mutex);
  workspaces.map.erase({handle, stream});
}

// One for all captures of a thread on a device. Its workspace takes the place of the one that plain
// runs made, and is in no graph's memory. Graphs have memory of their own: what plain runs left in
// the cache would stand beside it.
c10::Stream capture_stream(c10::DeviceIndex device) {
  thread_local std::map<c10::DeviceIndex, c10::Stream> streams;
  const c10::DeviceGuard on_device(c10::Device(c10::kCUDA, device));
  const auto known = streams.find(device);
  if (known == streams.end()) give_up_workspace_of_current_stream();
  at::accelerator::emptyCache();
  if (known != streams.end()) return known->second;
  const c10::Stream stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device);
  const c10::StreamGuard guard(stream);
  at::cuda::getCurrentCUDABlasHandle();
  return streams.emplace(device, stream).first->second;
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

std::unique_ptr<GraphSpace> make_cuda_graph_space(at::Device device);
std::unique_ptr<GraphSpace> make_cuda_graph_space(at::Device device) {
  return std::make_unique<CudaGraphSpace>(device);
}

}  // namespace weft::executor
