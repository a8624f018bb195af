#include "broker/work_traffic.h"

#include "broker/coordinator/planner_inputs.h"

namespace weft::broker {

WorkTraffic::WorkTraffic(const opdag::Graph& graph, const job::Plan& plan) {
  for (const job::StagePlan& stage : plan.stages) peers_.push_back(stage.replicas[0]);
  next_ms_.assign(peers_.size(), 0);
  for (const auto& way : ways_of(graph, plan)) ways_.insert(way);
}

std::vector<CarriedWay> WorkTraffic::believed(int32_t stage,
                                              const std::vector<job::LinkTraffic>& told,
                                              int64_t now_ms) {
  const auto from = static_cast<size_t>(stage);
  if (told.empty() || stage < 0 || from >= peers_.size() || now_ms < next_ms_[from]) return {};
  next_ms_[from] = now_ms + kEveryMs;
  std::vector<CarriedWay> result;
  std::set<LinkKey> named;
  for (const job::LinkTraffic& link : told) {
    const auto to = static_cast<size_t>(link.stage);
    if (link.stage < 0 || to >= peers_.size()) continue;
    const LinkKey way{peers_[from], peers_[to]};
    if (ways_.contains(way) && named.insert(way).second) {
      result.push_back({way, {link.bytes_s, link.round_trip_s}});
    }
  }
  return result;
}

}  // namespace weft::broker
