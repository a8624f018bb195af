// What peers tell of their devices: the profile they measured, what real steps say of it, when it
// is measured again; and how much of their memory is free.
#include <algorithm>
#include <cmath>

#include "broker/coordinator/machine.h"
#include "broker/planner/planner.h"

namespace weft::broker {
namespace {

// Less than that of all its memory is no news.
constexpr double kMemoryNoise = 0.05;

// A version of weft may run operators in another way: it measures another thing.
bool same_device(const job::DeviceProfile& a, const job::DeviceProfile& b) {
  return a.device == b.device && a.device_name == b.device_name && a.threads == b.threads &&
         a.version == b.version;
}

double promised_gflops(const std::shared_ptr<const job::DeviceProfile>& profile) {
  PlannerPeer peer;
  peer.profile = profile;
  return peer.promised_gflops();
}

// How many times the speed of the old profile the new one promises; 0: they do not compare.
double speed_ratio(const std::shared_ptr<const job::DeviceProfile>& before,
                   const std::shared_ptr<const job::DeviceProfile>& after) {
  if (!before || !same_device(*before, *after)) return 0;
  const double old_gflops = promised_gflops(before), new_gflops = promised_gflops(after);
  return old_gflops > 0 && new_gflops > 0 ? new_gflops / old_gflops : 0;
}

void rescale(double& factor, double faster) {
  factor = std::clamp(factor * faster, 1 / kMostSlowness, kMostSlowness);
}

}  // namespace

// A daemon may not see its card's memory; the worker that measured the card has.
uint64_t memory_bytes_of(const Peer& peer) {
  const Capabilities& c = peer.capabilities;
  if (!job::is_card(c.device)) return c.memory_bytes;
  if (c.device_memory_bytes > 0) return c.device_memory_bytes;
  const bool measured = peer.profile && peer.profile->device == c.device;
  if (measured && peer.profile->memory_total_bytes > 0) return peer.profile->memory_total_bytes;
  return c.memory_bytes;
}

// Told with every heartbeat: only what may make another plan is a change.
void Machine::note_free_memory(Peer& peer, uint64_t bytes) {
  if (bytes == 0) return;
  const uint64_t total = memory_bytes_of(peer);
  if (total > 0) bytes = std::min(bytes, total);
  peer.free_memory_bytes = bytes;
  const double change =
      std::abs(static_cast<double>(bytes) - static_cast<double>(peer.free_memory_noted));
  if (change <= kMemoryNoise * static_cast<double>(total)) return;
  peer.free_memory_noted = bytes;
  ++state_.idle_version;
}

// Real steps against the profile.
void Machine::learn_speed(const Job& owner, const StageReport& event) {
  constexpr int64_t kWarmUpSteps = 2;  // of a run: memory, caches and libraries are new to it
  const auto stage = static_cast<size_t>(event.stage);
  Peer* entry = peer(event.peer);
  if (entry == nullptr || !owner.plan || stage >= owner.plan->stages.size()) return;
  const int64_t behind =
      entry->capabilities.device == "cpu" ? 0 : 1;  // a card tells the step before
  if (event.step <= owner.resume_step + kWarmUpSteps + behind) {
    return;
  }
  const job::StagePlan& planned = owner.plan->stages[stage];
  // By what its steps usually take: of a stage that tells nothing, outliers would be all that
  // counts.
  const double usual_s = owner.drift.compute_s(stage).value_or(0);
  if (!(planned.correction > 0) || !tells_speed(*owner.plan, stage, usual_s)) return;
  entry->correction =
      corrected(entry->correction, planned.compute_s / planned.correction, event.compute_s);
}

void Machine::on(const PeerMeasured& event) {
  Peer* entry = peer(event.peer);
  if (entry == nullptr || event.profile == nullptr) return;
  // A daemon tells its profile in every session: what real runs taught stays with an old one.
  const bool same = entry->profile &&
                    job::profile_to_json(*entry->profile) == job::profile_to_json(*event.profile);
  if (same) return;
  const double faster = speed_ratio(entry->profile, event.profile);
  const uint64_t memory = memory_bytes_of(*entry);
  entry->profile = event.profile;
  if (memory_bytes_of(*entry) != memory) entry->free_memory_bytes = 0;  // it was clamped to that
  if (faster > 0) {
    remeasured(*entry, faster);
  } else {
    entry->correction = {};
    entry->slowness = {};
    entry->remeasure = {};
  }
  ++state_.idle_version;
  effects_.push_back(PersistPeer{event.peer});
  emit("", "peer",
       fmt::format("{} has measured itself{}", peer_text(event.peer),
                   faster > 0 ? fmt::format(" again: {:.3g} times as fast as before", faster) : ""),
       {{"peer", event.peer}});
}

// Whatever the new profile says, predictions go on matching real runs, until new ones tell more.
void Machine::remeasured(Peer& peer, double faster) {
  peer.correction = carried_over(peer.correction, faster);
  // Of a peer whose speed the operator wrote it is no factor of the profile.
  const bool written = options_.speed_written && options_.speed_written(peer);
  if (peer.slowness.factor > 0 && !written) rescale(peer.slowness.factor, faster);
  rebase_plans(peer.id, faster);
  Remeasure& again = peer.remeasure;
  if (!disagrees(peer.correction)) {
    again.pause_ms = 0;
    again.next_ms = std::min(again.next_ms, now_ms_ + options_.remeasure_ms);
  } else if (again.asked) {  // in vain
    again.pause_ms =
        std::min(2 * again.pause_ms, std::max(options_.remeasure_ms, options_.remeasure_most_ms));
    again.next_ms = now_ms_ + again.pause_ms;
  }
  again.asked = false;
}

// A profile may cross the Prepare of a plan that the old one made: what steps of that plan teach is
// of the new one.
void Machine::rebase_plans(const std::string& peer, double faster) {
  const auto rebase = [&](job::Plan& plan, std::vector<double>& factors) {
    bool any = false;
    for (size_t i = 0; i < plan.stages.size(); ++i) {
      job::StagePlan& stage = plan.stages[i];
      if (stage.replicas[0] != peer || !(stage.correction > 0)) continue;
      rescale(stage.correction, faster);
      if (i < factors.size()) rescale(factors[i], faster);
      any = true;
    }
    return any;
  };
  for (auto& [id, entry] : state_.jobs) {
    if (ended(entry.phase)) continue;
    if (entry.plan && rebase(*entry.plan, entry.planned_factors)) {
      effects_.push_back(PersistJob{id});
    }
    if (entry.migration) rebase(entry.migration->plan, entry.migration->planned_factors);
  }
}

// A message that is lost is made up for by the next.
void Machine::doubt(Peer& peer) {
  Remeasure& again = peer.remeasure;
  if (!peer.profile || !usable(peer) || now_ms_ < again.next_ms) return;
  again.pause_ms = std::max(again.pause_ms, options_.remeasure_ms);
  again.next_ms = now_ms_ + again.pause_ms;
  if (options_.speed_written && options_.speed_written(peer)) return;
  again.asked = true;
  const std::string reason = fmt::format("real steps take {:.2g} times as long as its profile says",
                                         peer.correction.factor);
  effects_.push_back(SendMeasure{peer.id, reason});
  emit("", "peer",
       fmt::format("{} is asked to measure itself again: {}", peer_text(peer.id), reason),
       {{"peer", peer.id}});
}

}  // namespace weft::broker
