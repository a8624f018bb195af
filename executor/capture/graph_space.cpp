#include "executor/capture/graph_space.h"

namespace weft::executor {

#ifdef WEFT_CUDA
// cuda/graph_space.cpp
std::unique_ptr<GraphSpace> make_cuda_graph_space(at::Device device);
void allocate_cuda_workspace(at::Device device);
#endif

std::unique_ptr<GraphSpace> GraphSpace::make(at::Device device) {
#ifdef WEFT_CUDA
  if (device.is_cuda()) return make_cuda_graph_space(device);
#endif
  static_cast<void>(device);
  return nullptr;
}

void allocate_workspace(at::Device device) {
#ifdef WEFT_CUDA
  if (device.is_cuda()) allocate_cuda_workspace(device);
#endif
  static_cast<void>(device);
}

}  // namespace weft::executor
