#include "broker/coordinator/replan_inputs.h"

#include <algorithm>
#include <map>
#include <set>

#include "broker/planner/network.h"
#include "broker/planner/rejudge.h"
#include "opdag/cuts.h"

namespace weft::broker {
namespace {

bool is_stored(const opdag::Leaf& leaf) {
  return leaf.kind == opdag::LeafKind::kParameter ||
         (leaf.kind == opdag::LeafKind::kBuffer && leaf.persistent);
}

// Of each stage what its shards hold: parameters, tied ones under one name, and buffers.
Result<std::vector<std::set<std::string>>> parameters_of(const opdag::Graph& graph,
                                                         const opdag::Partition& partition) {
  std::map<int32_t, std::string> first_name;  // by tied group
  std::vector<std::set<std::string>> result;
  WEFT_TRY(const std::vector<opdag::Stage> stages, opdag::Cuts(graph).stages(partition));
  for (const opdag::Stage& stage : stages) {
    std::set<std::string> names;
    for (const int32_t at : stage.leaves) {
      const opdag::Leaf& leaf = graph.leaves[static_cast<size_t>(at)];
      if (!is_stored(leaf)) continue;
      names.insert(leaf.tied_group == opdag::kNone
                       ? leaf.target
                       : first_name.try_emplace(leaf.tied_group, leaf.target).first->second);
    }
    result.push_back(std::move(names));
  }
  return result;
}

bool meet(const std::set<std::string>& a, const std::set<std::string>& b) {
  return std::any_of(a.begin(), a.end(), [&](const std::string& name) { return b.contains(name); });
}

// How peers and the broker reach each other is measured by nobody (replan_inputs.h).
class BrokerWays {
 public:
  BrokerWays(const PlannerInputs& inputs, const MeasuredWays& measured) : network_(0) {
    std::vector<std::string> ids;
    for (const PlannerPeer& peer : inputs.peers) {
      at_[peer.id] = ids.size();
      ids.push_back(peer.id);
    }
    network_ = joined_network(ids, measured, inputs.links, inputs.access);
  }

  // Seconds a byte takes.
  double up(const std::string& peer) const {
    return or_assumed(to_broker_seconds_per_byte(network_, at_.at(peer)));
  }
  double down(const std::string& peer) const {
    return or_assumed(from_broker_seconds_per_byte(network_, at_.at(peer)));
  }

 private:
  static double or_assumed(double known) {
    return known > 0 ? known : seconds_per_byte_at(kAssumedMbit_s);
  }

