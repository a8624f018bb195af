#include "executor/capture/graph_space.h"
#include "executor/transfer.h"
// After aten.h: the one file that needs the headers of CUDA.
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
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

// A capture that CUDA has refused ends without what CUDAGraph::capture_end does: allocators would
// go on as in a capture, and the default generator refuse every draw.
void clean_up(at::Device device, at::cuda::MempoolId_t pool) {
  const auto despite = [](const auto& call) {
    try {
      call();
    } catch (const std::exception&) {  // it had been ended
    }
  };
  despite([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(device.index(), pool); });
  despite([&] { at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool); });
  at::Generator generator = at::globalContext().defaultGenerator(device);
  generator.graphsafe_set_state(at::cuda::detail::createCUDAGenerator(device.index()));
}

// While it lives, the device's default generator is another one: operators draw from it whatever
// they are given.
class GeneratorGuard {
 public:
  GeneratorGuard(at::Device device, const at::Generator& other)
      : default_(at::globalContext().defaultGenerator(device)),
        own_(default_.graphsafe_get_state()) {
    default_.graphsafe_set_state(other);
  }
  ~GeneratorGuard() { default_.graphsafe_set_state(own_); }
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  at::Generator default_, own_;
};

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(at::Device device, size_t draws) {
    for (size_t i = 0; i < draws; ++i) {
      generators.push_back(at::cuda::detail::createCUDAGenerator(device.index()));
      graph.register_generator_state(generators.back());
    }
  }

  void replay(const std::vector<uint64_t>& seeds) override {
    TORCH_CHECK(seeds.size() == generators.size(), "a seed for each draw is needed");
    for (size_t i = 0; i < seeds.size(); ++i) generators[i].set_current_seed(seeds[i]);
    graph.replay();
  }

  std::vector<at::Generator> generators;  // one a draw, so that its seed is what it is anywhere
  at::cuda::CUDAGraph graph;              // registered with them: it goes before they do
};

class CudaGraphSpace final : public GraphSpace {
 public:
  explicit CudaGraphSpace(at::Device device)
      : device_(device),
        pool_(at::cuda::graph_pool_handle()),
        stream_(capture_stream(device.index())) {}

  std::unique_ptr<DeviceGraph> capture(size_t draws,
                                       const std::function<void(const Draw& draw)>& work) override {
    auto captured = std::make_unique<CudaGraph>(device_, draws);
    const c10::StreamGuard guard(stream_);
    // A capture writes the seeds' memory, which work that is queued outside may still read.
    order(guard.original_stream(), stream_);
    size_t next = 0;
    const Draw draw = [&](const std::function<void()>& call) {
      const GeneratorGuard instead(device_, captured->generators.at(next++));
      call();
    };
    // Thread local: what other threads do with CUDA is no business of this capture.
    captured->graph.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    const auto end = [&] {
      try {
        captured->graph.capture_end();
      } catch (const std::exception&) {
        clean_up(device_, pool_);
        throw;
      }
    };
    try {
      work(draw);
      TORCH_CHECK(next == draws, "fewer draws than were announced");
    } catch (...) {
      try {
        end();
      } catch (const std::exception&) {  // what went wrong first is what is told
      }
      throw;
    }
    end();
    order(stream_, guard.original_stream());
    return captured;
  }

 private:
  at::Device device_;
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
