#include "executor/capture/graph_space.h"

namespace weft::executor {

#ifdef WEFT_CUDA
std::unique_ptr<GraphSpace> make_cuda_graph_space(at::Device device);  // cuda/graph_space.cpp
#endif

std::unique_ptr<GraphSpace> GraphSpace::make(at::Device device) {
#ifdef WEFT_CUDA
  if (device.is_cuda()) return make_cuda_graph_space(device);
#endif
  static_cast<void>(device);
  return nullptr;
}

}  // namespace weft::executor
