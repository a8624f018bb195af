// What the messages of running jobs say of the links they crossed.
#include "broker/core.h"

namespace weft::broker {

WorkTraffic* Core::work_traffic(const Job& job) {
  auto found = work_traffic_.find(job.id);
  if (found != work_traffic_.end() && found->second.epoch == job.epoch) return &found->second.told;
  const auto known = loaded(job.id);
  if (!known.ok() || !job.plan) return nullptr;
  const WorkTraffic fresh(known.value()->graphs.graph, *job.plan);
  return &work_traffic_.insert_or_assign(job.id, RunTraffic{job.epoch, fresh}).first->second.told;
}

void Core::learn_links(const Job& job, const proto::WorkerReport& report,
                       const job::WorkerEvent& event) {
  if (event.traffic.empty()) return;
  WorkTraffic* traffic = work_traffic(job);
  if (traffic == nullptr) return;
  const auto ways = traffic->believed(report.stage(), event.traffic, now_ms());
  if (const Status kept = links_.add_traffic(state_, ways, now_ms()); !kept.ok()) note(kept);
}

}  // namespace weft::broker