  std::map<std::string, size_t> at_;
  Network network_;
};

bool equal(const job::Plan& a, const job::Plan& b) {
  return a.partition == b.partition && a.schedule == b.schedule && a.gap == b.gap &&
         std::equal(a.stages.begin(), a.stages.end(), b.stages.begin(), b.stages.end(),
                    [](const job::StagePlan& x, const job::StagePlan& y) {
                      return x.replicas == y.replicas && x.recompute == y.recompute;
                    });
}

}  // namespace

double optimizer_states(const job::TrainSpec& train) {
  if (train.optimizer != job::Optimizer::kSgd) return 2;
  return train.momentum > 0 ? 1 : 0;
}

std::vector<double> shard_bytes(const job::TrainSpec& train, const Job& job) {
  std::vector<double> bytes;
  for (const job::StagePlan& stage : job.plan->stages) {
    bytes.push_back((1 + optimizer_states(train)) * static_cast<double>(stage.parameter_bytes));
  }
  const Checkpoint* last = job.last_checkpoint();
  if (last == nullptr || last->epoch != job.epoch) return bytes;
  for (const auto& [stage, shard] : last->shards) {
    bytes.at(static_cast<size_t>(stage)) = static_cast<double>(shard.bytes);
  }
  return bytes;
}

Result<std::vector<std::vector<int32_t>>> shards_of(const opdag::Graph& graph,
                                                    const opdag::Partition& from,
                                                    const opdag::Partition& to) {
  WEFT_TRY(const auto have, parameters_of(graph, from));
  WEFT_TRY(const auto want, parameters_of(graph, to));
  std::vector<std::vector<int32_t>> result(want.size());
  for (size_t stage = 0; stage < want.size(); ++stage) {
    for (size_t shard = 0; shard < have.size(); ++shard) {
      if (meet(want[stage], have[shard])) result[stage].push_back(static_cast<int32_t>(shard));
    }
  }
  return result;
}

Result<Replanned> replan_over(const opdag::Graph& graph, const job::JobSpec& spec, const Job& job,
                              const std::vector<const Peer*>& peers, const PlannerWorld& known,
                              const DeviceLessons& lessons, PlannerOptions options, double unproven,
                              const OtherBytes& other_bytes) {
  PlannerInputs inputs = planner_inputs(peers, known, lessons);
  for (size_t i = 0; i < peers.size(); ++i) {
    const bool taught =
        peers[i]->slowness.factor > 0 || (inputs.peers[i].profile && lessons.taught(*peers[i]));
    const bool own = std::any_of(job.stages.begin(), job.stages.end(),
                                 [&](const StageState& s) { return s.peer == peers[i]->id; });
    if (!taught && !own) inputs.peers[i].correction *= unproven;
  }
  const job::JobSpec asked = spec_to_plan(spec, job);
  options.access = inputs.access;
  options.measured = remembered(std::move(options.measured));
  Replanned result;
  WEFT_TRY(result.plan, make_plan(graph, asked, inputs.peers, inputs.links, options));
  result.same = equal(result.plan, *job.plan);
  result.timed = result.plan.step_s > 0;
  const std::vector<const job::Plan*> both = {&*job.plan, &result.plan};
  // The others are not judged, and a network of thousands is gigabytes.
  std::set<std::string> involved;
  for (const job::Plan* plan : both) {
    for (const job::StagePlan& stage : plan->stages) involved.insert(stage.replicas[0]);
  }
  std::erase_if(inputs.peers, [&](const PlannerPeer& p) { return !involved.contains(p.id); });
  WEFT_TRY(const std::vector<double> seconds,
           step_seconds_of(graph, asked, both, inputs.peers, inputs.links, options));
  result.current_s = seconds[0];
  result.planned_s = seconds[1];
  if (result.same) return result;
  if (options.measured) {
    // Of idle peers lines are tested, of busy ones they may still be assumed: what the new plan
    // gains must not be that alone.
    PlannerOptions seen = options;
    seen.measured = without_assumed(options.measured);
    WEFT_TRY(const std::vector<double> unshared,
             step_seconds_of(graph, asked, both, inputs.peers, inputs.links, seen));
    if (unshared[0] * result.planned_s < result.current_s * unshared[1]) {
      result.current_s = unshared[0];
      result.planned_s = unshared[1];
    }
  }
  for (const job::StagePlan& stage : result.plan.stages) {
    const auto peer = std::find_if(inputs.peers.begin(), inputs.peers.end(),
                                   [&](const PlannerPeer& p) { return p.id == stage.replicas[0]; });
    result.factors.push_back(peer->correction);
  }

  const BrokerWays ways(inputs, options.measured);
  const std::vector<double> shards = shard_bytes(asked.train, job);
  for (size_t stage = 0; stage < shards.size(); ++stage) {
    result.store_bytes += shards[stage];
    const double up = ways.up(job.plan->stages[stage].replicas[0]);
    result.store_s = std::max(result.store_s, shards[stage] * up);
  }
  WEFT_TRY(const auto needed, shards_of(graph, job.plan->partition, result.plan.partition));
  for (size_t stage = 0; stage < needed.size(); ++stage) {
    StageFetch fetch{result.plan.stages[stage].replicas[0], 0, 0};
    for (const int32_t shard : needed[stage]) fetch.bytes += shards[static_cast<size_t>(shard)];
    if (other_bytes) fetch.bytes += other_bytes(result.plan, static_cast<int32_t>(stage));
    fetch.seconds = fetch.bytes * ways.down(fetch.peer);
    result.fetches.push_back(std::move(fetch));
  }
  return result;
}

std::vector<double> promised_speeds(const std::vector<const Peer*>& peers,
                                    const PlannerWorld& known, const DeviceLessons& lessons) {
  std::vector<double> speeds;
  for (const PlannerPeer& peer : planner_peers(peers, known, lessons)) {
    const double promised = peer.promised_gflops();
    // Of a profile the correction is counted already.
    speeds.push_back(peer.gflops > 0 && peer.correction > 0 ? promised / peer.correction
                                                            : promised);
  }
  return speeds;
}

}  // namespace weft::broker
