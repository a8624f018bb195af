// Device graphs: work recorded once and launched as a whole. Only CUDA has them here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "executor/aten.h"

namespace weft::executor {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Queues the work on the current stream; its draws are those of a generator with these seeds, one
  // a draw.
  virtual void replay(const std::vector<uint64_t>& seeds) = 0;
};

// Memory for graphs that are replayed in the order they were captured in, and the stream captures
// are made on. Compute thread only.
class GraphSpace {
 public:
  // nullptr: the device, or this build, has no graphs.
  static std::unique_ptr<GraphSpace> make(at::Device device);
  virtual ~GraphSpace() = default;

  // Records what `work` queues without running it. Tensors that outlive `work` stay at their place
  // and hold what the last replay wrote. `work` runs each call that draws random numbers by `draw`,
  // `draws` in all. Throws what `work` or the device throws; this space is then of no use, plain
  // work goes on.
  using Draw = std::function<void(const std::function<void()>& call)>;
  virtual std::unique_ptr<DeviceGraph> capture(
      size_t draws, const std::function<void(const Draw& draw)>& work) = 0;
};

// What matrix products need of memory on the calling thread's stream. Plain runs and captures share
// it; made on the first product, it would split the memory that activations leave.
void allocate_workspace(at::Device device);

}  // namespace weft::executor
