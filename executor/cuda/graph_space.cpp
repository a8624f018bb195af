#include "executor/capture/graph_space.h"
// After aten.h: the one file that needs the headers of CUDA.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/StreamGuard.h>

#include <utility>

namespace weft::executor {
namespace {

class CudaGraph final : public DeviceGraph {
 public:
  at::cuda::CUDAGraph graph;
  void replay() override { graph.replay(); }
};

class CudaGraphSpace final : public GraphSpace {
 public:
  explicit CudaGraphSpace(at::Device device)
      : pool_(at::cuda::graph_pool_handle()),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {}

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
