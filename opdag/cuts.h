// Cuts: what the cuts of one graph ask of it, found once. Who tries many cuts makes one of these;
// the functions of cut.h, which say what each of them does, find it anew for every call. Copies
// share it. Immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "opdag/cut.h"

namespace weft::opdag {

class Cuts {
 public:
  // The graph must outlive it and all copies.
  explicit Cuts(const Graph& graph);

  const std::vector<std::vector<int32_t>>& units() const;  // cut_units
  const std::vector<bool>& from_nothing() const;           // nodes_from_nothing (from_nothing.h)
  // By value: position of the node whose stage sends it to others that read it; kNone for a leaf,
  // and for what each stage computes for itself.
  const std::vector<int32_t>& senders() const;

  Result<Partition> split_at(const std::vector<int32_t>& ends) const;
  Result<StageGraph> stage_graph(const Partition& partition) const;
  Result<std::vector<Stage>> stages(const Partition& partition) const;  // extract_stage of each
  std::vector<TiedUse> tied_uses(const Partition& partition) const;

 private:
  struct Facts;
  std::shared_ptr<const Facts> facts_;
};

}  // namespace weft::opdag
