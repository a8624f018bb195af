#include "opdag/cuts.h"

#include "opdag/cut_flow.h"

namespace weft::opdag {

struct Cuts::Facts {
  explicit Facts(const Graph& of) : graph(of), flow(of), units(cut_units(of, flow)) {}

  const Graph& graph;
  CutFlow flow;
  std::vector<std::vector<int32_t>> units;
};

Cuts::Cuts(const Graph& graph) : facts_(std::make_shared<Facts>(graph)) {}

const std::vector<std::vector<int32_t>>& Cuts::units() const {
  return facts_->units;
}

const std::vector<bool>& Cuts::from_nothing() const {
  return facts_->flow.copied;
}

const std::vector<int32_t>& Cuts::senders() const {
  return facts_->flow.sender;
}

Result<Partition> Cuts::split_at(const std::vector<int32_t>& ends) const {
  return opdag::split_at(facts_->graph, facts_->flow, facts_->units, ends);
}

Result<StageGraph> Cuts::stage_graph(const Partition& partition) const {
  return opdag::stage_graph(facts_->graph, facts_->flow, partition);
}

Result<std::vector<Stage>> Cuts::stages(const Partition& partition) const {
  return extract_stages(facts_->graph, facts_->flow, partition);
}

std::vector<TiedUse> Cuts::tied_uses(const Partition& partition) const {
  return opdag::tied_uses(facts_->graph, facts_->flow, partition);
}

}  // namespace weft::opdag
